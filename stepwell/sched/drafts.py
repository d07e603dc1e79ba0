"""How many drafts the next step of an answer computes, how many were accepted, and whether answers draft at all.

Answers draft as long as that gives more tokens a second. Steps with and without drafts are timed while the engine serves. The way that
seems slower is tried for a few steps now and then, so that its estimate stays current:

    decodes │ with drafts ……………………… │ without │ with drafts …………………………… │ without │
            │ 500 steps                 │ 12      │ 500                           │ 12

Steps are compared with steps of about as many answers. A step is timed from the end of the step before, if that was of the same kind, so
that the time of the host is included.
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
"""Number of drafts after which the share of right ones is checked, and the share below which a warning is logged."""


@dataclass(slots=True)
class DraftCounts:
    """Numbers of drafts computed and accepted, by position: 1 for the first behind a drawn token.

    Logs a warning once if few of the first `LEAST_KNOWN` are right.
    """

    computed: Counter[int] = field(default_factory=Counter)
    accepted: Counter[int] = field(default_factory=Counter)

    def add(self, drafts: int, drawn: int) -> None:
        """Count a step of an answer that had `drafts` drafts and drew `drawn` tokens."""
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
    """Number of drafts that the next decode of an answer computes. 0 if its last step made none, or if its next token depends on the last
    one outside the model (a grammar, penalties).

    Takes the pages for these, and for those that the runner drafts next, if enough pages are idle.
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
    """True if `count` pages are free or clean and not promised. Frees them if so."""
    return directory.spendable >= count and free_pages(directory, count)


EVERY, TRIED = 500, 12
"""Steps from one trial of the other way to the next, and steps of a trial."""
LEAST = 5
"""Number of timed steps that give an estimate of a way."""
_KEPT = 25
_SURE = 1.02
"""Ratio by which the other way must be faster before it is chosen, since times scatter."""


@dataclass(frozen=True, slots=True)
class DecodeTime:
    """A collected step of decodes alone: how many, whether any had drafts, the tokens drawn, and when it was collected."""

    decodes: int
    drafting: bool
    tokens: int
    at: float


def decode_time(step: Step, result: StepResult, now: float) -> DecodeTime | None:
    """The timing of a step that was collected `now`. None if it computed prompts."""
    if any(not work.drafts for work in step.parts):
        return None
    return DecodeTime(len(step), bool(step.parts), sum(map(len, result.sampled)), now)


class Gain(Protocol):
    """Decides for each step whether answers draft. It changes the speed of answers, never their tokens."""

    def wants(self, decodes: int) -> bool:
        """True if the next step, with `decodes` answers, is to draft."""

    def saw(self, step: DecodeTime | None) -> None:
        """Note a collected step; None: one with prompts."""


class Always:
    """Always drafts, for engines in which measured times must not decide anything."""

    def wants(self, decodes: int) -> bool:
        return True

    def saw(self, step: DecodeTime | None) -> None:
        return None


@dataclass(slots=True)
class _Way:
    """Times of the last steps of one way, and the tokens that each gave an answer."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    tokens: deque[float] = field(default_factory=lambda: deque(maxlen=4 * _KEPT))

    @property
    def rate(self) -> float | None:
        """Tokens a second for an answer. None if not known yet."""
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
    """Decides by the measured times of steps."""

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
            # the first trial comes soon, since nothing is known of either way
            known = self._classes[decodes.bit_length()] = _Class(steps=EVERY - 2 * TRIED)
        return known
