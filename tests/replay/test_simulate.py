"""The driver of a replay, against a loop that never forgets a block."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from stepwell.base.clock import VirtualClock
from stepwell.base.errors import CapacityError, StepwellError
from stepwell.base.geometry import Geometry
from stepwell.cache.config import CacheConfig
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.replay.lanes import LaneRules, Lanes, Timeline
from stepwell.replay.report import Course, Summary, summarise
from stepwell.replay.simulate import Phases, Simulation, timed_run
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.text import Text
from stepwell.replay.trace import Conversation, Stream, Trace, Turn
from stepwell.sched.config import SchedConfig
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Admitted, Event, Finished, Request, Tokens
from stepwell.sched.stats import EngineStats

BLOCK = 64


class EndlessMemory:
    """Serves everything at once in `seconds` a step, and remembers every prompt's whole blocks by their tokens."""

    def __init__(self, clock: VirtualClock, seconds: float = 0.5, longest: int = 10**9) -> None:
        self.clock, self.seconds, self.longest = clock, seconds, longest
        self.running: list[Request] = []
        self.kept: set[int] = set()

    @property
    def loop(self) -> EndlessMemory:
        return self

    def passes_until(self, when: float) -> int:
        return 1

    def stats(self) -> EngineStats:
        return EngineLoop(CacheConfig(Geometry(), 100), SchedConfig(), None, None, self.clock).stats()  # type: ignore[arg-type]

    @property
    def busy(self) -> bool:
        return bool(self.running)

    def submit(self, request: Request) -> None:
        if len(request.prompt) > self.longest:
            raise CapacityError("too long: raise the limit", len(request.prompt), self.longest)
        self.running.append(request)

    def step(self, most: int) -> list[Event]:
        self.clock.advance(self.seconds)
        events: list[Event] = []
        for request in self.running:
            events.append(Admitted(request.id, self._admit(request)))
            assert request.params.max_tokens is not None
            events.append(Tokens(request.id, (1,) * request.params.max_tokens))
            events.append(Finished(request.id, "length"))
        self.running.clear()
        return events

    def _admit(self, request: Request) -> AdmissionOutcome:
        data, total = request.prompt.tobytes(), len(request.prompt)
        fronts = [hash(data[: 4 * end]) for end in range(BLOCK, total + 1, BLOCK)]
        known = next((i for i, front in enumerate(fronts) if front not in self.kept), len(fronts))
        self.kept.update(fronts)
        cached = min(known * BLOCK, total - 1)
        tier = Tier.DEVICE if cached else None
        return AdmissionOutcome(request.id, total, cached, 0, 0, total - cached, cached, cached, tier, Reason.COMPLETE)


def replay(trace: Trace, lanes: int = 4, phases: Phases | None = None, longest: int = 10**9) -> Summary:
    clock = VirtualClock()
    source = Timeline(trace) if trace.open_loop else Lanes(trace.conversations, LaneRules(lanes=lanes, seed=2))
    loop = EndlessMemory(clock, longest=longest)
    simulation = Simulation(source, loop, Text(1), phases or Phases(200.0, 2000.0))
    wall = timed_run(simulation, Console(file=StringIO()))
    return summarise(simulation.ledger, Course("simulated", (), clock.now(), wall))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic(12, 3, Shape(scale=0.05, turns=(20, 0.5), agents=0.05, branch=0.15))


def test_a_cache_that_forgets_nothing_reaches_the_bound_exactly(trace: Trace) -> None:
    found = replay(trace)
    assert found.requests > 200
    assert found.admitted.device == found.bound
    assert found.excess == 0.0
    assert found.failed == 0
    assert found.requests < found.played
    assert found.measured_s == pytest.approx(2000.0, abs=1.0)
    assert all(0.5 <= seconds <= 1.0 for seconds in found.ttft), (
        "its own step, and what was left of the one that it came in"
    )
    assert max(found.ttft) > 0.75


def test_a_replay_is_the_same_again(trace: Trace) -> None:
    one, two = replay(trace), replay(trace)
    assert (one.admitted, one.bound, one.rows) == (two.admitted, two.bound, two.rows)


def test_refused_requests_fail_and_their_lane_goes_on(trace: Trace) -> None:
    found = replay(trace, longest=1500)
    assert 0 < found.requests < found.played
    assert found.failed > 0
    assert found.admitted.prompt / found.requests <= 1500


def test_an_open_loop_ends_with_its_last_answer() -> None:
    streams = tuple(Stream(float(i), (Turn(0.0, 100, 3, 0.0, ((0, 1),)),)) for i in range(5))
    found = replay(Trace((Conversation("m", 64, streams),), open_loop=True), phases=Phases(0.0, 1000.0))
    assert (found.played, found.requests, found.bound) == (5, 5, 4 * 64)
    assert found.course.end_s == pytest.approx(4.5)


def test_a_loop_that_stands_still_is_reported(trace: Trace) -> None:
    clock = VirtualClock()

    class Stuck(EndlessMemory):
        def step(self, most: int) -> list[Event]:
            return []

    source = Lanes(trace.conversations, LaneRules(lanes=1))
    with pytest.raises(StepwellError, match="no progress"):
        Simulation(source, Stuck(clock), Text(), Phases()).run()
