"""Where the page of each slot lies, for readers: arrays over all slots, in memory only.

A place is set before the directory can ask for the slot, and is no promise: readers check what they find there.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from stepwell.base.errors import StoreError
from stepwell.base.geometry import Ints
from stepwell.store.arena import check_slots
from stepwell.store.disk.manifest import Row

Longs = npt.NDArray[np.int64]

NOWHERE = 0
"""The segment of a slot that has no place; segments are numbered from 1."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Consecutive pages of one record: [index, index + count) of the record at `offset` of `segment`, whose header has this seal.

    at   which of the slots asked for is the first of them
    """

    segment: int
    offset: int
    seal: int
    index: int
    at: int
    count: int


class Places:
    """Safe to use from any thread. A lock of microseconds, except while a compaction commits."""

    def __init__(self, slots: int) -> None:
        self.lock = threading.RLock()
        self._segment: Ints = np.zeros(slots, np.int32)
        self._offset: Longs = np.zeros(slots, np.int64)
        self._index: Ints = np.zeros(slots, np.int32)
        self._seal: npt.NDArray[np.uint64] = np.zeros(slots, np.uint64)

    def put(self, slots: Ints, row: Row) -> None:
        """The pages of `row`, in order, are these slots."""
        with self.lock:
            self._segment[slots] = row.segment
            self._offset[slots] = row.offset
            self._index[slots] = row.first + np.arange(len(slots), dtype=np.int32)
            self._seal[slots] = row.seal

    def clear(self, slots: Ints, row: Row) -> None:
        """Those of these slots that hold pages of `row` are nowhere: another row's may have been put there since, even of its record."""
        with self.lock:
            here = (self._segment[slots] == row.segment) & (self._offset[slots] == row.offset)
            index = self._index[slots]
            here &= (index >= row.first) & (index < row.first + row.pages)
            self._segment[slots[here]] = NOWHERE

    def vacate(self, slots: Ints) -> None:
        """These slots are nowhere, whatever they held."""
        with self.lock:
            self._segment[slots] = NOWHERE

    def relocate(self, segment: int, pairs: Sequence[tuple[Row, Row]]) -> None:
        """The pages of each old row in `segment` have been copied to those of the new one: whichever slots they are."""
        with self.lock:
            all_here = np.flatnonzero(self._segment == segment)
            for old, new in pairs:
                here = all_here[self._offset[all_here] == old.offset]
                index = self._index[here]
                here = here[(self._segment[here] == segment) & (index >= old.first) & (index < old.first + old.pages)]
                self._segment[here] = new.segment
                self._offset[here] = new.offset
                self._index[here] += new.first - old.first
                self._seal[here] = new.seal

    def stretches(self, slots: Ints) -> list[Stretch]:
        """Where these slots lie, in order. StoreError if one is nowhere or out of range."""
        check_slots(slots, len(self._segment), "the disk")
        if not len(slots):
            return []
        with self.lock:
            segment, offset, index, seal = (a[slots] for a in (self._segment, self._offset, self._index, self._seal))
        if (segment == NOWHERE).any():
            raise StoreError(f"disk slot {slots[segment == NOWHERE][0]} holds nothing: its tokens are recomputed")
        ends = (np.diff(segment) != 0) | (np.diff(offset) != 0) | (np.diff(index) != 1)
        starts = [0, *(np.flatnonzero(ends) + 1).tolist()]
        counts = np.diff([*starts, len(slots)]).tolist()
        return [
            Stretch(int(segment[i]), int(offset[i]), int(seal[i]), int(index[i]), i, n)
            for i, n in zip(starts, counts, strict=True)
        ]
