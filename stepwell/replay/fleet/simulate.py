"""A trace played through several engines at once.

Each replica is a `Machine` with a clock of its own. The one whose clock is furthest behind takes the next step:

    a  ──step──▶│
    b  ──────────step──▶│            c has the earliest clock: it steps next
    c  ─▶│
          └ now: requests due by now are routed, by what each replica is at the end of its own step

A step never ends before `now`, so nothing is routed by a past that is over. Decodes that nothing on their own machine can interrupt are
taken in one step (`stepwell.replay.leap`), up to `AHEAD_S` beyond now. A request that comes to the machine meanwhile is taken to come at
the end of that step: it is sent late, by `AHEAD_S` at most, and its time to the first token counts from there. One that comes within a
step with prompts in it waits for its end, as it would.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from stepwell.base.errors import CapacityError, RequestError, StepwellError
from stepwell.replay.fleet.routing import Arrival, Routing
from stepwell.replay.lanes import Source, TraceRequest
from stepwell.replay.ledger import Ledger
from stepwell.replay.machine import Machine
from stepwell.replay.report import Traffic, way_name
from stepwell.replay.runner import TRAFFIC_S, Way
from stepwell.replay.simulate import MOST_TURNS_AT_ONCE, Phases, ProgressBar
from stepwell.replay.text import Text
from stepwell.sched.request import Admitted, Event, Finished, Request, SamplingParams, Tokens

AHEAD_S = 0.5


@dataclass(slots=True)
class FleetSimulation:
    """One replay in the making. `run` ends with the phases, or once the source has nothing left.

    computed  tokens of prompts that each replica computed in the measured phase
    moves     requests that went to another replica than the one before of their session
    """

    source: Source
    machines: Sequence[Machine]
    routing: Routing
    text: Text
    phases: Phases
    ledger: Ledger = field(init=False)
    computed: list[int] = field(init=False)
    moves: int = 0
    _open: dict[str, tuple[TraceRequest, int]] = field(default_factory=dict)
    _loads: list[int] = field(init=False)
    _homes: dict[str, int] = field(default_factory=dict)
    _clocks: list[tuple[float, int]] = field(default_factory=list)
    _stuck: list[int] = field(init=False)
    _leapt: list[bool] = field(init=False)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.phases.warmup)
        self.computed, self._loads, self._stuck = ([0] * len(self.machines) for _ in range(3))
        self._leapt = [False] * len(self.machines)

    @property
    def end(self) -> float:
        """The time that the furthest clock shows."""
        return min(self.phases.end, max(machine.clock.now() for machine in self.machines))

    def run(self, progress: ProgressBar | None = None) -> None:
        """Play it all. Raises StepwellError where no time passes any more."""
        while (now := self._now()) is not None and now < self.phases.end:
            for request in self.source.due(now):
                self._send(request, now)
            if self._clocks:
                self._step(now)
            if progress is not None:
                progress.show(now, self.ledger.played)
        self.ledger.abandon(self.end)

    def _now(self) -> float | None:
        """When something happens next; None: never."""
        upcoming = self.source.next_time()
        if not self._clocks:
            return upcoming
        return self._clocks[0][0] if upcoming is None else min(self._clocks[0][0], max(upcoming, 0.0))

    def _step(self, now: float) -> None:
        """One step of the replica that is furthest behind, if that is where time goes on."""
        behind, number = self._clocks[0]
        if behind > now:
            return
        heappop(self._clocks)
        machine = self.machines[number]
        passes = machine.steps
        for event in machine.loop.step(machine.passes_until(behind + AHEAD_S)):
            self._hear(event, machine.clock.now())
        self._leapt[number] = machine.steps > passes + 1
        if machine.loop.busy:
            self._wait_for(number, behind)

    def _wait_for(self, number: int, before: float) -> None:
        """The replica has more to do. Raises StepwellError where it gets no further."""
        now = self.machines[number].clock.now()
        self._stuck[number] = 0 if now > before else self._stuck[number] + 1
        if self._stuck[number] > MOST_TURNS_AT_ONCE:
            raise StepwellError(f"no progress at {now:.1f} s in replica {number}, {self._loads[number]} requests open")
        heappush(self._clocks, (now, number))

    def _send(self, request: TraceRequest, now: float) -> None:
        prompt = self.text.prompt(request.conversation, request.stream, request.index, request.edition)
        number = self.routing.route(Arrival(request, prompt, self._loads, now))
        self.moves += self._homes.setdefault(request.session, number) != number
        self._homes[request.session] = number
        machine = self.machines[number]
        if not machine.loop.busy:
            machine.clock.advance_to(max(now, machine.clock.now()))
            heappush(self._clocks, (machine.clock.now(), number))
        self._open[request.id] = request, number
        self._loads[number] += 1
        self.ledger.send(request, machine.clock.now() if self._leapt[number] else now)
        params = SamplingParams(max_tokens=request.output, ignore_eos=True)
        try:
            machine.loop.submit(Request(request.id, prompt, params, session=request.session))
        except (RequestError, CapacityError):
            self._end(request.id, True, now)

    def _hear(self, event: Event, now: float) -> None:
        match event:
            case Tokens(request_id=name, tokens=tokens):
                self.ledger.answer(name, len(tokens), now)
            case Admitted(outcome=outcome):
                self.ledger.admit(outcome, now)
                if now >= self.phases.warmup:
                    self.computed[self._open[outcome.request_id][1]] += outcome.recomputed
            case Finished(request_id=name, reason=reason):
                self._end(name, reason not in ("length", "stop"), now)

    def _end(self, name: str, failed: bool, now: float) -> None:
        request, number = self._open.pop(name)
        self._loads[number] -= 1
        self.ledger.finish(name, failed, now)
        self.source.finished(request, now)


def traffic_of(machines: Sequence[Machine], end: float) -> Traffic:
    """What the links of all replicas noted, up to `end`."""
    moved: dict[Way, Counter[int]] = defaultdict(Counter)
    for machine in machines:
        for way, at in machine.links.bytes_moved.items():
            moved[way].update(at)
    count = int(end / TRAFFIC_S) + 1
    return Traffic(
        TRAFFIC_S, tuple((way_name(*way), tuple(at[i] for i in range(count))) for way, at in sorted(moved.items()))
    )
