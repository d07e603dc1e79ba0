"""The whole engine loop on the tell-tale, with faults on demand and every law checked after every step.

    harness = Harness(CacheConfig(telltale.geometry(), device_pages=40, host_slots=80), faults=FaultPlan().delay(polls=2))
    harness.submit(Request("a", prompt))
    harness.drain()
    assert harness.told["a"].tokens == telltale.answer(prompt, 16, harness.vocab)

Needs no torch, no thread and no time: a step takes a millisecond or two, and the clock is virtual.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from stepwell.base.clock import VirtualClock
from stepwell.base.geometry import Ints
from stepwell.cache.clear import quarantine
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.disk.archive import Archive, WriteBudget
from stepwell.cache.disk.persist import persist_idle
from stepwell.cache.evict.make_room import demote
from stepwell.cache.moves import LiveState, Move, Tier
from stepwell.sched.audit import Auditor
from stepwell.sched.build import preempt
from stepwell.sched.config import SchedConfig
from stepwell.sched.drafts import Gain
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Admitted, Event, Finished, Request, Tokens
from stepwell.sched.stats import EngineStats
from stepwell.sched.step import Runner, Step, StepResult, Work
from stepwell.testing import laws
from stepwell.testing.callers import Told, check_end, check_outcome
from stepwell.testing.faults import FaultPlan
from stepwell.testing.guard import Guard
from stepwell.testing.landing import check_landing
from stepwell.testing.laws import LawBroken, require
from stepwell.testing.outside import OutsideStore, begin_with
from stepwell.testing.progress import PATIENCE, Masks, Progress, Turn
from stepwell.testing.ranks import Ranks, Watch
from stepwell.testing.reference import Reference
from stepwell.testing.running import check_running
from stepwell.testing.shelf import Shelf
from stepwell.testing.suspicion import Suspicion
from stepwell.testing.telltale import POISON, UNDRAWN, Memory, TellTaleRunner, answer, shards


class Harness:
    """One engine and everything that watches it.

    told       by request id: what its caller has heard        memory     every byte of every tier
    faults     the mover's faults; more may be added           reference  what could be reused at most
    ranks      all ranks, of which `memory`, `mover` and `faults` are the first's

    `rank_faults` are each rank's faults, in place of `faults`; with `same_kv` the ranks differ in their states alone. `audit` is the
    share of resumes that are checked; without `checked`, bytes in host have no checksum. What a grammar allows is known up to
    `slow_masks` turns late. With `least`, there is an external store in `outside`, and a load from it gains at least so many tokens. What
    may come of bytes that a test makes wrong, `suspicion` knows: laws 2, 3 and 10 are judged for everything else.
    """

    def __init__(
        self,
        cache: CacheConfig,
        sched: SchedConfig | None = None,
        faults: FaultPlan | None = None,
        costs: Costs | None = None,
        vocab: int = 1000,
        step_seconds: float = 0.001,
        ranks: int = 1,
        rank_faults: Sequence[FaultPlan] = (),
        same_kv: bool = False,
        budget: WriteBudget | None = None,
        audit: float = 0.0,
        seed: int = 0,
        through: Callable[[Runner], Runner] = lambda runner: runner,
        checked: bool = True,
        slow_masks: int = 0,
        gain: Gain | None = None,
        least: int | None = None,
    ) -> None:
        sched = sched or SchedConfig(max_num_seqs=4, max_num_batched_tokens=64)
        self.vocab = vocab
        self.told: dict[str, Told] = {}
        plans = tuple(rank_faults) or (faults or FaultPlan(), *(FaultPlan() for _ in range(ranks - 1)))
        self.faults = plans[0]
        self.clock, self.shards = VirtualClock(), shards(ranks, same_kv)
        sizes = (cache.geometry, cache.device_pages, cache.host_slots, sched.max_num_seqs)
        self.memories = tuple(Memory(*sizes, shard, cache.disk_slots, checked) for shard in self.shards)
        self.memory = self.memories[0]
        self.reference = Reference(cache.geometry.block)
        self.shelf = Shelf(self.memories, cache.geometry.block, cache.chunk)
        self.outside = None if least is None else OutsideStore(cache, ranks, least)
        self.past: list[EngineStats] = []
        self.suspicion = Suspicion(cache.geometry.block)
        self._through, self._gain = through, gain
        self._audit, self._lazy = audit, random.Random(seed)
        self.masks = Masks(seed, slow_masks)
        self._plans, self._costs, self._budget = plans, costs, budget or WriteBudget()
        self._boot(cache, sched)
        self._step_seconds, self._ran = step_seconds, False
        self._spoiled: set[str] = set()
        self._entered: dict[tuple[str, int], int] = {}
        self._got: dict[str, int] = {}
        self._progress, self._truth = Progress(), laws.Truth()
        self._broken: LawBroken | None = None

    def _boot(self, cache: CacheConfig, sched: SchedConfig) -> None:
        """A new process on what is on disk."""
        self.ranks = Ranks(self.memories, self._plans, self.clock, self._copy)
        self.mover = self.ranks.movers[0]
        self._watch = Watch(self.ranks.mover, self.shelf)
        self.runner = TellTaleRunner(self.memory, cache.geometry, self.vocab, self.memories[1:])
        guard = Guard(self, self._through(self.runner), self._lazy)
        archive = Archive(self.shelf.names, self.shelf, replace(self._budget))
        auditor = Auditor(self._audit)
        more = archive, auditor, self.masks, self._gain, *begin_with(self.outside)
        self.loop = EngineLoop(cache, sched, guard, self._watch, self.clock, self._costs, *more)

    # ---- what a caller does -----------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        """Raises as `EngineLoop.submit` does."""
        if len(request.prompt):
            laws.check_plan(self.loop, request.salt, request.prompt)
        self.loop.submit(request)
        wanted = request.params.max_tokens
        room = self.loop.longest - len(request.prompt)
        self.told[request.id] = Told(request, room if wanted is None else min(wanted, room))

    def abort(self, request_id: str) -> None:
        self.loop.abort(request_id)

    def step(self) -> list[Event]:
        """One turn of the loop, all laws checked before its works run, before each copy, and at its end."""
        parked = [one for one in self.loop.queues.parked.values() if not laws.is_condemned(self.loop, one)]
        self.clock.advance(self._step_seconds)
        self._ran = False
        self._watch.reported = {}
        self.masks.turn()
        waits, asked = self.loop.serving, self.shelf.asked
        events = self.loop.step()
        if self._broken is not None:
            raise self._broken
        self._find_out()
        for event in events:
            self._hear(event)
        for before in parked:
            check_landing(self.loop, before, self._watch, self._entered, self.clock.now())
        done = self._ran or bool(events or self._watch.reported) or self.shelf.asked > asked
        moving = bool(self._watch.outstanding or self.loop.queues.probing or self.masks.awaited)
        excused = self.ranks.lost and not (self._waited_for and self.loop.config.load_timeout)
        self._progress.check(Turn(waits and self.loop.serving, done, moving, excused), self.loop)
        self._poison()
        self.check_all()
        return events

    def drain(self, deliver: bool = True) -> None:
        """Step until nothing is left to do, then check that nothing is held. Lost reports arrive after all; without `deliver` not before
        every request has ended, which needs a `load_timeout`."""
        todo = sum(len(t.request.prompt) + t.limit for t in self.told.values() if t.finished is None)
        for _ in range(PATIENCE + 20 * todo):
            if not self.loop.busy:
                break
            if deliver or not self._waited_for:
                self.deliver()
            self.step()
        require(9, not self.loop.busy, f"no end after {PATIENCE + 20 * todo} steps: {self.loop.stats()}")
        require(8, all(t.finished for t in self.told.values()), "a request never ended")
        laws.check_idle(self.loop)

    # ---- what a test does to it -------------------------------------------------------------------------------

    def preempt(self, request_id: str) -> None:
        """Send a running request back to waiting; any other is left alone. As ever, the launched step is collected first."""
        self.loop.drain()
        self._find_out()
        running = self.loop.queues.find_running(request_id)
        if running is not None:
            preempt(self.loop.queues, self.loop.directory, running)

    def spoil(self, request_id: str) -> None:
        """Have the runner report that this request's numbers went wrong, when it next computes any."""
        self._spoiled.add(request_id)

    def restart(self) -> None:
        """End the process at once, whatever it was doing, and start another: only what was published on disk is left."""
        self.past.append(self.loop.stats())
        for told in self.told.values():
            told.finished = told.finished or Finished(told.request.id, "abort", "the engine was restarted")
        for task in self.loop.directory.archive.send():
            if not isinstance(task, Move):
                self.shelf.obey(task)
        self.shelf.restart()
        for memory in self.memories:
            memory.wipe()
        self._boot(self.loop.directory.config, self.loop.config)
        self.check_all()

    def corrupt(self, tier: Tier, slot: int, word: int = 0, rank: int = 0) -> None:
        """Flip a bit of a rank's bytes. What comes of it until it is found is no fault of the engine's: see `suspicion`."""
        memory = self.memories[rank]
        memory.arenas[tier][slot, word] ^= np.uint64(1)
        if tier in memory.sums:
            self.suspicion.flipped = True
        else:
            self.suspicion.corrupted(self.loop, tier, slot)

    def quarantine(self, salt: str, prompt: Ints) -> int:
        """Condemn what begins as `prompt` does, as an audit would; how many copies that were."""
        copies = quarantine(self.loop.directory, salt, prompt)
        self.suspicion.condemned(self.loop, salt, prompt)
        self.check_all()
        return copies

    def trust(self) -> None:
        """Judge all bytes again: what was corrupted has been taken out, or so the test claims."""
        self.suspicion.clear()
        self.check_all()

    def deliver(self) -> None:
        """Have every lost report in the next poll."""
        self.ranks.deliver()

    def flush(self, tier: Tier, demote_first: bool = False, keep: int = 0) -> None:
        """Drop every unlocked copy in `tier` of what ends past the first `keep` tokens.

        With `demote_first`, what can be is copied down before it leaves the device.
        """
        directory = self.loop.directory
        if demote_first and tier == Tier.DEVICE:
            self._copy_down()
        if demote_first and tier == Tier.HOST:
            self._persist()
        while True:
            items = [i for i in laws.cached_items(self.loop) if i.at[tier] is not None and not i.locks[tier]]
            item = max(items, key=lambda i: (i.node.end, i.what == "image"), default=None)
            if item is None or item.node.end <= keep:
                break
            directory.drop(item, tier)
        self._poison()

    def _copy_down(self) -> None:
        """Leaves first, then what they hung on."""
        directory = self.loop.directory
        for _ in range(PATIENCE):
            moves = demote(directory, directory.config.device_pages) if Tier.HOST in directory.pools else []
            if not moves and not directory.in_flight:
                break
            self.loop.queues.moves.extend(moves)
            self.deliver()
            self.step()

    def _persist(self) -> None:
        directory = self.loop.directory
        for _ in range(PATIENCE):
            if not persist_idle(directory, self.loop.costs, self.clock.now()):
                break
            self.deliver()
            self.step()

    def stats(self) -> EngineStats:
        return self.loop.stats()

    def check_all(self) -> None:
        """Every law that can be judged between two steps. Raises LawBroken."""
        check_running(self.loop)
        laws.check_shelf(self.loop, self.shelf)
        self._check_content()
        for waiting in self.loop.queues.waiting[:1]:
            laws.check_plan(self.loop, waiting.job.request.salt, waiting.job.tokens.view)
        laws.check_counts(self.loop)
        self.suspicion.check(self.loop)

    def _find_out(self) -> None:
        """Take in what audits have found in this step: they find nothing where no byte was made wrong."""
        self.suspicion.refresh(self.loop)
        differed = self.loop.auditor.differed
        while differed:
            case = differed.popleft()
            suspect = self.suspicion.family(case.salt, case.prompt) in self.suspicion.families
            require(10, suspect, "a resumed prompt answers otherwise than its audit")
            self.suspicion.condemned(self.loop, case.salt, case.prompt)

    # ---- the runner and the mover -----------------------------------------------------------------------------------

    def launching(self, step: Step) -> None:
        """Judge `step` as it is launched."""
        laws.check_writes(self.loop, step)
        self._ran = True

    def compute(self, runner: Runner, step: Step) -> StepResult:
        """Judge a launched step, compute it, and see that it wrote what it said and nothing else."""
        pages = laws.check_writes(self.loop, step)
        self._check_content()
        for work in step.works:
            self._enter(work)
        before = [memory.arenas[Tier.DEVICE].copy() for memory in self.memories]
        result = runner.launch(step).result()
        after = [memory.arenas[Tier.DEVICE] for memory in self.memories]
        same = (np.array(before) == np.array(after)).all(axis=(0, 2))
        same[pages] = same[-1] = True  # the last page is nobody's
        require(1, bool(same.all()), f"pages {np.flatnonzero(~same).tolist()} changed, which nobody was to write")
        return result

    def collected(self, step: Step, result: StepResult) -> StepResult:
        """What a step has come to, as the loop is about to hear it."""
        self._ran = True
        wrong = [index for index, work in enumerate(step.works) if work.request_id in self._spoiled]
        for index in wrong:
            self._ruin(step.works[index])
        for index, (work, sampled) in enumerate(zip(step.works, result.sampled, strict=True)):
            running = laws.computing(self.loop, work.slot)
            assert running is not None
            if self.loop.queues.is_leaving(running):
                continue
            end = self._got[work.request_id] = work.start + len(sampled) if work.drafts else work.end
            if index not in wrong and running.job.request.write_cache and self.loop.config.cache:  # others may find it
                known = np.concatenate([running.job.tokens.view, np.array(sampled, np.int32)])[:end]
                self.reference.computed(
                    running.job.request.salt, known, [cut.position for cut in work.cuts if cut.position <= end]
                )
        told = tuple(() if index in wrong else tokens for index, tokens in enumerate(result.sampled))
        return replace(result, sampled=told, errors=tuple((index, "spoiled") for index in wrong))

    def _enter(self, work: Work) -> None:
        running = laws.computing(self.loop, work.slot)
        assert running is not None
        if self.loop.queues.is_leaving(running):
            return  # its numbers may have gone wrong before
        key = (work.request_id, running.job.starts)
        self.suspicion.check_work(self.loop, work, running.job.starts)
        for memory in () if self.suspicion.excuses(running.job) else self.memories:
            first, got = key not in self._entered, self._got.get(work.request_id, 0)
            laws.check_start(self.loop, memory, self._truth, self.reference, work, first, got)
        self._entered.setdefault(key, work.start)

    def _ruin(self, work: Work) -> None:
        self._spoiled.discard(work.request_id)
        self.ranks.poison(Tier.DEVICE, laws.written(work, self.loop.directory.tree.block))
        for cut in work.cuts:
            self.ranks.poison(Tier.DEVICE, cut.pages)

    def _check_content(self) -> None:
        for memory in self.memories:
            laws.check_content(self.loop, memory, self._truth, self.suspicion.families, self.suspicion.flipped)

    def _copy(self, memory: Memory, move: Move) -> None:
        try:
            laws.check_copy(self.loop, move)
            self.suspicion.check_copy(move)
        except LawBroken as broken:  # the mover would report it as a failed copy
            self._broken = self._broken or broken
        if self.outside is None or not self.outside.carry(memory, move):
            memory.copy(move)
        if not isinstance(move.target, LiveState) and move.target.tier == Tier.DISK:
            self.shelf.publish(move)

    def _poison(self) -> None:
        """Overwrite what nobody may read any more."""
        for tier, pool in self.loop.directory.pools.items():
            free = pool.free_slots
            if tier == Tier.DISK:  # what is to be forgotten next is still there
                kept = [slot for record in self.shelf.records.values() for slot in record.slots]
                free = np.setdiff1d(free, np.array(kept, np.int32))
            self.ranks.poison(tier, free)
        for memory in self.memories:
            memory.live[self.loop.queues.slots] = POISON
        self.runner.draws[self.loop.queues.slots] = UNDRAWN

    # ---- what callers hear ------------------------------------------------------------------------------------------

    def _hear(self, event: Event) -> None:
        told = self.told[event.request_id]
        require(8, told.finished is None, f"{event.request_id} hears {event} after its end")
        if isinstance(event, Admitted):
            require(8, told.outcome is None and not told.tokens, f"{event.request_id} is admitted twice")
            told.outcome = event.outcome
            check_outcome(self.loop, self.reference, told.request, event.outcome)
        elif isinstance(event, Tokens):
            require(8, told.outcome is not None, f"{event.request_id} has tokens before it is admitted")
            told.tokens += event.tokens
            self._check_answer(told)
        elif isinstance(event, Finished):
            told.finished = event
            check_end(self.loop, told, event)

    def _check_answer(self, told: Told) -> None:
        request = told.request
        cold = answer(request.prompt, len(told.tokens), self.vocab, request.salt, self.shards)
        right = told.tokens == cold or request.id in self.suspicion.misled
        require(10, right, f"{request.id} answers {told.tokens}, a cold run {cold}")

    @property
    def _waited_for(self) -> bool:
        """Whether a caller waits for a request to end."""
        return any(told.finished is None for told in self.told.values())
