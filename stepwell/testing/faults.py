"""Movers for tests: copies that end when told, and copies that go wrong as planned.

    plan = (
        FaultPlan(random.Random(7))
        .delay(Where("kv", Tier.HOST), polls=3)
        .fail(Where(target=LIVE), count=1)
        .drop(chance=0.01)
        .reorder(0.5)
    )
    mover = FaultyMover(CopyMover(copier), plan)

`copy` below is whatever carries out one move, such as `stepwell.store.copier.HostCopier(...).copy`; an exception it
raises is reported, as by a real mover. Nothing here needs torch or a thread.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal, TypeAlias

from stepwell.base.clock import Clock, WallClock
from stepwell.cache.moves import Extent, LiveState, Move, Report, Task, Tier, moves_of
from stepwell.sched.step import Mover

Copy: TypeAlias = Callable[[Move], None]
Copied: TypeAlias = Literal["none", "half", "all"]


def no_copy(move: Move) -> None:
    """Copies nothing: for tests in which only the reports matter."""


class _Live(Enum):
    LIVE = "live"


LIVE = _Live.LIVE
"""A live state, as the target of a `Where`."""


@dataclass(frozen=True, slots=True)
class Where:
    """Which moves a fault befalls; None is any."""

    what: Literal["kv", "image"] | None = None
    source: Tier | None = None
    target: Tier | _Live | None = None

    def fits(self, move: Move) -> bool:
        target = LIVE if isinstance(move.target, LiveState) else move.target.tier
        return (
            self.what in (None, move.what)
            and self.source in (None, move.source.tier)
            and (self.target is None or self.target is target)
        )


ANYWHERE = Where()


@dataclass(frozen=True, slots=True)
class Fate:
    """What befalls one move. The default is nothing."""

    polls: int = 0
    seconds: float = 0.0
    error: str | None = None
    copied: Copied = "none"
    dropped: bool = False
    twice: bool = False


@dataclass(slots=True)
class _Rule:
    where: Where
    chance: float
    left: int | None
    change: Callable[[Fate], Fate]


class FaultPlan:
    """Faults, in the order in which they are added; each call returns the plan, so that they chain.

    where    the moves it may befall
    count    how many of these at most; None is no limit
    chance   with what probability, drawn from the plan's own `random.Random`

    A move can meet several. The same plan, seed and moves give the same faults.
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self.rng = rng or random.Random(0)
        self.shuffle = 0.0
        self._rules: list[_Rule] = []

    def delay(
        self,
        where: Where = ANYWHERE,
        *,
        polls: int = 0,
        seconds: float = 0.0,
        count: int | None = None,
        chance: float = 1,
    ) -> FaultPlan:
        """Start the copy only `polls` polls and `seconds` later: its bytes are late, and not just its report."""
        return self._add(
            where, count, chance, lambda fate: replace(fate, polls=fate.polls + polls, seconds=fate.seconds + seconds)
        )

    def fail(
        self,
        where: Where = ANYWHERE,
        *,
        copied: Copied = "none",
        error: str = "injected failure",
        count: int | None = None,
        chance: float = 1,
    ) -> FaultPlan:
        """Report a failure, with none, half or all of the slots copied (half of an image to a live state is none)."""
        return self._add(where, count, chance, lambda fate: replace(fate, error=error, copied=copied))

    def drop(self, where: Where = ANYWHERE, *, count: int | None = None, chance: float = 1) -> FaultPlan:
        """Copy, and lose the report: it waits in `FaultyMover.lost`."""
        return self._add(where, count, chance, lambda fate: replace(fate, dropped=True))

    def duplicate(self, where: Where = ANYWHERE, *, count: int | None = None, chance: float = 1) -> FaultPlan:
        """Report again at the next poll."""
        return self._add(where, count, chance, lambda fate: replace(fate, twice=True))

    def reorder(self, chance: float) -> FaultPlan:
        """Shuffle the reports of each poll, after keeping each back for the next one with this probability."""
        self.shuffle = chance
        return self

    def fate(self, move: Move) -> Fate:
        """What befalls this move; uses up the faults that count."""
        fate = Fate()
        for rule in self._rules:
            if rule.left == 0 or not rule.where.fits(move) or (rule.chance < 1 and self.rng.random() >= rule.chance):
                continue
            fate = rule.change(fate)
            if rule.left is not None:
                rule.left -= 1
        return fate

    def _add(self, where: Where, count: int | None, chance: float, change: Callable[[Fate], Fate]) -> FaultPlan:
        self._rules.append(_Rule(where, chance, count, change))
        return self


@dataclass(slots=True)
class _Held:
    move: Move
    fate: Fate
    polls: int
    due: float


class FaultyMover:
    """Any mover, with the faults of a plan.

    tally   how often each fault was injected: "delayed", "failed", "dropped", "duplicated"
    lost    reports that were dropped; hand one to `deliver` to have it after all
    """

    def __init__(self, inner: Mover, plan: FaultPlan, clock: Clock | None = None) -> None:
        self.tally: Counter[str] = Counter()
        self.lost: list[Report] = []
        self._inner = inner
        self._plan = plan
        self._clock = clock or WallClock()
        self._held: list[_Held] = []
        self._fates: dict[int, Fate] = {}
        self._ready: list[Report] = []

    def start(self, tasks: Sequence[Task]) -> None:
        for move in tasks:
            if not isinstance(move, Move):
                self._inner.start([move])
                continue
            fate = self._plan.fate(move)
            if fate.polls or fate.seconds:
                self.tally["delayed"] += 1
                self._held.append(_Held(move, fate, fate.polls, self._clock.now() + fate.seconds))
            else:
                self._release(move, fate)

    def poll(self) -> list[Report]:
        self._age()
        reports, self._ready = self._ready, []
        for report in self._inner.poll():
            reports += self._befall(report)
        if not self._plan.shuffle:
            return reports
        kept = [self._plan.rng.random() < self._plan.shuffle for _ in reports]
        self._ready += [report for report, keep in zip(reports, kept, strict=True) if keep]
        reports = [report for report, keep in zip(reports, kept, strict=True) if not keep]
        self._plan.rng.shuffle(reports)
        return reports

    def wait(self, seconds: float) -> None:
        """Returns at once where only another poll is waited for."""
        if self._ready or any(held.polls for held in self._held):
            return
        due = min((held.due - self._clock.now() for held in self._held), default=seconds)
        self._inner.wait(max(0.0, min(seconds, due)))

    def deliver(self, report: Report) -> None:
        """Have this report, of any ticket, in the next poll."""
        self._ready.append(report)

    def _age(self) -> None:
        held, self._held = self._held, []
        for one in held:
            if one.polls == 0 and one.due <= self._clock.now():
                self._release(one.move, one.fate)
            else:
                one.polls = max(0, one.polls - 1)
                self._held.append(one)

    def _release(self, move: Move, fate: Fate) -> None:
        if fate.error is not None:
            self.tally["failed"] += 1
            move = _half(move) if fate.copied == "half" else move
            if fate.copied == "none" or not len(move.source.slots):
                self._ready += self._end(Report(move.ticket, False, fate.error), fate)
                return
        self._fates[move.ticket] = fate
        self._inner.start([move])

    def _befall(self, report: Report) -> list[Report]:
        fate = self._fates.pop(report.ticket, Fate())
        return self._end(report if fate.error is None else Report(report.ticket, False, fate.error), fate)

    def _end(self, report: Report, fate: Fate) -> list[Report]:
        if fate.dropped:
            self.tally["dropped"] += 1
            self.lost.append(report)
            return []
        if fate.twice:
            self.tally["duplicated"] += 1
            self._ready.append(report)
        return [report]


def _half(move: Move) -> Move:
    """The first half of a move; of a move to a live state, nothing."""
    if isinstance(move.target, LiveState):
        return replace(move, source=Extent(move.source.tier, move.source.slots[:0]))
    count = len(move.source.slots) // 2
    source, target = (Extent(side.tier, side.slots[:count]) for side in (move.source, move.target))
    return replace(move, source=source, target=target)


class InstantMover:
    """Copies as it is told to; the report is there at the next poll."""

    def __init__(self, copy: Copy = no_copy) -> None:
        self._copy = copy
        self._reports: list[Report] = []

    def start(self, tasks: Sequence[Task]) -> None:
        self._reports += [_carry_out(self._copy, move) for move in moves_of(tasks)]

    def poll(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports

    def wait(self, seconds: float) -> None:
        return


class ManualMover:
    """Holds every move in `pending`, by ticket, until the test ends it: the bytes move then, and not before."""

    def __init__(self, copy: Copy = no_copy) -> None:
        self.pending: dict[int, Move] = {}
        self._copy = copy
        self._reports: list[Report] = []

    def start(self, tasks: Sequence[Task]) -> None:
        self.pending |= {move.ticket: move for move in moves_of(tasks)}

    def poll(self) -> list[Report]:
        reports, self._reports = self._reports, []
        return reports

    def wait(self, seconds: float) -> None:
        return

    def finish(self, ticket: int) -> None:
        """Copy and report. KeyError if the ticket is not pending."""
        self._reports.append(_carry_out(self._copy, self.pending.pop(ticket)))

    def fail(self, ticket: int, error: str = "failed by hand") -> None:
        """Report a failure; nothing is copied. KeyError if the ticket is not pending."""
        del self.pending[ticket]
        self._reports.append(Report(ticket, False, error))

    def finish_all(self) -> None:
        """Finish what is pending, in the order in which it was started."""
        for ticket in list(self.pending):
            self.finish(ticket)


def _carry_out(copy: Copy, move: Move) -> Report:
    try:
        copy(move)
    except Exception as error:
        return Report(move.ticket, False, f"{type(error).__name__}: {error}")
    return Report(move.ticket, True)
