"""Which records there are and whose slots their pages are, as of the order being carried out; and what the index has yet to learn.

    row    R R R R Q Q …      record of each slot, 0 for none       a record's slots are as many as its pages, or none
    page   0 1 2 3 5 6 …      which page of the stored record it is

Belongs to the writer's thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Divide, Name
from stepwell.store.disk.layout import Kind
from stepwell.store.disk.manifest import NAMELESS, Manifest, Row, SegmentRow
from stepwell.store.disk.places import Longs, Places
from stepwell.store.disk.points import Point
from stepwell.store.disk.segments import Segments


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
