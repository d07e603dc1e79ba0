"""Bugs that the laws must notice, as they are planted: each replaces one function of cache/ or sched/."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

Patch = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, slots=True)
class Bug:
    """`laws` that may notice it first; 0 stands for an assertion of the code itself. `seed` is tried first: it found it before.
    `hints` of a hundred actions are hints, before `corrupt` of a hundred a byte goes wrong; `waits` of a hundred requests follow a
    grammar."""

    name: str
    laws: tuple[int, ...]
    plant: Patch
    seed: int
    hints: int = 4
    corrupt: int = 0
    waits: int = 0


BUGS: list[Bug] = []


def bug(*laws: int, seed: int = 0, hints: int = 4, corrupt: int = 0, waits: int = 0) -> Callable[[Patch], Patch]:
    def add(plant: Patch) -> Patch:
        BUGS.append(Bug(plant.__name__, laws, plant, seed, hints, corrupt, waits))
        return plant

    return add
