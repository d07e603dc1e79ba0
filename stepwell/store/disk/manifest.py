"""The index on disk: one row a record, found by the name of its parent. SQLite; every row carries a checksum of its columns.

`open_index` makes it agree with the segments' files after the last process ended in whatever way. It reads the list of segments alone.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import xxhash

from stepwell.cache.disk.names import DIGEST
from stepwell.cache.moves import Name
from stepwell.store.disk.files import Point, is_plain, no_point
from stepwell.store.disk.folder import Namespace
from stepwell.store.disk.health import Health, is_ruin
from stepwell.store.disk.record import Kind
from stepwell.store.disk.segments import Segment, Segments

NAMELESS = bytes(DIGEST)
"""Parent and digest of a row that is not to be found by name: what a forgotten part left of a record."""

_COLUMNS = "id, kind, root, parent, digest, start, stop, segment, offset, first, pages, seal, used, sum"
_SCHEMA = (
    "CREATE TABLE record (id INTEGER PRIMARY KEY, kind INTEGER, root BLOB, parent BLOB, digest BLOB, start INTEGER, "
    "stop INTEGER, segment INTEGER, offset INTEGER, first INTEGER, pages INTEGER, seal INTEGER, used REAL, sum INTEGER)",
    "CREATE INDEX by_parent ON record (parent, digest)",
    "CREATE INDEX by_used ON record (used, id)",
    "CREATE INDEX by_segment ON record (segment)",
    "CREATE TABLE segment (id INTEGER PRIMARY KEY, length INTEGER, live INTEGER, rows INTEGER, sum INTEGER)",
)
_ROW = struct.Struct("<qq16s16s16sqqqqqqqd")
_SEGMENT = struct.Struct("<qqqq")


Place: TypeAlias = tuple[Any, int]
"""A column and an id: where a query is to go on."""


class Unusable(sqlite3.DatabaseError):
    """The file is a database, but not one that this code has written."""


@dataclass(frozen=True, slots=True)
class Row:
    """Pages [first, first + pages) of the record at `offset` of `segment`, under a name of their own.

    seal   of that record's header          used   wall-clock seconds of the last use
    """

    id: int
    kind: Kind
    name: Name
    segment: int
    offset: int
    first: int
    pages: int
    seal: int
    used: float

    def columns(self) -> tuple[Any, ...]:
        name, seal = self.name, self.seal - (self.seal >> 63 << 64)  # SQLite's integers are signed
        place = (self.segment, self.offset, self.first, self.pages, seal, self.used)
        return (self.id, int(self.kind), name.root, name.parent, name.digest, name.start, name.end, *place)


@dataclass(frozen=True, slots=True)
class SegmentRow:
    """A segment: bytes that records may lie in, pages of the rows in it, how many these are."""

    number: int
    length: int
    live: int
    rows: int


@dataclass(frozen=True, slots=True)
class Found:
    """What a query came upon: rows that hold, and the ids of rows that do not."""

    rows: tuple[Row, ...]
    damaged: tuple[int, ...]


class Manifest:
    """One connection. The writer's thread has one, the engine's another that only reads."""

    def __init__(self, path: Path, *, reads_only: bool = False, checkpoint_pages: int = 1000) -> None:
        """Open, making the tables where there are none. sqlite3.DatabaseError if the file is not such an index."""
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5)
        self._connection.text_factory = bytes
        try:
            self._prepare(reads_only, checkpoint_pages)
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, reads_only: bool, checkpoint_pages: int) -> None:
        run = self._rows
        run("PRAGMA trusted_schema = OFF")
        run("PRAGMA cell_size_check = ON")
        run("PRAGMA temp_store = MEMORY")
        if reads_only:
            run("PRAGMA query_only = ON")
            return
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        run(f"PRAGMA wal_autocheckpoint = {checkpoint_pages}")
        run(f"PRAGMA journal_size_limit = {checkpoint_pages * 4096}")
        have = [sql for (sql,) in run("SELECT sql FROM sqlite_master ORDER BY rowid")]
        if not have:
            for statement in _SCHEMA:
                run(statement)
        elif have != [statement.encode() for statement in _SCHEMA]:
            raise Unusable("the index has other tables than this version makes")

    def close(self) -> None:
        self._connection.close()

    def _rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of one statement. sqlite3.Error, whatever a damaged file makes of values and even of error messages."""
        try:
            return self._connection.execute(statement, values).fetchall()
        except (ValueError, OverflowError, MemoryError) as error:
            raise Unusable(f"the index cannot be read: {type(error).__name__}") from error

    def checkpoint(self) -> None:
        """Make every commit so far durable."""
        self._rows("PRAGMA wal_checkpoint(PASSIVE)")

    # ---- reading ------------------------------------------------------------------------------------------

    def last(self) -> int:
        """The largest id in use, or 0."""
        [(last,)] = self._rows("SELECT max(id) FROM record")
        return int(last or 0)

    def segments(self) -> list[SegmentRow]:
        """All segments whose rows hold."""
        rows = self._rows("SELECT id, length, live, rows, sum FROM segment")
        return [SegmentRow(*row[:4]) for row in rows if _holds(_SEGMENT, row)]

    def get(self, record: int) -> Row | None:
        """The row of this id; None if there is none that holds."""
        found = _check(self._rows(f"SELECT {_COLUMNS} FROM record WHERE id = ?", (record,)))
        return found.rows[0] if found.rows else None

    def matching(self, parent: bytes, digests: Sequence[bytes], last: int) -> Found:
        """The rows of this parent with one of these digests and ids up to `last`."""
        where = f"WHERE parent = ? AND digest IN ({', '.join('?' * len(digests))}) AND id <= ?"
        return _check(self._rows(f"SELECT {_COLUMNS} FROM record {where}", (parent, *digests, last)))

    def twin(self, kind: Kind, name: Name) -> Row | None:
        """A row of exactly this name."""
        where = "WHERE parent = ? AND digest = ? AND kind = ? LIMIT 4"
        wanted = (name.parent, name.digest, int(kind))
        found = _check(self._rows(f"SELECT {_COLUMNS} FROM record {where}", wanted))
        return next((row for row in found.rows if row.name == name and row.kind is kind), None)

    def oldest(self, last: int, after: Place, limit: int) -> tuple[Found, Place]:
        """The next rows by last use with ids up to `last`, and where to go on."""
        where = "WHERE (used, id) > (?, ?) AND id <= ? ORDER BY used, id LIMIT ?"
        rows = self._rows(f"SELECT {_COLUMNS} FROM record {where}", (*after, last, limit))
        return _check(rows), ((rows[-1][12], rows[-1][0]) if rows else after)

    def rooted_in(self, root: bytes, last: int, after: int, limit: int) -> tuple[Found, int]:
        """The next rows of this root by id, up to `last`, and where to go on. No index helps: it reads them all."""
        where = "WHERE id > ? AND id <= ? AND root = ? ORDER BY id LIMIT ?"
        rows = self._rows(f"SELECT {_COLUMNS} FROM record {where}", (after, last, root, limit))
        return _check(rows), (rows[-1][0] if rows else last)

    def lying_in(self, segment: int) -> Found:
        """The rows of one segment."""
        return _check(self._rows(f"SELECT {_COLUMNS} FROM record WHERE segment = ? ORDER BY offset", (segment,)))

    # ---- writing ------------------------------------------------------------------------------------------

    def commit(
        self,
        rows: Mapping[int, Row | None],
        segments: Iterable[SegmentRow],
        gone: Iterable[int] = (),
        point: Point = no_point,
    ) -> None:
        """In one transaction: these rows are there (None: not any more), and these segments; `gone` ones are not."""
        run, many = self._rows, self._connection.executemany
        run("BEGIN IMMEDIATE")
        try:
            point("insert.before")
            there = [row.columns() for row in rows.values() if row is not None]
            places = ", ".join("?" * 14)
            many(f"INSERT OR REPLACE INTO record VALUES ({places})", [(*c, _sum(_ROW, c)) for c in there])
            many("DELETE FROM record WHERE id = ?", [(id,) for id, row in rows.items() if row is None])
            known = [(s.number, s.length, s.live, s.rows) for s in segments]
            many("INSERT OR REPLACE INTO segment VALUES (?, ?, ?, ?, ?)", [(*c, _sum(_SEGMENT, c)) for c in known])
            many("DELETE FROM segment WHERE id = ?", [(number,) for number in gone])
            point("insert.after")
            run("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                run("ROLLBACK")
            raise

    def drop_segment(self, number: int) -> None:
        """A segment and all rows in it are gone."""
        self._rows("DELETE FROM record WHERE segment = ?", (number,))
        self._rows("DELETE FROM segment WHERE id = ?", (number,))

    def nameless(self) -> Found:
        """The rows that only the process that made them could use."""
        return _check(self._rows(f"SELECT {_COLUMNS} FROM record WHERE parent = ?", (NAMELESS,)))


def _sum(layout: struct.Struct, columns: tuple[Any, ...]) -> int:
    """xxh3 of these columns, as a signed number. struct.error if one is not what it should be."""
    return int(struct.unpack("<q", xxhash.xxh3_64_digest(layout.pack(*columns)))[0])


def _holds(layout: struct.Struct, columns: tuple[Any, ...]) -> bool:
    """Whether the last column is the checksum of the others."""
    try:
        return bool(_sum(layout, columns[:-1]) == columns[-1])
    except struct.error:
        return False


def _check(rows: Iterable[tuple[Any, ...]]) -> Found:
    """Sort rows into those that hold and the ids of the others."""
    good: list[Row] = []
    damaged: list[int] = []
    for columns in rows:
        row = _row(columns)
        if row is None:
            damaged.append(columns[0])
        else:
            good.append(row)
    return Found(tuple(good), tuple(damaged))


def _row(columns: tuple[Any, ...]) -> Row | None:
    id, kind, root, parent, digest, start, stop, segment, offset, first, pages, seal, used, _ = columns
    try:
        if not _holds(_ROW, columns) or not len(root) == len(parent) == len(digest) == DIGEST:
            return None
        name = Name(root, parent, digest, start, stop)
        return Row(id, Kind(kind), name, segment, offset, first, pages, seal & (1 << 64) - 1, used)
    except (TypeError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Opened:
    """The writer's connection and the readers', the last id in use, the next segment's number, and pages of all rows."""

    index: Manifest
    view: Manifest
    last: int
    next_segment: int
    pages: int


def open_index(space: Namespace, segments: Segments, checkpoint_pages: int, health: Health) -> Opened:
    """Open the index of a namespace and fill `segments`; begin anew where it is damaged. OSError, sqlite3.Error otherwise."""
    try:
        return _open(space, segments, checkpoint_pages)
    except sqlite3.DatabaseError as error:
        if not is_ruin(error):
            raise
        health.note(type(error).__name__, f"the index in {space.path} is damaged and begins anew: {error}")
    segments.all.clear()
    for path in space.index_files:
        path.unlink(missing_ok=True)
    return _open(space, segments, checkpoint_pages)


def _open(space: Namespace, segments: Segments, checkpoint_pages: int) -> Opened:
    for path in space.index_files:
        if os.path.lexists(path) and not is_plain(path.lstat()):
            path.unlink()  # a link or the like: nothing of ours
    index = Manifest(space.manifest, checkpoint_pages=checkpoint_pages)
    try:
        last = _reconcile(index, segments)
        newest = max([0, *segments.found(), *(s.number for s in index.segments())])
        view = Manifest(space.manifest, reads_only=True)
    except BaseException:
        index.close()
        raise
    return Opened(index, view, last, newest + 1, sum(s.live for s in segments.all.values()))


def _reconcile(index: Manifest, segments: Segments) -> int:
    """Rows without a file go, files without a row go, what is behind the published end is cut off. Returns the last id."""
    last = index.last()
    files = segments.found()
    for row in index.segments():
        status = files.get(row.number)
        if (
            status is None
            or not is_plain(status)
            or min(row.number, row.length, row.live, row.rows) < 0
            or row.number == 0
        ):
            index.drop_segment(row.number)
            continue
        length = min(row.length, status.st_size)
        if status.st_size > length:
            _cut(segments, segments.path(row.number), length)
        segments.all[row.number] = Segment(row.number, length, row.live, row.rows)
    _drop_nameless(index, segments)
    for number in files.keys() - segments.all.keys():
        index.drop_segment(number)
        with suppress(OSError):
            segments.files.unlink(segments.path(number))
    return last


def _drop_nameless(index: Manifest, segments: Segments) -> None:
    """Rows that only the last process could use go, and are counted no more."""
    found = index.nameless()
    for row in found.rows:
        if row.segment in segments.all:
            segment = segments.all[row.segment]
            segment.live, segment.rows = max(0, segment.live - row.pages), max(0, segment.rows - 1)
    gone = [*(row.id for row in found.rows), *found.damaged]
    if gone:
        fewer = {row.segment for row in found.rows} & segments.all.keys()
        known = [segments.all[number] for number in fewer]
        index.commit(dict.fromkeys(gone), [SegmentRow(s.number, s.length, s.live, s.rows) for s in known])


def _cut(segments: Segments, path: Path, length: int) -> None:
    fd = segments.files.open(path, os.O_RDWR)
    try:
        segments.files.truncate(fd, length)
    finally:
        segments.files.close(fd)
