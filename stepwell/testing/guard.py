"""A runner under watch, which computes as late or as early as a device may."""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from stepwell.sched.step import Runner, Step, StepResult


class Judge(Protocol):
    """Hears of a step three times."""

    def launching(self, step: Step) -> None:
        """It is about to be launched."""

    def compute(self, runner: Runner, step: Step) -> StepResult:
        """It is to be computed now."""

    def collected(self, step: Step, result: StepResult) -> StepResult:
        """It has been computed, and the loop is about to hear what comes back from here."""


@dataclass(slots=True, eq=False)
class Guard:
    """A runner that lets a step run only if it is lawful, and looks at what it did.

    A device computes at any time between launch and result. Here it is one of the two, as `lazy` draws: at once, or last.
    """

    judge: Judge
    inner: Runner
    lazy: random.Random
    behind: deque[Flight] = field(default_factory=deque)

    def launch(self, step: Step) -> Flight:
        self.judge.launching(step)
        flight = Flight(self, step)
        self.behind.append(flight)
        if self.lazy.random() < 0.5:
            self.catch_up(flight)
        return flight

    def catch_up(self, flight: Flight) -> None:
        """Compute what was launched, up to `flight`, in order."""
        while flight.computed is None:
            first = self.behind.popleft()
            first.computed = self.judge.compute(self.inner, first.step)


@dataclass(slots=True, eq=False)
class Flight:
    """A launched step, which may not have been computed yet."""

    guard: Guard
    step: Step
    computed: StepResult | None = None

    def result(self) -> StepResult:
        self.guard.catch_up(self)
        assert self.computed is not None
        return self.guard.judge.collected(self.step, self.computed)
