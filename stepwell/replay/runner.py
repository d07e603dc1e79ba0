"""What stands in for a GPU and its copy engine in a simulation: a runner and a mover that only let time pass."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Protocol, TypeAlias

from stepwell.base.clock import Clock
from stepwell.cache.moves import Report, Task, Tier, moves_of
from stepwell.replay.cost import CostModel, direction
from stepwell.sched.step import Step, StepResult

ANSWER_TOKEN = 1
"""Every sampled token. Replayed requests run to their recorded length, so none of them ends an answer."""


class Advancing(Clock, Protocol):
    """A clock that can be told to stand at a time, or wait for it."""

    def advance_to(self, when: float) -> None: ...


class CostRunner:
    """Lets the time pass that steps would take, one after the other; computes nothing.

    passes  decode passes that the next step to be launched stands for (`stepwell.replay.leap`)
    """

    __slots__ = ("_clock", "_costs", "_free_at", "passes", "steps")

    def __init__(self, clock: Advancing, costs: CostModel) -> None:
        self._clock = clock
        self._costs = costs
        self._free_at = 0.0
        self.passes = 1
        self.steps = 0

    def launch(self, step: Step) -> Timed:
        passes, self.passes = self.passes, 1
        self._free_at = max(self._clock.now(), self._free_at) + self._costs.step_seconds(step, passes)
        self.steps += passes
        answer = (ANSWER_TOKEN,) * passes
        drawn = [() if work.sample is None else answer for work in step.parts]
        told = StepResult((answer,) * len(step.decodes) + tuple(drawn))
        return Timed(self._clock, self._free_at, told)


@dataclass(frozen=True, slots=True)
class Timed:
    """A step that ends at `ends`."""

    clock: Advancing
    ends: float
    told: StepResult

    def result(self) -> StepResult:
        """The clock stands at the end of the step at least, when it comes back."""
        self.clock.advance_to(self.ends)
        return self.told


Way: TypeAlias = tuple[Tier, Tier]
"""From, to."""
TRAFFIC_S = 1.0
"""Copied bytes are noted by second of virtual time."""


class Links:
    """Between tiers: one direction copies one thing at a time; directions run side by side.

    bytes_moved  by direction and second in which the copy ended     images  of those copies, how many were of images
    """

    __slots__ = ("_clock", "_costs", "_free_at", "bytes_moved", "images")

    def __init__(self, clock: Advancing, costs: CostModel) -> None:
        self._clock = clock
        self._costs = costs
        self._free_at: dict[Way, float] = {}
        self.bytes_moved: dict[Way, Counter[int]] = defaultdict(Counter)
        self.images: dict[Way, Counter[int]] = defaultdict(Counter)

    def send(self, way: Way, size: int, images: int = 0) -> float:
        """Queue a copy of `size` bytes, `images` images among them; when it ends, in s."""
        ends = max(self._clock.now(), self._free_at.get(way, 0.0)) + self._costs.way_seconds(way, size)
        self._free_at[way] = ends
        second = int(ends / TRAFFIC_S)
        self.bytes_moved[way][second] += size
        if images:
            self.images[way][second] += images
        return ends


class VirtualMover:
    """Copies that take time on `links` and touch nothing."""

    __slots__ = ("_clock", "_done", "_links", "_page_bytes", "_serial")

    def __init__(self, clock: Advancing, links: Links, page_bytes: int) -> None:
        self._clock = clock
        self._links = links
        self._page_bytes = page_bytes
        self._done: list[tuple[float, int, int]] = []
        self._serial = 0

    def start(self, tasks: Sequence[Task]) -> None:
        for move in moves_of(tasks):
            size = len(move.source.slots) * self._page_bytes
            ends = self._links.send(direction(move), size, images=move.what == "image")
            heappush(self._done, (ends, self._serial, move.ticket))
            self._serial += 1

    def poll(self) -> list[Report]:
        reports: list[Report] = []
        while self._done and self._done[0][0] <= self._clock.now():
            reports.append(Report(heappop(self._done)[2], ok=True))
        return reports

    def next_time(self) -> float | None:
        """When the next copy ends; None while nothing moves."""
        return self._done[0][0] if self._done else None

    def wait(self, seconds: float) -> None:
        end = self._clock.now() + seconds
        self._clock.advance_to(end if not self._done else min(end, self._done[0][0]))
