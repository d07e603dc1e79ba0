"""Faults on demand between an engine and its copies: for tests of a whole server. Without `--fault` nothing of this is there."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Move, Report, Task, Tier
from stepwell.sched.step import Mover
from stepwell.store.arena import Rows
from stepwell.store.disk.files import Point
from stepwell.testing.disk import FaultyFiles
from stepwell.testing.faults import FaultyMover
from stepwell.testing.faultspec import Corruption, Faults, files_of, plan_of, point_of

Flip = Callable[[int, int], None]
"""Flip this bit (counted over the whole page) of what this slot holds."""


def flipper(rows: Rows | Tensor) -> Flip:
    """Flips bits of an arena's rows, uint8 [slots, page_bytes]."""

    def flip(slot: int, bit: int) -> None:
        rows[slot, bit // 8] ^= 1 << bit % 8

    return flip


class CorruptingMover:
    """Any mover, behind one that flips a bit of what some copies are about to read. `flips` by tier of what can be reached."""

    def __init__(
        self, inner: Mover, rules: Sequence[Corruption], flips: Mapping[Tier, Flip], page_bytes: int, rng: random.Random
    ) -> None:
        self.tally: Counter[Tier] = Counter()
        self._inner = inner
        self._rules = list(rules)
        self._flips = flips
        self._bits = 8 * page_bytes
        self._rng = rng

    def start(self, tasks: Sequence[Task]) -> None:
        for task in tasks:
            if isinstance(task, Move) and len(task.source.slots) and self._meets(task):
                self._flip(task.source.tier, task.source.slots)
        self._inner.start(tasks)

    def poll(self) -> list[Report]:
        return self._inner.poll()

    def wait(self, seconds: float) -> None:
        self._inner.wait(seconds)

    def _meets(self, move: Move) -> bool:
        """Whether a rule befalls this copy; uses up the ones that count."""
        met = False
        for at, rule in enumerate(self._rules):
            fits = rule.tier == move.source.tier and rule.what in (None, move.what) and rule.count != 0
            if not fits or self._rng.random() >= rule.chance:
                continue
            met = True
            if rule.count is not None:
                self._rules[at] = replace(rule, count=rule.count - 1)
        return met

    def _flip(self, tier: Tier, slots: Ints) -> None:
        self.tally[tier] += 1
        self._flips[tier](int(self._rng.choice(slots.tolist())), self._rng.randrange(self._bits))


def faulty_mover(
    mover: Mover, faults: Faults, flips: Mapping[Tier, Flip], page_bytes: int, rng: random.Random
) -> Mover:
    """`mover` with the faults of copies; itself where there are none. A tier without `flips` is not corrupted."""
    rules = [rule for rule in faults.corruptions if rule.tier in flips]
    if rules:
        mover = CorruptingMover(mover, rules, flips, page_bytes, rng)
    return FaultyMover(mover, plan_of(faults, rng)) if faults.moves else mover


def faulty_disk(faults: Faults, rng: random.Random) -> tuple[FaultyFiles, Point]:
    """What a disk store is to be opened with: `Options(files=…, points=…)`."""
    return files_of(faults, rng), point_of(faults, _die)


def _die() -> None:
    """As a power cut or the kernel would end this process: nothing is flushed, nothing is told."""
    os.kill(os.getpid(), signal.SIGKILL)
