"""What every arena offers to the copies: its rows, and a word before they are read and after they are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.base.errors import StoreError
from stepwell.base.geometry import Ints

Rows: TypeAlias = npt.NDArray[np.uint8]
"""Bytes of n slots, [n, page_bytes]."""


class Arena(Protocol):
    """Slots of one page each in memory that this process can address."""

    @property
    def rows(self) -> Rows:
        """The memory itself, [slots, page_bytes]: row i is slot i."""

    def check(self, slots: Ints) -> None:
        """StoreError unless these slots may be read."""

    def seal(self, slots: Ints, source: Iterable[Rows]) -> None:
        """These slots have been written; `source` yields, slot by slot, the bytes that they should now hold."""


class PlainArena:
    """An arena without checksums over memory that someone else owns: `PlainArena(device_arena.rows.numpy())` on the CPU."""

    __slots__ = ("_rows",)

    def __init__(self, rows: Rows) -> None:
        assert rows.ndim == 2 and rows.dtype == np.uint8
        self._rows = rows

    @property
    def rows(self) -> Rows:
        return self._rows

    def check(self, slots: Ints) -> None:
        return

    def seal(self, slots: Ints, source: Iterable[Rows]) -> None:
        return


class LiveImages(Protocol):
    """The live states, as the target of a state leg."""

    def load_image(self, slot: int, image: Rows) -> None:
        """Set live slot `slot` from an image: uint8 [pages · page_bytes], padded at its end to whole pages."""


def check_slots(slots: Ints, count: int, where: str) -> None:
    """StoreError unless every slot number is in [0, count): numpy would clip or wrap it in silence."""
    if len(slots) and (int(slots.min()) < 0 or int(slots.max()) >= count):
        raise StoreError(f"a move names slots {slots.min()} … {slots.max()} of {where}, which has {count} slots")


def as_slice(slots: Ints) -> slice | None:
    """The slice that these slots are, if they are consecutive and ascending."""
    if not len(slots):
        return slice(0, 0)
    first, last = int(slots[0]), int(slots[-1])
    if last - first != len(slots) - 1 or (len(slots) > 2 and not (np.diff(slots) == 1).all()):
        return None
    return slice(first, last + 1)


def joint_runs(source: Ints, target: Ints) -> Iterator[slice]:
    """Ranges of indices within which both lists of slots are consecutive.

        source   4 5 6 9 10      target   0 1 7 8 9      →   [0, 2) [2, 3) [3, 5)

    Each range can be copied as one slice to one slice; O(n) in numpy, not in Python.
    """
    if len(source) == 1:
        yield slice(0, 1)
        return
    breaks = np.flatnonzero((np.diff(source) != 1) | (np.diff(target) != 1)) + 1
    edges = [0, *breaks.tolist(), len(source)]
    for start, end in pairwise(edges):
        if end > start:
            yield slice(start, end)


def region(slots: Ints, run: slice) -> slice:
    """The slots at the indices of a run, which `joint_runs` found consecutive."""
    first = int(slots[run.start])
    return slice(first, first + run.stop - run.start)
