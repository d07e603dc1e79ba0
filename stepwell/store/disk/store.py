"""The disk tier as a whole: opening, reading, writing, closing."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from stepwell.base.clock import Clock, WallClock
from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Ints
from stepwell.base.units import format_size
from stepwell.cache.moves import Move, Report
from stepwell.store.arena import Rows
from stepwell.store.disk.catalogue import DiskCatalogue
from stepwell.store.disk.files import Files, OsFiles, Point, no_point
from stepwell.store.disk.folder import Lock, enter, names_key, prepare, read_key, usage
from stepwell.store.disk.gate import Gate
from stepwell.store.disk.health import DiskCounts, DiskStats, Health
from stepwell.store.disk.inbox import DiskTask, Inbox
from stepwell.store.disk.ledger import Ids, Ledger, Places, Stretch
from stepwell.store.disk.manifest import Manifest, open_index
from stepwell.store.disk.reader import Deliver, Reader
from stepwell.store.disk.record import Layout
from stepwell.store.disk.segments import Appender, Segments
from stepwell.store.disk.space import Limits, Space
from stepwell.store.disk.writer import Tools, Writer

PAGE_SHARE = 0.8
"""Of the budget. The rest is for headers, the index, and dead space until a compaction."""
LARGEST_SEGMENT = 256 << 20
BATCH_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Options:
    """verify_writes  read back what was written before it counts      queue  moves to disk at most that wait

    parts  words that the fingerprint is made of, for people who look into the folder
    wall   wall-clock seconds; clock: the one that pauses are measured on
    """

    verify_writes: bool = True
    queue: int = 1024
    parts: Mapping[str, str] | None = None
    clock: Clock | None = None
    wall: Callable[[], float] = time.time
    files: Files | None = None
    points: Point = no_point


class DiskStore:
    """Made by `open`. `read` may be called from several threads, `write` from one, `catalogue` and `inbox` as they say."""

    def __init__(
        self, tools: Tools, reader: Reader, inbox: Inbox, key: bytes, path: Path, files: Files, owned: _Owned
    ) -> None:
        self._tools = tools
        self._writer = Writer(tools)
        self._reader = reader
        self.inbox = inbox
        self._key = key
        self._path = path
        self._files = files
        self._owned = owned

    @classmethod
    def open(cls, path: Path, budget: int, layout: Layout, options: Options | None = None) -> DiskStore:
        """Open PATH, made where only it is missing, for at most `budget` bytes. ConfigError says what to change."""
        options = options or Options()
        segment_bytes = size_of_segments(budget, layout)
        lock = prepare(path)
        try:
            return _build(cls, path, budget, segment_bytes, layout, options, lock)
        except BaseException as error:
            lock.close()
            if isinstance(error, OSError | sqlite3.Error):
                raise ConfigError(
                    f"--disk-cache {path} cannot be used ({error}): check that it can be written to"
                ) from error
            raise

    def __enter__(self) -> DiskStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def layout(self) -> Layout:
        return self._tools.layout

    @property
    def slots(self) -> int:
        """Pages that there is room for."""
        return self._tools.slots

    @property
    def names_key(self) -> bytes:
        """32 bytes for `stepwell.cache.disk.names.Names`."""
        return self._key

    @property
    def catalogue(self) -> DiskCatalogue:
        """What earlier processes left."""
        return self._tools.catalogue

    @property
    def batch_bytes(self) -> int:
        """Bytes of moves that are worth one batch."""
        return self._owned.batch_bytes

    @property
    def usage(self) -> int:
        """Bytes that the folder takes, as `du` counts them; walks the files."""
        return usage(self._path, self._files)

    def read(self, move: Move, memory: Rows, deliver: Deliver) -> None:
        """Carry out a move from disk: see `Reader.read`. StoreError or OSError if it fails; it is counted either way."""
        try:
            self._reader.read(move, memory, deliver)
        except Exception:
            self._tools.counts.add("failed_reads")
            raise

    def write(self, jobs: Sequence[DiskTask], gate: Gate) -> list[Report]:
        """Carry out a batch from the inbox: see `Writer.carry_out`."""
        return self._writer.carry_out(jobs, gate)

    def stats(self) -> DiskStats:
        t = self._tools
        get = t.counts.get
        return DiskStats(
            slots=t.slots,
            dormant_pages=t.catalogue.pages,
            segments=len(t.segments.all),
            bytes=t.segments.bytes,
            bytes_demoted=get("bytes_demoted"),
            bytes_written=get("bytes_written"),
            bytes_rewritten=get("bytes_rewritten"),
            bytes_read=get("bytes_read"),
            published=get("published"),
            adopted=get("adopted"),
            forgotten=get("forgotten"),
            deduplicated=get("deduplicated"),
            quarantined=get("quarantined"),
            failed_writes=get("failed_writes"),
            failed_reads=get("failed_reads"),
            compactions=get("compactions"),
            problems=t.health.problems,
            paused_until=t.health.paused_until,
        )

    def close(self) -> None:
        """Let the index have what it has not yet, and let go of the folder. Nothing may be in flight. Twice does no harm."""
        if self._owned.lock.closed:
            return
        t = self._tools
        with suppress(OSError, sqlite3.Error):
            if not t.health.broken:
                t.ledger.commit(no_point)
                t.space.tidy()
                t.ledger.commit(no_point)
                self._owned.index.checkpoint()
        t.appender.close()
        t.segments.close()
        for connection in (self._owned.view, self._owned.index):
            with suppress(sqlite3.Error):
                connection.close()
        self._owned.lock.close()


@dataclass(frozen=True, slots=True)
class _Owned:
    """What has to be closed, and what was worked out at the start."""

    lock: Lock
    index: Manifest
    view: Manifest
    batch_bytes: int


def size_of_segments(budget: int, layout: Layout) -> int:
    """Bytes of one segment. ConfigError if the budget is too small to work with."""
    size = max(min(LARGEST_SEGMENT, budget // 16), layout.largest)
    least = max(8 * layout.largest, 1 << 20)
    if budget < least:
        raise ConfigError(
            f"--disk-cache: {format_size(budget)} is too little for records of up to {format_size(layout.largest)}: "
            f"give at least {format_size(least)}, or leave the flag out to have no disk tier"
        )
    return size


def _build(
    cls: type[DiskStore], path: Path, budget: int, segment_bytes: int, layout: Layout, options: Options, lock: Lock
) -> DiskStore:
    """The parts of a store, put together."""
    files, point = options.files or OsFiles(), options.points
    space = enter(path, layout, dict(options.parts or {}), files, point)
    key = names_key(read_key(path), layout.fingerprint)
    health, counts = Health(options.clock or WallClock(), space.distrust), DiskCounts()
    segments = Segments(space.segments, files)
    slots = int(budget * PAGE_SHARE / layout.page_bytes)
    found = open_index(space, segments, _checkpoint_pages(budget), health)
    places, ids = Places(slots), Ids(found.last + 1)
    inbox = Inbox(slots, options.queue)
    ledger = Ledger(slots, layout.block, found.index, segments, places, ids)
    appender = Appender(layout, segments, segment_bytes, options.verify_writes, found.next_segment, point, ledger.grown)
    limits = Limits(budget, segment_bytes)
    room = Space(path, space, limits, layout, files, segments, appender, ledger, found.index, places, counts, point)
    catalogue = DiskCatalogue(
        found.view, layout, segments, places, inbox, health, counts, last=found.last, pages=found.pages
    )
    # where the budget was larger before: the directory counts on a slot for every dormant page
    catalogue.trim_dormant(found.pages - slots)
    tools = Tools(
        layout, slots, segments, places, ledger, appender, room, catalogue, health, counts, ids, options.wall, point
    )

    def damaged(bad: Ints, at: Stretch) -> None:
        inbox.strike(bad, at.segment, at.offset)

    reader = Reader(layout, segments, places, counts, damaged)
    owned = _Owned(lock, found.index, found.view, min(BATCH_BYTES, segment_bytes))
    return cls(tools, reader, inbox, key, path, files, owned)


def _checkpoint_pages(budget: int) -> int:
    """Pages of 4 KiB after which SQLite folds its log into the index: a small budget cannot spare 4 MiB for it."""
    return max(16, min(1000, budget // 64 // 4096))
