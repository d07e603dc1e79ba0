"""An engine loop over the tell-tale, with every copy in the test's hands.

    rig = Rig(pages=32)
    rig.submit("a", numbers(40), max_tokens=4)
    rig.step()                     one turn; copies stay pending
    rig.land(LOADS)                loads end, copies down do not
    rig.run()                      turns, all copies landing, until nothing is left to do
    rig.cold("a")                  its answer is the one a cold run gives

After every turn the directory is checked, what nobody owns is poisoned, and all that is cached is compared with what its
tokens must give.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stepwell.base.clock import VirtualClock
from stepwell.base.geometry import Ints
from stepwell.cache.check import check
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.directory import Directory
from stepwell.cache.moves import LiveState, Move, Report, Tier
from stepwell.cache.reuse.admission import Loading
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.sched.admit import land
from stepwell.sched.build import UNGUIDED
from stepwell.sched.config import SchedConfig
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Admitted, Event, Finished, Request, SamplingParams, Tokens
from stepwell.sched.step import Done, Guidance, Step
from stepwell.sched.suspend import held_pages
from stepwell.testing.faults import ManualMover
from stepwell.testing.telltale import LAYERS, Memory, TellTaleRunner, answer, content, geometry
from tests.cache.builders import forget

VOCAB = 1000
Which = Callable[[Move], bool]


def ALL(move: Move) -> bool:
    return True


def LOADS(move: Move) -> bool:
    return move.source.tier != Tier.DEVICE


def SAVES(move: Move) -> bool:
    return move.source.tier == Tier.DEVICE


def STATE(move: Move) -> bool:
    return isinstance(move.target, LiveState)


def KV(move: Move) -> bool:
    return LOADS(move) and move.what == "kv"


class Recorder:
    """The tell-tale, keeping every step; `fail` names requests whose numbers go wrong, so that they get no token."""

    def __init__(self, inner: TellTaleRunner) -> None:
        self.inner = inner
        self.steps: list[Step] = []
        self.fail: set[str] = set()

    def launch(self, step: Step) -> Done:
        self.steps.append(step)
        result = self.inner.launch(step).result()
        failed = [i for i, work in enumerate(step.works) if work.request_id in self.fail]
        sampled = tuple(() if i in failed else tokens for i, tokens in enumerate(result.sampled))
        return Done(replace(result, sampled=sampled, errors=tuple((i, "not a number") for i in failed)))


class Rig:
    def __init__(
        self,
        pages: int = 128,
        host: int = 128,
        *,
        grid: int = 4,
        image: int = 1,
        chunk: int = 16,
        whole: bool = False,
        interval: int = 4096,
        min_load: int | None = 0,
        clean: float = 1.0,
        seqs: int = 4,
        budget: int = 64,
        rolling: int = 8,
        waypoint: int = 1024,
        longest: int = 1 << 20,
        eos: tuple[int, ...] = (),
        cache: bool = True,
        block: int = 4,
        coalesce: bool = False,
        ageing: float = 10.0,
        fair: bool = False,
        ahead: bool = False,
        guidance: Guidance = UNGUIDED,
        idle: bool = True,
    ) -> None:
        self.sizes = geometry(block, grid, image)
        rules = CacheConfig(
            self.sizes,
            device_pages=pages,
            host_slots=host,
            chunk=chunk,
            whole_chunks=whole,
            interval=interval,
            min_load_tokens=min_load,
            clean_share=clean,
            copy_idle=idle,
        )
        config = SchedConfig(
            seqs,
            budget,
            longest,
            rolling,
            eos,
            VOCAB,
            cache,
            coalesce=coalesce,
            priority_ageing=ageing,
            fair_salts=fair,
            async_scheduling=ahead,
            waypoint_tokens=waypoint,
        )
        self.memory = Memory(self.sizes, pages, host, seqs)
        self.mover = ManualMover(self.memory.copy)
        self.runner = Recorder(TellTaleRunner(self.memory, self.sizes, VOCAB))
        self.clock = VirtualClock()
        self.loop = EngineLoop(rules, config, self.runner, self.mover, self.clock, Costs(), guidance=guidance)
        self.requests: dict[str, Request] = {}
        self.events: list[Event] = []

    # ---- doing --------------------------------------------------------------------------------------------

    def submit(
        self,
        name: str,
        prompt: Ints,
        max_tokens: int = 4,
        *,
        salt: str = "",
        read: bool = True,
        write: bool = True,
        params: SamplingParams | None = None,
        priority: int = 0,
    ) -> None:
        sampling = params or SamplingParams(max_tokens)
        request = Request(name, prompt, sampling, salt, read, write, priority=priority)
        self.loop.submit(request)
        self.requests[name] = request

    def step(self) -> list[Event]:
        events = self.loop.step()
        self.clock.advance(1.0)
        self.events += events
        self.check()
        return events

    def land(self, which: Which = ALL, ok: bool = True) -> int:
        """End the pending copies that fit; their reports arrive with the next turn."""
        tickets = [ticket for ticket, move in self.mover.pending.items() if which(move)]
        for ticket in tickets:
            if ok:
                self.mover.finish(ticket)
            else:
                self.mover.fail(ticket)
        return len(tickets)

    def report(self, *reports: Report) -> None:
        """Hand the scheduler reports that no copy stands behind."""
        for report in reports:
            land(self.loop.queues, self.directory, self.loop.config, report, self.clock)

    def run(self, limit: int = 1000) -> int:
        """Turns until idle, every copy landing at once; how many."""
        for turn in range(limit):
            if not self.loop.busy:
                return turn
            self.land()
            self.step()
        raise AssertionError(f"still busy after {limit} turns: {self.loop.stats()}")

    def ask(self, name: str, prompt: Ints, max_tokens: int = 4, **options: object) -> AdmissionOutcome:
        """Serve one request from start to end, and check its answer."""
        self.submit(name, prompt, max_tokens, **options)  # type: ignore[arg-type]
        self.run()
        self.cold(name)
        return self.outcome(name)

    def drop(self, prompt: Ints, kv_from: int | None, rungs: tuple[int, ...] = (), tier: Tier = Tier.DEVICE) -> None:
        """Evict by hand; the bytes are poisoned."""
        forget(self.directory, prompt, tier, kv_from, rungs)
        self.check()

    # ---- looking ------------------------------------------------------------------------------------------

    @property
    def directory(self) -> Directory:
        return self.loop.directory

    @property
    def steps(self) -> list[Step]:
        return self.runner.steps

    def outcome(self, name: str) -> AdmissionOutcome:
        (event,) = [e for e in self.events if isinstance(e, Admitted) and e.request_id == name]
        return event.outcome

    def answer(self, name: str) -> list[int]:
        return [t for e in self.events if isinstance(e, Tokens) and e.request_id == name for t in e.tokens]

    def end(self, name: str) -> Finished:
        (event,) = [e for e in self.events if isinstance(e, Finished) and e.request_id == name]
        return event

    def ended(self, name: str) -> bool:
        return any(isinstance(e, Finished) and e.request_id == name for e in self.events)

    def history(self, name: str) -> Ints:
        """Prompt and answer."""
        return np.concatenate([self.requests[name].prompt, np.array(self.answer(name), np.int32)])

    def cold(self, *names: str) -> None:
        """These requests have ended, and said what a cold run says."""
        for name in names:
            request, said = self.requests[name], self.answer(name)
            assert self.end(name).reason in ("length", "stop"), self.end(name)
            assert said == answer(request.prompt, len(said), VOCAB, request.salt), f"{name} differs from its cold run"
            assert said

    def loading(self, name: str) -> Loading:
        return self.loop.queues.parked[name].loading

    def tables(self) -> list[tuple[Ints, int]]:
        """(private pages, promise) of everybody who has a table."""
        q = self.loop.queues
        held = [r.table for r in q.running]
        held += [p.loading.held.table for p in q.parked.values()]
        held += [x.table for x in q.leaving]
        held += [d.loading.held.table for d in q.draining]
        return [(table.private.copy(), table.promised) for table in held]

    def check(self) -> None:
        tables = self.tables()
        own = [held_pages(self.loop.queues), *(pages for pages, _ in tables)]
        own += [
            pages for built in self.loop.launched() for share in built.shares.values() for _, _, pages in share.rungs
        ]
        check(self.directory, own, sum(promised for _, promised in tables))
        for tier, pool in self.directory.pools.items():
            self.memory.poison(tier, pool.free_slots)
        self.check_bytes()
        for event in self.events:
            if isinstance(event, Admitted):
                o = event.outcome
                assert o.device + o.host + o.disk + o.recomputed == o.prompt and 0 <= o.cached < o.prompt
                assert sum(n for _, n in o.lost) == o.recomputed

    def check_bytes(self) -> None:
        """All that is cached, in every tier, is what its tokens give."""
        for salt, root in self.directory.tree.roots.items():
            below = [(child, child.tokens) for child in root.children.values()]
            while below:
                node, tokens = below.pop()
                digests, cells = content(tokens, salt)
                for tier, arena in self.memory.arenas.items():
                    if (slots := node.kv.at[tier]) is not None:
                        assert (arena[slots].reshape(-1, LAYERS) == cells[node.start :]).all(), node.kv
                    if node.rung is not None and (slots := node.rung.image.at[tier]) is not None:
                        state = self.memory.unpack(arena[slots]).tolist()
                        assert state == [int(digests[-1]), node.end], node.rung.image
                below += [(child, np.concatenate([tokens, child.tokens])) for child in node.children.values()]

    def drained(self) -> None:
        """Everything has ended: nothing is held, and every slot is free or cached."""
        stats = self.loop.stats()
        assert not self.loop.busy and stats.leases == 0 and stats.moves_in_flight == 0
        assert self.directory.reserved == 0
        for tier, pool in self.directory.pools.items():
            use = self.directory.use(tier)
            assert use.leased == 0 and use.free + use.cached == pool.total
        assert sorted(self.loop.queues.slots) == list(range(self.loop.config.max_num_seqs))
        for name in self.requests:
            assert isinstance(self.end(name), Finished)
