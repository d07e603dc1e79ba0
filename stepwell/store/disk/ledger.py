"""Which page of which record each slot holds: `Places` for readers, `Ledger` for the writer. Both live in memory.

`Places` has arrays over all slots. A place is set before the directory can ask for the slot, and is no promise: readers check what they
find there. `Ledger` is true as of the job being carried out, and knows what the index has yet to learn. It belongs to the writer's thread:

    row    R R R R Q Q …      record of each slot, 0 for none       a record's slots are as many as its pages, or none
    page   0 1 2 3 5 6 …      which page of the stored record it is
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from stepwell.base.errors import StoreError
from stepwell.base.geometry import Ints
from stepwell.cache.moves import Divide, Name
from stepwell.store.arena import check_slots
from stepwell.store.disk.files import Point
from stepwell.store.disk.manifest import NAMELESS, Manifest, Row, SegmentRow
from stepwell.store.disk.record import Kind
from stepwell.store.disk.segments import Segments

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


@dataclass(slots=True)
class Ids:
    """Numbers for new rows: never one that was in use when the process began."""

    next: int

    def take(self) -> int:
        self.next += 1
        return self.next - 1


class Ledger:
    """See the module. Changes are collected, and become durable and visible to a later process with `commit`."""

    def __init__(
        self, slots: int, block: int, manifest: Manifest, segments: Segments, places: Places, ids: Ids
    ) -> None:
        self._row: Longs = np.zeros(slots, np.int64)
        self._page: Ints = np.zeros(slots, np.int32)
        self._block = block
        self._manifest = manifest
        self._segments = segments
        self._places = places
        self._ids = ids
        self._edits: dict[int, Row | None] = {}
        self._by_name: dict[tuple[Kind, Name], Row] = {}
        self._touched: set[int] = set()  # segments whose row is to be written
        self._removed: list[int] = []  # segments whose row is to go

    @property
    def pending(self) -> int:
        """Rows that the index has yet to learn about."""
        return len(self._edits)

    def get(self, record: int) -> Row | None:
        """The row of this id, as of now. sqlite3.Error if the index cannot be read."""
        return self._edits[record] if record in self._edits else self._manifest.get(record)

    def twin(self, kind: Kind, name: Name) -> Row | None:
        """A row of this very name, as of now. sqlite3.Error if the index cannot be read."""
        row = self._by_name.get((kind, name)) or self._manifest.twin(kind, name)
        return None if row is None else self.get(row.id)

    # ---- changes ------------------------------------------------------------------------------------------

    def insert(self, row: Row) -> None:
        """A row that was not there, or takes the place of its own earlier version."""
        before = self.get(row.id)
        if before is not None:
            self._count(before, -1)
        self._count(row, +1)
        self._edits[row.id] = row
        self._by_name[row.kind, row.name] = row

    def delete(self, row: Row) -> None:
        self._count(row, -1)
        self._edits[row.id] = None
        self._by_name.pop((row.kind, row.name), None)

    def remove(self, record: int, row: Row | None) -> None:
        """Delete by id, even where there is no row that holds."""
        if row is not None:
            self.delete(row)
        self._edits[record] = None

    def moved(self, pairs: Sequence[tuple[Row, Row]]) -> None:
        """The bytes of each old row have been copied; the new one, of the same id, stands for the copy."""
        here = np.flatnonzero(np.isin(self._row, [old.id for old, _ in pairs]))
        for old, new in pairs:
            self.insert(new)
            self._page[here[self._row[here] == old.id]] += new.first - old.first

    def occupy(self, slots: Ints, row: Row) -> None:
        """The pages of `row`, in order, are these slots, whatever was in them before."""
        assert len(slots) == row.pages
        self.forget(slots)
        self._row[slots] = row.id
        self._page[slots] = row.first + np.arange(row.pages, dtype=np.int32)

    def forget(self, slots: Ints) -> int:
        """The rows of these slots go; of a row that keeps some, what is left stays readable, but has no name. Returns how many."""
        ids = np.unique(self._row[slots])
        for record in ids[ids > 0].tolist():
            mine = slots[self._row[slots] == record]
            self._row[mine] = 0
            row = self.get(record)
            if row is None:
                continue
            if len(mine) < row.pages:
                self._keep_rest(row)
            self._places.clear(mine, row)
            self.delete(row)
        return int((ids > 0).sum())

    def strike_at(self, slots: Ints, segment: int, offset: int) -> int:
        """Strike the rows of these slots as far as they lie in the record at this place. Returns how many."""
        ids = np.unique(self._row[slots])
        rows = [row for record in ids[ids > 0].tolist() if (row := self.get(record)) is not None]
        struck = [row for row in rows if (row.segment, row.offset) == (segment, offset)]
        for row in struck:
            self.strike(row)
        return len(struck)

    def strike(self, row: Row) -> None:
        """A row is of no use: its slots, if it has any, are nowhere."""
        slots = np.flatnonzero(self._row == row.id).astype(np.int32)
        self._row[slots] = 0
        self._places.clear(slots, row)
        self.delete(row)

    def divide(self, order: Divide) -> bool:
        """Carry out a `Divide`; False if its slots do not follow each other in one record, or not at that token."""
        record = int(self._row[order.last])
        row = self.get(record) if record and record == self._row[order.first] else None
        cut = int(self._page[order.first])
        if row is None or row.kind is not Kind.KV or cut != self._page[order.last] + 1 or row.name.parent == NAMELESS:
            return False
        pages = cut - row.first
        if order.at != row.name.start + pages * self._block:
            return False
        name = row.name
        upper = replace(row, name=replace(name, end=order.at, digest=order.digest), pages=pages)
        lower = replace(
            row, name=replace(name, start=order.at, parent=order.digest), first=cut, pages=row.pages - pages
        )
        lower = replace(lower, id=self._ids.take())
        here = np.flatnonzero(self._row == record)
        self._row[here[self._page[here] >= cut]] = lower.id
        self._by_name.pop((row.kind, name), None)
        self.insert(upper)
        self.insert(lower)
        return True

    def touch(self, slots: Ints, now: float) -> None:
        """The rows of these slots were last used at `now`, wall-clock seconds."""
        ids = np.unique(self._row[slots])
        for record in ids[ids > 0].tolist():
            row = self.get(record)
            if row is not None:
                self._edits[record] = replace(row, used=now)

    def _keep_rest(self, row: Row) -> None:
        """Rows without a name for what slots are left of `row`."""
        rest = np.flatnonzero(self._row == row.id).astype(np.int32)
        self._row[rest] = 0
        if row.kind is Kind.IMAGE:
            self._places.clear(rest, row)
            return
        rest = rest[np.argsort(self._page[rest])]
        for run in np.split(rest, np.flatnonzero(np.diff(self._page[rest]) != 1) + 1):
            first = int(self._page[run[0]])
            start = row.name.start + (first - row.first) * self._block
            name = Name(row.name.root, NAMELESS, NAMELESS, start, start + len(run) * self._block)
            part = replace(row, id=self._ids.take(), name=name, first=first, pages=len(run))
            self._row[run] = part.id
            self._count(part, +1)
            self._edits[part.id] = part

    def _count(self, row: Row, sign: int) -> None:
        segment = self._segments.all.get(row.segment)
        if segment is not None:
            segment.live = max(0, segment.live + sign * row.pages)
            segment.rows = max(0, segment.rows + sign)
            self._touched.add(row.segment)

    # ---- the index ----------------------------------------------------------------------------------------

    def removed(self, segment: int) -> None:
        """This segment's file is to be removed."""
        self._touched.discard(segment)
        self._removed.append(segment)

    def grown(self, segment: int) -> None:
        """This segment has a new length."""
        self._touched.add(segment)

    def commit(self, point: Point) -> None:
        """Let the index have all changes, or none: they are then kept for the next time. sqlite3.Error, or what `point` raises."""
        if not (self._edits or self._touched or self._removed):
            return
        known = (self._segments.all[number] for number in self._touched if number in self._segments.all)
        rows = [SegmentRow(s.number, s.length, s.live, s.rows) for s in known]
        self._manifest.commit(self._edits, rows, self._removed, point)
        self._edits = {}
        self._by_name = {}
        self._touched = set()
        self._removed = []
