"""Whether answers draft: as long as that makes more tokens a second than going on one by one.

Steps with and without drafts are timed as the engine serves. The way that is thought slower is tried for a few steps now and then, so
that what is known of it stays true:

    decodes │ with drafts ……………………… │ without │ with drafts …………………………… │ without │
            │ 500 steps                 │ 12      │ 500                           │ 12

Steps are compared with steps of about as many answers. One counts from the end of the step before, if that was of the same kind: what the
host takes is part of it.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Protocol

from stepwell.sched.step import Step, StepResult

log = logging.getLogger(__name__)

EVERY, TRIED = 500, 12
"""Steps between two trials of the other way, and steps of a trial."""
LEAST = 5
"""Times of steps that say something of a way."""
_KEPT = 25
_SURE = 1.02
"""How much more the other way must make before it is gone over to: times scatter."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A collected step of decodes alone: how many, whether any had drafts, the tokens drawn, and the time at which it was there."""

    decodes: int
    drafting: bool
    tokens: int
    at: float


def timed(step: Step, result: StepResult, now: float) -> Timed | None:
    """What a step says that was collected `now`: nothing if there are prompts in it."""
    if any(not work.drafts for work in step.parts):
        return None
    return Timed(len(step), bool(step.parts), sum(map(len, result.sampled)), now)


class Gain(Protocol):
    """Decides for a step at a time. It changes how fast answers come, and never what they are."""

    def wants(self, decodes: int) -> bool:
        """Whether the next step, with so many answers, is to draft."""

    def saw(self, step: Timed | None) -> None:
        """A step has been collected; None: one that says nothing, with prompts in it."""


class Always:
    """Drafts whatever it costs: where no measured time may decide anything."""

    def wants(self, decodes: int) -> bool:
        return True

    def saw(self, step: Timed | None) -> None:
        return None


@dataclass(slots=True)
class _Way:
    """What the last steps of one way took, and how many tokens each made for an answer."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    tokens: deque[float] = field(default_factory=lambda: deque(maxlen=4 * _KEPT))

    @property
    def rate(self) -> float | None:
        """Tokens a second for an answer; None: not known yet."""
        if len(self.seconds) < LEAST or not median(self.seconds) > 0:
            return None
        return fmean(self.tokens) / median(self.seconds)


@dataclass(slots=True)
class _Class:
    """Steps of about as many answers: `ways` without drafts and with them."""

    ways: tuple[_Way, _Way] = field(default_factory=lambda: (_Way(), _Way()))
    drafts: bool = True
    steps: int = 0

    @property
    def wants(self) -> bool:
        return self.drafts if self.steps < EVERY else not self.drafts

    def count(self) -> None:
        """One more step. O(times kept) at a trial's end, else O(1)."""
        self.steps += 1
        if self.steps == EVERY + TRIED:
            self._judge()
            self.steps = 0

    def _judge(self) -> None:
        rates = [way.rate for way in self.ways]
        own, other = rates[self.drafts], rates[not self.drafts]
        if own is not None and other is not None and other > _SURE * own:
            self.drafts = not self.drafts
            word = "on" if self.drafts else "off"
            log.info(
                "drafts are turned %s for now: %.1f tokens/s an answer with them, %.1f without",
                word,
                rates[1],
                rates[0],
            )


class Measured:
    """By what steps take."""

    __slots__ = ("_before", "_classes")

    def __init__(self) -> None:
        self._classes: dict[int, _Class] = {}
        self._before: Timed | None = None

    def wants(self, decodes: int) -> bool:
        return self._class(decodes).wants

    def saw(self, step: Timed | None) -> None:
        before, self._before = self._before, step
        if step is None or not step.decodes:
            return
        self._class(step.decodes).count()
        if before is not None and (before.decodes, before.drafting) == (step.decodes, step.drafting):
            way = self._class(step.decodes).ways[step.drafting]
            way.seconds.append(step.at - before.at)
            way.tokens.append(step.tokens / step.decodes)

    def _class(self, decodes: int) -> _Class:
        """Of 1, 2 to 3, 4 to 7 … answers."""
        known = self._classes.get(decodes.bit_length())
        if known is None:
            # the first trial comes soon: nothing is known of either way
            known = self._classes[decodes.bit_length()] = _Class(steps=EVERY - 2 * TRIED)
        return known
