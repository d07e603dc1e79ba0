"""The design's laws, judged from outside: by what bytes are where, and by what callers are told.

    1  nobody writes a page that anyone else references
    2  a request runs from B only with KV [0, B) and the state at exactly B, both of its own root
    3  what is findable has been computed, byte for byte, in every tier
    4  planning changes nothing, and twice gives the same
    5  what is leased stays; what nobody holds is free or cached
    6  a failed load resumes at the next option of its own plan
    7  every rank holds its own shard of all this
    8  tokens by source sum to the prompt; 0 ≤ cached < prompt; each request ends once
    9  while anything waits, a token is computed or a byte is moving
    10 every answer is the cold one
    11 nobody reads what was condemned before they began (`stepwell.testing.suspicion`)

Law 7 has no check of its own: whatever concerns bytes is judged on each rank's memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.base.units import ceil_div
from stepwell.cache.check import check
from stepwell.cache.moves import NATIVE, LiveState, Move, Tier
from stepwell.cache.reuse.plan import Plan
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import Item, Node
from stepwell.sched.job import Draining, Parked, Running
from stepwell.sched.loop import EngineLoop
from stepwell.sched.step import LAST_DRAW, Carry, Fresh, FromImage, Step, Work
from stepwell.sched.suspend import held_pages
from stepwell.testing.reference import Reference
from stepwell.testing.shelf import GONE, Shelf
from stepwell.testing.telltale import LAYERS, Memory, Shard, Words, blank, content


class LawBroken(AssertionError):
    """A law does not hold; `law` is its number."""

    def __init__(self, law: int, message: str) -> None:
        super().__init__(f"law {law}: {message}")
        self.law = law


def require(law: int, holds: bool, message: str) -> None:
    if not holds:
        raise LawBroken(law, message)


def holders(loop: EngineLoop) -> list[tuple[str, BlockTable]]:
    """Everyone with a block table, by name."""
    queues = loop.queues
    tables = [(r.job.request.id, r.table) for r in queues.running]
    tables += [(name, parked.loading.held.table) for name, parked in queues.parked.items()]
    tables += [(f"leaving {x.job.request.id}", x.table) for x in queues.leaving]
    tables += [(f"draining {d.loading.held.request_id}", d.loading.held.table) for d in queues.draining]
    return tables


def computing(loop: EngineLoop, slot: int) -> Running | None:
    """Who runs in a live slot, or has ended while a launched step still names it."""
    queues = loop.queues
    return next((r for r in (*queues.running, *queues.leaving) if r.slot == slot), None)


def cached_items(loop: EngineLoop) -> Iterator[Item]:
    for node in loop.directory.tree.nodes():
        yield from node.items()


class Truth:
    """`telltale.content`, remembered: the same prefixes are judged again and again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes, Shard], tuple[Words, Words]] = {}

    def of(self, tokens: Ints, salt: str, shard: Shard) -> tuple[Words, Words]:
        key = (salt, tokens.tobytes(), shard)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = content(tokens, salt, shard)
        return known


# ---- law 1 ------------------------------------------------------------------------------------------------


def written(work: Work, block: int) -> Ints:
    """Pages whose KV `work` writes."""
    return work.pages[max(work.start, work.write_from) // block : ceil_div(work.reach, block)]


def check_writes(loop: EngineLoop, step: Step) -> Ints:
    """Law 1 for a step that is launched, or about to be computed; returns every page that it writes."""
    directory = loop.directory
    tables = [table for _, table in holders(loop)]
    cached = {int(p) for item in cached_items(loop) for p in _slots(item, Tier.DEVICE)}
    free = set(directory.pools[Tier.DEVICE].free_slots.tolist())
    taken: list[int] = []
    for work in step.works:
        running = computing(loop, work.slot)
        mine = running is not None and running.job.request.id == work.request_id
        require(1, mine, f"{work.request_id} does not hold slot {work.slot}")
        assert running is not None
        own = written(work, directory.tree.block).tolist()
        require(1, set(own) <= set(running.table.private.tolist()), f"{work.request_id} writes pages it does not own")
        cuts = [int(p) for cut in work.cuts for p in cut.pages]
        others = {int(p) for table in tables if table is not running.table for p in table.pages}
        for page in own + cuts:
            require(1, page not in cached, f"{work.request_id} writes page {page}, which is cached")
            require(1, page not in free, f"{work.request_id} writes page {page}, which is free")
            require(1, page not in others, f"{work.request_id} writes page {page} of another request")
        require(1, set(cuts).isdisjoint(running.table.pages.tolist()), f"{work.request_id} cuts into its own KV")
        taken += own + cuts
    require(1, len(set(taken)) == len(taken), "a page is written twice in one step")
    return np.array(sorted(taken), np.int32)


def check_copy(loop: EngineLoop, move: Move) -> None:
    """Laws 1 and 5 for a copy that is about to be carried out, however late."""
    queues = loop.queues
    where = f"{move.what} copy {move.ticket}"
    if move.source.tier != Tier.EXTERNAL:
        cached = {int(p) for item in cached_items(loop) for p in _slots(item, move.source.tier)}
        require(5, set(move.source.slots.tolist()) <= cached, f"{where} reads slots that have been let go")
    loads: list[Parked | Draining] = [*queues.parked.values(), *queues.draining]
    load = next((one for one in loads if move.ticket in one.loading.waiting), None)
    if isinstance(move.target, LiveState):
        require(1, load is not None and load.slot == move.target.slot, f"{where} writes a live state not its own")
        return
    if move.target.tier == Tier.EXTERNAL:
        require(1, load is None, f"{where} goes away from the device, but a request waits for it")
        return
    if load is not None:
        own = set(load.loading.held.table.private.tolist())
    else:
        pending = (i.pending for i in cached_items(loop) if i.pending is not None and i.pending.ticket == move.ticket)
        own = {int(p) for one in pending for p in one.slots}
    require(1, set(move.target.slots.tolist()) <= own, f"{where} writes slots that are not its own")


def _slots(item: Item, tier: Tier) -> Ints:
    slots = item.at[tier]
    return np.empty(0, np.int32) if slots is None else slots


# ---- law 2 ------------------------------------------------------------------------------------------------


def check_start(
    loop: EngineLoop, memory: Memory, truth: Truth, reference: Reference, work: Work, first: bool, got: int
) -> None:
    """Law 2 for a work that is about to be computed; `first` since its admission. Its request had got to `got` before that."""
    running = computing(loop, work.slot)
    assert running is not None
    request, known = running.job.request, running.job.tokens.view
    if LAST_DRAW not in work.tokens:
        same = known[work.start : work.start + len(work.tokens)] == work.tokens
        require(2, bool(same.all()), "a work computes other tokens")
    states, cells = truth.of(known, request.salt, memory.shard)
    empty = (blank(request.salt, memory.shard), 0)
    state = (int(states[work.start - 1]), work.start) if work.start else empty
    found = empty if isinstance(work.state, Fresh) else _state(memory, work)
    name = f"{work.request_id} at {work.start}, rank {memory.shard.state},"
    require(2, found == state, f"{name} starts from the state {found}, not {state}")
    here = max(work.start, min(work.write_from, len(known)))
    kv = _cells(memory, Tier.DEVICE, work.pages)[:here]
    require(2, bool((kv == cells[:here]).all()), f"{name} starts on KV that is not that of its tokens")
    if first:
        may = reference.boundaries(request.salt, known)
        kept = isinstance(work.state, Carry) and work.start == got
        require(2, kept or work.start in may, f"{name} resumes where nothing was ever left; it could at {may}")


def _state(memory: Memory, work: Work) -> tuple[int, int]:
    """The state of an earlier step that `work` starts from."""
    if isinstance(work.state, FromImage):
        digest, count = memory.unpack(memory.arenas[Tier.DEVICE][work.state.pages])
    else:
        assert isinstance(work.state, Carry)
        digest, count = memory.live[work.slot]
    return int(digest), int(count)


def _cells(memory: Memory, tier: Tier, slots: Ints) -> Words:
    return memory.arenas[tier][slots].reshape(-1, LAYERS)


# ---- law 3 ------------------------------------------------------------------------------------------------


def check_content(
    loop: EngineLoop, memory: Memory, truth: Truth, suspect: Set[tuple[str, bytes]] = frozenset(), flipped: bool = False
) -> None:
    """Law 3: each copy of each node and image, in every tier, holds exactly what its tokens under its salt must give.

    suspect  salts and first blocks of what is not judged     flipped  copies that fail their checksums are not judged either
    """
    head = loop.directory.tree.head
    for salt, root in loop.directory.tree.roots.items():
        tops = (child for child in root.children.values() if (salt, head(child)) not in suspect)
        stack: list[tuple[Node, Ints]] = [(child, child.tokens) for child in tops]
        while stack:
            node, tokens = stack.pop()
            _check_node(memory, node, *truth.of(tokens, salt, memory.shard), flipped)
            stack += [(child, np.concatenate([tokens, child.tokens])) for child in node.children.values()]


def _check_node(memory: Memory, node: Node, states: Words, cells: Words, flipped: bool) -> None:
    of = f"of rank {memory.shard.state}"
    for tier in memory.arenas:
        slots = node.kv.at[tier]
        if slots is not None and not (flipped and not memory.intact(tier, slots)):
            ok = bool((_cells(memory, tier, slots) == cells[node.start :]).all())
            require(3, ok, "" if ok else f"KV of {node!r} in {tier.name.lower()} {of} is not that of its tokens")
        slots = node.rung.image.at[tier] if node.rung is not None else None
        if slots is not None and not (flipped and not memory.intact(tier, slots)):
            digest, count = (int(word) for word in memory.unpack(memory.arenas[tier][slots]))
            ok = (digest, count) == (int(states[-1]), node.end)
            where = "" if ok else f"the image at the end of {node!r} in {tier.name.lower()} {of}"
            require(3, ok, f"{where} is of another state ({count})")


def check_shelf(loop: EngineLoop, shelf: Shelf) -> None:
    """Law 3 on disk: what the tree finds there belongs to records of the right names, in order."""
    directory = loop.directory
    block = directory.tree.block
    place = {slot: (record, i) for record in shelf.records.values() for i, slot in enumerate(record.slots)}
    for item in cached_items(loop):
        slots = _slots(item, Tier.DISK).tolist() if item.has(Tier.DISK) else []
        trail = directory.archive.trail(item.node) if slots else None
        for index, slot in enumerate(slots):
            require(3, slot in place, f"{item!r} is on disk in slot {slot}, which no record has")
            record, offset = place[slot]
            assert trail is not None
            if item.what == "image":
                good = record.name == trail.image(item.node.end) and offset == index
            else:
                at = item.node.start + index * block
                good = record.name.start + offset * block == at and record.name.root == trail.root
                whole = (
                    record.name.end <= item.node.end and GONE not in record.slots
                )  # else its other part may be of other tokens
                good = good and (not whole or record.name.digest == trail.at(record.name.end))
                good = good and (
                    record.name.start < item.node.start or record.name.parent == trail.at(record.name.start)
                )
            require(3, good and record.what == item.what, f"slot {slot} of {item!r} is part of {record.name}")


# ---- law 4 ------------------------------------------------------------------------------------------------


def check_plan(loop: EngineLoop, salt: str, prompt: Ints) -> None:
    """Law 4, and what law 6 says of a plan."""
    before = _fingerprint(loop)
    first, second = (loop.directory.plan(salt, prompt, loop.costs) for _ in range(2))
    require(4, first == second, "planning twice gives two plans")
    require(4, _fingerprint(loop) == before, "planning has changed something")
    if isinstance(first, Plan):
        check_chain(first)


def _fingerprint(loop: EngineLoop) -> tuple[object, ...]:
    d, q = loop.directory, loop.queues
    items = [
        (
            id(i),
            tuple(i.locks),
            tuple(i.life),
            i.pending is None,
            *(_slots(i, t).tobytes() for t in NATIVE),
        )
        for i in cached_items(loop)
    ]
    nodes = [(id(n), n.start, n.end, n.used, n.rung and n.rung.used, n.lost) for n in d.tree.nodes()]
    pools = [pool.free_slots.tobytes() for pool in d.pools.values()]
    totals = (d.epoch, d.reserved, d.tickets, d.clean, d.items, d.ghost_blocks)
    held = tuple(map(len, (d.leases, d.in_flight, d.overdue)))
    return (*totals, *held, *d.tree.roots, dict(d.cached), dict(d.leased), repr(q.tally), items, nodes, pools)


# ---- law 6 ------------------------------------------------------------------------------------------------


def is_condemned(loop: EngineLoop, parked: Parked) -> bool:
    """Whether what this load reads, or what its request would go on from, has been condemned since: it is to start over."""
    directory, held = loop.directory, parked.loading.held
    stale = directory.is_distrusted(parked.job.request.salt, held.plan.aim.external_hit)
    stale |= parked.suspended is not None and parked.suspended.condemnations != directory.condemnations
    roots = [[*lease.item.node.up()][-1] for lease in (*held.leases, held.path)]
    return stale or not all(any(root is known for known in directory.tree.roots.values()) for root in roots)


def check_chain(plan: Plan) -> None:
    """Law 6 for a plan: unless it says otherwise, a load falls back to the hit or further; and no chain ends in a load."""
    require(6, not plan.options[-1].loads, "the last option of a chain is a load")
    if len(plan.options) > 1 and not plan.fallback_weakened:
        require(6, plan.options[1].boundary >= plan.hit, "a load falls back below the hit")


def check_condemned(loop: EngineLoop, failed: list[Move], adopted: Set[int]) -> None:
    """Law 6: what could not be loaded is not found again.

    adopted  slots of disk that were given to records of an earlier process in this step, after the loads had ended: what was in them
             before is gone. Any other slot that was let go in this step holds nothing that can be found before the next one.
    """
    for move, tier in ((move, move.source.tier) for move in failed if move.source.tier in NATIVE):
        read = set(move.source.slots.tolist()) - (adopted if tier == Tier.DISK else set())
        for item in cached_items(loop):
            found = item.has(tier) and not read.isdisjoint(_slots(item, tier).tolist())
            require(6, not found, f"{item!r} can still be found, though a load from it failed")


# ---- law 5 ------------------------------------------------------------------------------------------------


def check_holds(loop: EngineLoop) -> None:
    """Law 5: the directory is whole, what a lease names is there, and tables are what leases and pools say."""
    directory, queues = loop.directory, loop.queues
    tables = [table for _, table in holders(loop)]
    try:
        held = [held_pages(queues), *_cut_pages(loop), *(t.private for t in tables)]
        check(directory, held, sum(t.promised for t in tables))
    except AssertionError as error:
        raise LawBroken(5, str(error)) from error
    for lease in directory.leases:
        items = [lease.item] if lease.item.what == "image" else [n.kv for n in lease.item.node.up() if n.parent]
        if lease.item.what == "image" or lease.tier == Tier.DEVICE:
            gone = [item for item in items if item.at[lease.tier] is None]
            require(5, not gone, f"a lease holds {gone}, which is not there")
    for parked in queues.parked.values():
        check_chain(parked.loading.held.plan)
    for running in queues.running:
        _check_table(loop, running)
    slots = [r.slot for r in queues.running] + [p.slot for p in queues.parked.values()]
    slots += [d.slot for d in queues.draining] + [x.slot for x in queues.leaving] + queues.slots
    slots += [w.suspended.slot for w in queues.waiting if w.suspended is not None]
    require(5, sorted(slots) == list(range(loop.config.max_num_seqs)), f"live slots are not held once each: {slots}")


def _cut_pages(loop: EngineLoop) -> Iterator[Ints]:
    """Of rungs that launched steps leave."""
    for built in loop.launched():
        for share in built.shares.values():
            yield from (pages for _, _, pages in share.rungs)


def check_launched(loop: EngineLoop) -> None:
    """Law 5: what a launched step names stays as it is until the step is collected."""
    free = loop.directory.pools[Tier.DEVICE].free_slots
    slots = loop.queues.slots
    for built in loop.launched():
        for work in built.step.works:
            named = [work.pages, *(cut.pages for cut in work.cuts)]
            if isinstance(work.state, FromImage):
                named.append(work.state.pages)
            gone = np.intersect1d(np.concatenate(named), free)
            require(5, not len(gone), f"pages {gone.tolist()} are free, but the launched {work.request_id} names them")
            require(5, work.slot not in slots, f"slot {work.slot} is free, but the launched {work.request_id} names it")


def _check_table(loop: EngineLoop, running: Running) -> None:
    node, name = running.path.item.node, running.job.request.id
    mine, block = running.table, loop.directory.tree.block
    pages = loop.directory.pages_of(node, node.end)
    require(5, bool((mine.pages[: len(pages)] == pages).all()), f"{name} does not use the pages that its lease holds")
    require(5, mine.is_private(len(pages), len(mine)), f"{name} uses pages that no lease holds")
    require(5, running.shared <= node.end, f"{name} shares {running.shared} tokens, its lease ends at {node.end}")
    require(5, running.computed <= len(mine) * block, f"{name} has computed past its table")


def check_idle(loop: EngineLoop) -> None:
    """Law 5, once nothing is going on."""
    directory = loop.directory
    require(5, not directory.leases, f"{len(directory.leases)} leases are left when nothing runs")
    at_rest = directory.external is None or directory.external.idle
    require(5, at_rest, "an external store is waited for when nothing runs")
    require(5, not directory.reserved, f"{directory.reserved} pages are reserved when nothing runs")
    for tier in directory.pools:
        use = directory.use(tier)
        whole = use.free + use.cached == use.total and not use.leased
        require(
            5, whole, f"{tier.name.lower()}: {use.free} free + {use.cached} cached of {use.total}, {use.leased} leased"
        )


# ---- law 8 ------------------------------------------------------------------------------------------------


def check_counts(loop: EngineLoop) -> None:
    """Law 8 for all admissions together."""
    tally = loop.queues.tally
    parts = tally.device + tally.host + tally.disk + tally.external + tally.recomputed
    require(8, parts == tally.prompt, f"the tally's {parts} tokens by source are not the prompts' {tally.prompt}")
    lost, computed = sum(tally.lost.values()), tally.recomputed
    require(8, lost == computed, f"the tally's {lost} lost tokens are not the {computed} recomputed")
