"""How many drafts an answer's next step computes, how many were accepted, and whether answers draft at all.

Answers draft as long as that makes more tokens a second. Steps with and without drafts are timed as the engine serves. The way that is
thought slower is tried for a few steps now and then, so that what is known of it stays true:

    decodes │ with drafts ……………………… │ without │ with drafts …………………………… │ without │
            │ 500 steps                 │ 12      │ 500                           │ 12

Steps are compared with steps of about as many answers. One counts from the end of the step before, if that was of the same kind: what the
host takes is part of it.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Protocol

from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import free_pages
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Running
from stepwell.sched.step import Step, StepResult

log = logging.getLogger(__name__)

LEAST_KNOWN, LEAST_SHARE = 1000, 0.2
"""Drafts after which their share that was right is looked at, and the share below which it is told."""


@dataclass(slots=True)
class DraftCounts:
    """Drafts that were computed, and those of them that were accepted, by position: 1 for the first behind a drawn token.

    The log says so once where the first `LEAST_KNOWN` are hardly ever right.
    """

    computed: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)

    def add(self, drafts: int, drawn: int) -> None:
        """An answer's step had so many drafts, and has drawn so many tokens."""
        self.computed.update(range(1, drafts + 1))
        self.accepted.update(range(1, min(drafts + 1, drawn)))
        if drafts and self.computed[1] == LEAST_KNOWN and self.accepted[1] < LEAST_SHARE * LEAST_KNOWN:
            log.warning(
                "of the first %d drafts %d were right: they are turned off where they cost more than they save; "
                "is this checkpoint's draft layer (mtp.*) trained?",
                LEAST_KNOWN,
                self.accepted[1],
            )


def drafts_of(directory: Directory, config: SchedConfig, running: Running) -> int:
    """Drafts that the next decode of an answer computes; none where none were made behind its last step, or where the next token depends
    on the last in ways that the model does not know of.

    Takes the pages for these, and for those that the runner drafts next, if they are had at nobody's cost.
    """
    job, start = running.job, running.launched
    if not running.guessed or job.looks_back or not running.goes_on:
        return 0
    wanted = min(config.drafts, job.limit - running.drawn - 1)
    count = directory.config.geometry.pages_for(min(job.limit, start + 1 + 2 * config.drafts)) - len(running.table)
    if wanted and count > 0 and is_idle(directory, count):
        directory.grow(running.table, count)
    return min(wanted, len(running.table) * directory.tree.block - start - 1)


def is_idle(directory: Directory, count: int) -> bool:
    """Whether `count` pages can be taken at no one's cost; if so, they are free now."""
    return directory.spendable >= count and free_pages(directory, count)


EVERY, TRIED = 500, 12
"""Steps between two trials of the other way, and steps of a trial."""
LEAST = 5
"""Times of steps that say something of a way."""
_KEPT = 25
_SURE = 1.02
"""How much more the other way must make before it is gone over to: times scatter."""


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """A collected step of decodes alone: how many, whether any had drafts, the tokens drawn, and the time at which it was there."""

    decodes: int
    drafting: bool
    tokens: int
    at: float


def decode_time(step: Step, result: StepResult, now: float) -> DecodeTime | None:
    """What a step says that was collected `now`: nothing if there are prompts in it."""
    if any(not work.drafts for work in step.parts):
        return None
    return DecodeTime(len(step), bool(step.parts), sum(map(len, result.sampled)), now)


class Gain(Protocol):
    """Decides for a step at a time. It changes how fast answers come, and never what they are."""

    def wants(self, decodes: int) -> bool:
        """Whether the next step, with so many answers, is to draft."""

    def saw(self, step: DecodeTime | None) -> None:
        """A step has been collected; None: one that says nothing, with prompts in it."""


class Always:
    """Drafts whatever it costs: where no measured time may decide anything."""

    def wants(self, decodes: int) -> bool:
        return True

    def saw(self, step: DecodeTime | None) -> None:
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
        self._before: DecodeTime | None = None

    def wants(self, decodes: int) -> bool:
        return self._class(decodes).wants

    def saw(self, step: DecodeTime | None) -> None:
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
