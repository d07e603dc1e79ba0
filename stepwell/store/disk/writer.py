"""Carries out a batch of jobs: either all that it publishes is on disk, verified and durable, or none of it can be found.

1  write      each move's records, read back                     points write.* verify.* segment.*
2  sync       once for all of them                               points sync.*
3  apply      moves and orders, in order, in the ledger
4  publish    one transaction                                    points insert.* commit.after
5  tidy       segments without live pages go                     points unlink.*
then report
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stepwell.base.errors import StoreError
from stepwell.base.geometry import Ints
from stepwell.cache.moves import Divide, Extent, Forget, Move, Name, Report, Touch
from stepwell.store.arena import Rows, check_slots
from stepwell.store.disk.catalogue import DiskCatalogue
from stepwell.store.disk.files import Point, read_all
from stepwell.store.disk.gate import Gate
from stepwell.store.disk.health import DiskCounts, Health, is_ruin
from stepwell.store.disk.inbox import Adopt, Copy, DiskTask, Drop, Strike
from stepwell.store.disk.ledger import Ids, Ledger, Places
from stepwell.store.disk.manifest import Row
from stepwell.store.disk.record import Damaged, Kind, Layout, decode
from stepwell.store.disk.segments import Appender, Gone, Segments, Unfaithful
from stepwell.store.disk.space import Space


@dataclass(frozen=True, slots=True)
class Tools:
    """`wall` tells wall-clock seconds, for the index alone."""

    layout: Layout
    slots: int
    segments: Segments
    places: Places
    ledger: Ledger
    appender: Appender
    space: Space
    catalogue: DiskCatalogue
    health: Health
    counts: DiskCounts
    ids: Ids
    wall: Callable[[], float]
    point: Point


SYSTEM = (OSError, sqlite3.Error, Unfaithful)
"""What stops the writing for a while; any other error is about one move."""


@dataclass(slots=True)
class _Write:
    """A move being carried out: the row of each of its records, or why it failed."""

    move: Move
    rows: list[Row] = field(default_factory=list)
    fresh: list[Row] = field(default_factory=list)  # those of `rows` that are new
    adopted: list[Row] = field(default_factory=list)  # those that an earlier process had made
    error: str = ""


class Writer:
    """Belongs to the writer's thread. Never raises for what the system does: it reports."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._suspect: set[tuple[int, int]] = set()  # places of records that have failed a check

    def carry_out(self, jobs: Sequence[DiskTask], gate: Gate) -> list[Report]:
        """Do these in order. Every move among them is reported; how orders fare shows in the statistics."""
        self._suspect.update((job.segment, job.offset) for job in jobs if isinstance(job, Strike))
        first = next((i for i, job in enumerate(jobs) if isinstance(job, Copy)), 0)
        if first:  # apart, since what goes here may be what makes room for the copies
            self._publish(jobs[:first], {})
            jobs = jobs[first:]
        writes = {id(job): _Write(job.move) for job in jobs if isinstance(job, Copy)}
        why = self._why_not(jobs)
        if not why:
            why = self._write(jobs, writes, gate)
        for write in writes.values():
            write.error = write.error or why
        return self._publish(jobs, writes)

    # ---- writing ------------------------------------------------------------------------------------------

    def _why_not(self, jobs: Sequence[DiskTask]) -> str:
        """Why moves cannot be carried out now; empty if they can. After a pause a trial comes first."""
        t = self._tools
        if t.health.broken or t.health.paused:
            return t.health.why
        copies = [job.move for job in jobs if isinstance(job, Copy)]
        if not copies:
            return ""
        try:
            if t.health.doubtful:
                t.ledger.commit(t.point)
                t.space.tidy()  # perhaps all that was missing is room
                t.appender.try_out()
            need = sum(_record_bytes(move, t.layout) for move in copies)
            why = t.space.make_room(need)
        except SYSTEM as error:
            t.appender.abandon()
            return self._fail(error)
        if why:
            t.health.note("no_room", why)
        return why

    def _write(self, jobs: Sequence[DiskTask], writes: dict[int, _Write], gate: Gate) -> str:
        """Steps 1 and 2. Returns what went wrong for all; what concerns one move is noted there."""
        t = self._tools
        try:
            for job in jobs:
                if isinstance(job, Copy):
                    try:
                        self._write_one(job, writes[id(job)], gate)
                    except SYSTEM:
                        raise
                    except Exception as error:
                        writes[id(job)].error = (
                            str(error) if isinstance(error, StoreError) else f"{type(error).__name__}: {error}"
                        )
            if any(write.fresh for write in writes.values()):
                t.appender.sync()
                t.appender.check_place()
        except SYSTEM as error:
            t.appender.abandon()
            return self._fail(error)
        return ""

    def _write_one(self, job: Copy, write: _Write, gate: Gate) -> None:
        t, move = self._tools, job.move
        kind = Kind.of(move)
        slots = _check(move, kind, t.layout.block, t.layout.most_pages(kind), t.slots)
        rows = gate.fetch(move.source, job.fence)
        if rows.shape != (len(slots), t.layout.page_bytes):
            raise StoreError(f"move {move.ticket} brings bytes of shape {rows.shape} for {len(slots)} pages")
        t.counts.add("bytes_demoted", rows.nbytes)
        first = 0
        for name in move.names:
            pages = t.layout.image_pages if kind is Kind.IMAGE else (name.end - name.start) // t.layout.block
            part = rows[first : first + pages]
            first += pages
            row = self._known(kind, name, pages, write) or self._append(kind, name, part, write)
            write.rows.append(row)

    def _append(self, kind: Kind, name: Name, rows: Rows, write: _Write) -> Row:
        t = self._tools
        placed = t.appender.append(kind, name, rows)
        t.counts.add("bytes_written", placed.bytes)
        row = Row(t.ids.take(), kind, name, placed.segment, placed.offset, 0, len(rows), placed.seal, t.wall())
        write.fresh.append(row)
        return row

    def _known(self, kind: Kind, name: Name, pages: int, write: _Write) -> Row | None:
        """A row for bytes that are there under this very name; None if there are none."""
        t = self._tools
        twin = t.ledger.twin(kind, name)
        if twin is None or twin.pages != pages or t.catalogue.is_damaged(twin.id):
            return None
        if (twin.segment, twin.offset) in self._suspect or not self._still_there(twin):
            t.catalogue.claim(twin.id, twin.pages)
            t.ledger.strike(twin)
            t.counts.add("quarantined")
            return None
        t.counts.add("deduplicated")
        if t.catalogue.claim(twin.id, twin.pages):
            row = replace(twin, used=t.wall())
            write.adopted.append(row)
            return row
        return replace(twin, id=t.ids.take(), used=t.wall())

    def _still_there(self, row: Row) -> bool:
        """Whether the header of its record can be read and is the right one."""
        layout, segments = self._tools.layout, self._tools.segments
        raw = memoryview(bytearray(layout.header_bytes(row.kind)))
        size = len(raw) + (row.first + row.pages) * layout.page_bytes
        if not segments.fits(row.segment, row.offset, size):
            return False
        try:
            with segments.reading(row.segment) as fd:
                return (
                    read_all(segments.files, fd, [raw], row.offset) and decode(layout, row.kind, raw).seal == row.seal
                )
        except (OSError, Damaged, Gone):
            return False

    # ---- publishing ---------------------------------------------------------------------------------------

    def _publish(self, jobs: Sequence[DiskTask], writes: dict[int, _Write]) -> list[Report]:
        """Steps 3 to 5."""
        t = self._tools
        try:
            for job in jobs:
                if isinstance(job, Copy):
                    self._apply_write(writes[id(job)])
                else:
                    self._apply(job)
            if not (t.health.broken or t.health.paused):  # what waits for the index is kept
                t.ledger.commit(t.point)
                t.point("commit.after")
        except SYSTEM as error:
            why = self._fail(error)
            for write in writes.values():
                if not write.error:
                    write.error = why
                    self._take_back(write)
        else:
            if any(not write.error for write in writes.values()):
                t.health.worked()
            for write in writes.values():
                if not write.error:
                    t.counts.add("published", len(write.fresh))
        t.space.tidy()
        t.counts.add("failed_writes", sum(bool(write.error) for write in writes.values()))
        return [Report(write.move.ticket, not write.error, write.error) for write in writes.values()]

    def _apply_write(self, write: _Write) -> None:
        """A move's records take its slots; of a move that failed, nothing is found again."""
        t, move = self._tools, write.move
        if write.error:
            for row in write.adopted:
                t.ledger.delete(row)
            return
        assert isinstance(move.target, Extent)
        first = 0
        for row in write.rows:
            slots = move.target.slots[first : first + row.pages]
            first += row.pages
            t.ledger.insert(row)
            t.ledger.occupy(slots, row)
            t.places.put(slots, row)

    def _take_back(self, write: _Write) -> None:
        """The index did not take them: they are forgotten as if they had been asked to be."""
        assert isinstance(write.move.target, Extent)
        try:
            self._tools.ledger.forget(write.move.target.slots)
        except sqlite3.Error as error:
            self._fail(error)

    def _apply(self, job: DiskTask) -> None:
        t = self._tools
        match job:
            case Forget(slots):
                t.counts.add("forgotten", t.ledger.forget(slots))
            case Divide():
                t.ledger.divide(job)
            case Touch(slots):
                t.ledger.touch(slots, t.wall())
            case Adopt(record, slots, twice):
                self._adopt(record, slots, twice)
            case Drop(records):
                for record in records:
                    row = t.ledger.get(record)
                    t.ledger.remove(record, row)
            case Strike(slots, segment, offset):
                t.counts.add("quarantined", t.ledger.strike_at(slots, segment, offset))

    def _adopt(self, record: int, slots: Ints, twice: bool) -> None:
        t = self._tools
        row = t.ledger.get(record)
        if row is None or row.pages != len(slots):
            return
        row = replace(row, id=t.ids.take() if twice else record, used=t.wall())
        t.ledger.insert(row)
        t.ledger.occupy(slots, row)

    def _fail(self, error: Exception) -> str:
        """What to tell those who wait."""
        health = self._tools.health
        if is_ruin(error):
            health.ruined(error)
            return health.why
        return health.failed(error)


def _check(move: Move, kind: Kind, block: int, most: int, count: int) -> Ints:
    """The target's slots. StoreError if the move does not make whole records of its pages."""
    assert isinstance(move.target, Extent)
    slots = move.target.slots
    check_slots(slots, count, "the disk")
    if len(slots) != len(move.source.slots):
        raise StoreError(
            f"move {move.ticket} copies {len(move.source.slots)} slots to {len(slots)}: both sides must be as long"
        )
    if not move.names or move.names[-1].end != move.tokens:
        raise StoreError(
            f"move {move.ticket} has no names that end at token {move.tokens}: nothing could be found again"
        )
    sizes = [most if kind is Kind.IMAGE else (name.end - name.start) // block for name in move.names]
    whole = kind is Kind.IMAGE or all((name.end - name.start) % block == 0 for name in move.names)
    if not whole or sum(sizes) != len(slots) or not all(1 <= size <= most for size in sizes):
        raise StoreError(
            f"move {move.ticket} names records of {sizes} pages for {len(slots)} slots; a record has 1 … {most}"
        )
    return slots


def _record_bytes(move: Move, layout: Layout) -> int:
    """Bytes of the records that a move makes, if none of them is there already."""
    kind = Kind.of(move)
    return layout.record_bytes(kind, 0) * len(move.names) + len(move.source.slots) * layout.page_bytes
