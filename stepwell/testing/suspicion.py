"""Wrong bytes that a test has put somewhere: what may come of them until they are found, and that nothing does afterwards (law 11).

A wrong byte that no checksum guards is no fault of the engine's until an audit finds it. Whatever has been computed from it begins
with the same block under the same salt: the *family* of what was read. So a family is under suspicion from the moment at which one of
its bytes is made wrong until it is condemned, and only what its requests read, keep and answer is not judged. A request that
began before its family was condemned reads on what it holds and is excused to its end; a request that begins later is judged as any.
A wrong byte behind a checksum puts nobody under suspicion: reading it must fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Extent, Move, Tier
from stepwell.cache.tree import Item, Node, Root
from stepwell.sched.job import Job, Parked, Running, Waiting
from stepwell.sched.loop import EngineLoop
from stepwell.sched.step import FromImage, Work
from stepwell.testing.laws import require

Family: TypeAlias = tuple[str, bytes]
"""A salt and the tokens of the first block."""

Admission: TypeAlias = tuple[str, int]
"""A request and how many times it had been admitted before."""


@dataclass(frozen=True, slots=True)
class Condemned:
    """A condemned subtree when it was first seen: who held something of it, and the number of the last copy that had begun."""

    holders: frozenset[Admission]
    ticket: int


class Suspicion:
    """families  under suspicion          spoilt  requests whose own pages have been made wrong
    excused   admissions that may have read wrong bytes     misled  requests of these: their answers are not judged
    flipped   whether a byte behind a checksum was made wrong
    """

    def __init__(self, block: int) -> None:
        self.families: set[Family] = set()
        self.spoilt: set[str] = set()
        self.excused: set[Admission] = set()
        self.misled: set[str] = set()
        self.flipped = False
        self._block = block
        self._seen: dict[Root, Condemned] = {}

    def family(self, salt: str, tokens: Ints) -> Family:
        return salt, tokens[: self._block].tobytes()

    def corrupted(self, loop: EngineLoop, tier: Tier, slot: int) -> None:
        """A byte in `slot` of `tier`, which no checksum guards, is wrong from now on."""
        for salt, root in loop.directory.tree.roots.items():
            for top in root.children.values():
                if any(slot in slots for item in _below(top) for slots in _slots(item, tier)):
                    self.families.add((salt, loop.directory.tree.head(top)))
        for root in loop.directory.tree.condemned:
            if slot in _condemned_slots(root, tier):
                self.excused |= set(_holders(loop, root))
        if tier == Tier.DEVICE:
            self.spoilt |= {job.request.id for job, pages in _owned(loop) if slot in pages}
        self.refresh(loop)

    def refresh(self, loop: EngineLoop) -> None:
        """Whatever a spoilt request publishes is as wrong as what it has computed from."""
        jobs = {job.request.id: job for job in _jobs(loop)}
        self.spoilt &= jobs.keys()
        self.families |= {self.family(jobs[name].request.salt, jobs[name].tokens.view) for name in self.spoilt}

    def excuses(self, job: Job) -> bool:
        """Whether what `job` reads now is not judged; if so, neither is its answer from now on."""
        admission = (job.request.id, job.starts)
        if job.request.id in self.spoilt or self.family(job.request.salt, job.tokens.view) in self.families:
            self.excused.add(admission)
        if admission not in self.excused:
            return False
        self.misled.add(job.request.id)
        return True

    def condemned(self, loop: EngineLoop, salt: str, tokens: Ints) -> None:
        """The family of `tokens` has just been condemned: nobody finds it, and it is under suspicion no more."""
        tree, family = loop.directory.tree, self.family(salt, tokens)
        found = loop.directory.survey(salt, tokens).path
        require(11, not found, f"{found} can be found, though it has just been condemned")
        if family in self.families:
            self.families.discard(family)
            readers = {r.job for r in loop.queues.running if tree.is_condemned(r.path.item.node)}
            self.excused |= {(job.request.id, job.starts) for job in readers}
            self.misled |= {job.request.id for job in readers}
        self.spoilt &= {r.job.request.id for r in loop.queues.running if not tree.is_condemned(r.path.item.node)}
        self.refresh(loop)
        self.check(loop)

    def clear(self) -> None:
        """Judge everything again: what was wrong has been taken out, or so the test claims."""
        self.families.clear()
        self.spoilt.clear()
        self.flipped = False

    # ---- law 11 -------------------------------------------------------------------------------------------------

    def check(self, loop: EngineLoop) -> None:
        """Law 11 between two steps: whoever holds something of a condemned subtree held it when that was condemned."""
        present = dict.fromkeys(loop.directory.tree.condemned)
        self._seen = {root: seen for root, seen in self._seen.items() if root in present}
        for root in present:
            holders = frozenset(_holders(loop, root))
            known = self._seen.setdefault(root, Condemned(holders, loop.directory.tickets))
            late = sorted(holders - known.holders)
            require(11, not late, f"{late} hold what was condemned before they began")

    def check_work(self, loop: EngineLoop, work: Work, starts: int) -> None:
        """Law 11 for a work that is about to run."""
        image = work.state.pages.tolist() if isinstance(work.state, FromImage) else []
        read = {*work.pages[: -(-work.start // self._block)].tolist(), *image}
        for root, seen in self._seen.items():
            if (work.request_id, starts) not in seen.holders:
                bad = read & _condemned_slots(root, Tier.DEVICE)
                require(11, not bad, f"{work.request_id} reads pages {sorted(bad)}, condemned before it began")

    def check_copy(self, move: Move) -> None:
        """Law 11 for a copy that is about to be carried out."""
        for root, seen in self._seen.items():
            if isinstance(move.source, Extent) and move.ticket > seen.ticket:
                bad = set(move.source.slots.tolist()) & _condemned_slots(root, move.source.tier)
                require(11, not bad, f"copy {move.ticket} reads slots {sorted(bad)}, condemned before it began")


def _below(top: Node) -> Iterator[Item]:
    """The items of a node and of all below it."""
    stack = [top]
    while stack:
        node = stack.pop()
        yield from node.items()
        stack += node.children.values()


def _slots(item: Item, tier: Tier) -> Iterator[list[int]]:
    """Slots of `tier` that hold `item`, or are being filled with it."""
    here = item.at[tier]
    if here is not None:
        yield here.tolist()
    if item.pending is not None and item.pending.tier == tier:
        yield item.pending.slots.tolist()


def _condemned_slots(root: Root, tier: Tier) -> set[int]:
    here = (item.at[tier] for top in root.children.values() for item in _below(top))
    return {slot for slots in here if slots is not None for slot in slots.tolist()}


def _jobs(loop: EngineLoop) -> list[Job]:
    queues = loop.queues
    everyone: tuple[Waiting | Parked | Running, ...] = (*queues.waiting, *queues.parked.values(), *queues.running)
    return [one.job for one in everyone]


def _owned(loop: EngineLoop) -> Iterator[tuple[Job, list[int]]]:
    """The device pages that each request alone owns, those of rungs that a launched step leaves included."""
    queues = loop.queues
    for built in loop.launched():
        for share in built.shares.values():
            yield share.running.job, [int(page) for _, _, pages in share.rungs for page in pages]
    for running in queues.running:
        yield running.job, running.table.private.tolist()
    for parked in queues.parked.values():
        yield parked.job, parked.loading.held.table.private.tolist()
    suspended: tuple[Waiting | Parked, ...] = (*queues.waiting, *queues.parked.values())
    for one in suspended:
        if one.suspended is not None:
            yield one.job, one.suspended.pages.tolist()


def _holders(loop: EngineLoop, root: Root) -> Iterator[Admission]:
    """Who holds something below `root`: running or loading."""
    holders: tuple[Running | Parked, ...] = (*loop.queues.running, *loop.queues.parked.values())
    for one in holders:
        leases = (
            [one.path, one.image] if isinstance(one, Running) else [*one.loading.held.leases, one.loading.held.path]
        )
        if any(lease is not None and [*lease.item.node.up()][-1] is root for lease in leases):
            yield one.job.request.id, one.job.starts
