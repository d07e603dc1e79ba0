"""Keeping within the budget: empty segments go, then other models' namespaces, then half-empty segments are rewritten."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from stepwell.cache.moves import Name
from stepwell.store.arena import Rows
from stepwell.store.disk.files import Files, Point, disk_usage, read_all
from stepwell.store.disk.folder import Namespace, others
from stepwell.store.disk.health import DiskCounts
from stepwell.store.disk.ledger import Ledger, Places
from stepwell.store.disk.manifest import Manifest, Row
from stepwell.store.disk.record import Damaged, Header, Kind, Layout, decode, page_sums
from stepwell.store.disk.segments import Appender, Gone, Placed, Segment, Segments

_FULL = 0.98
"""The live share from which rewriting a segment would win next to nothing."""


@dataclass(frozen=True, slots=True)
class Limits:
    """budget: bytes that PATH may take; reserve: bytes of it that only a compaction may use for a while."""

    budget: int
    reserve: int


class Space:
    """Belongs to the writer's thread."""

    def __init__(
        self,
        path: Path,
        own: Namespace,
        limits: Limits,
        layout: Layout,
        files: Files,
        segments: Segments,
        appender: Appender,
        ledger: Ledger,
        manifest: Manifest,
        places: Places,
        counts: DiskCounts,
        point: Point,
    ) -> None:
        self._path = path
        self._own = own
        self._limits = limits
        self._layout = layout
        self._files = files
        self._segments = segments
        self._appender = appender
        self._ledger = ledger
        self._manifest = manifest
        self._places = places
        self._counts = counts
        self._point = point
        self._unreadable: set[int] = set()  # segments that a compaction could not read
        self._others = self._measure_others()

    def make_room(self, size: int) -> str:
        """Make room for `size` more bytes of records. Returns why that cannot be, or nothing. OSError, sqlite3.Error."""
        if self._fits(size):
            return ""
        self._others = self._measure_others()
        while not self._fits(size):
            before = self._segments.bytes
            if not self._remove_other() and not (self._compact_one() and self._segments.bytes < before):
                return (
                    f"the disk cache has no room for {size} more bytes within its budget of {self._limits.budget}: "
                    "give --disk-cache a larger size, or expect the oldest to go first"
                )
        return ""

    def tidy(self) -> None:
        """Remove the segments that hold nothing any more."""
        empty = [s.number for s in self._segments.all.values() if s.sealed and not s.live]
        if not empty or self._ledger.pending:
            return
        for number in empty:
            with suppress(OSError):
                self._point("unlink.before")
                self._segments.remove(number)
                self._ledger.removed(number)
                self._point("unlink.after")

    def _fits(self, size: int) -> bool:
        limits = self._limits
        index = sum(disk_usage(self._files, path) for path in self._own.index_files)
        return self._segments.bytes + index + self._others + size <= limits.budget - limits.reserve

    def _measure_others(self) -> int:
        """Bytes in PATH that are neither our records nor our index."""
        ours = disk_usage(self._files, self._own.segments) + sum(
            disk_usage(self._files, p) for p in self._own.index_files
        )
        return max(0, disk_usage(self._files, self._path) - ours)

    def _remove_other(self) -> bool:
        """Remove the namespace that was opened least recently, our own aside."""
        for space in others(self._path, self._own):
            self._point("remove.before")
            with suppress(OSError):
                self._files.remove_tree(space.path)
                self._point("remove.after")
                self._others = self._measure_others()
                return True
        return False

    # ---- compaction ---------------------------------------------------------------------------------------

    def _compact_one(self) -> bool:
        """Rewrite what is live of the segment with the least of it. False if that would win nothing."""
        victim = self._emptiest()
        if victim is None:
            if not self._appender.active:
                return False
            self._appender.seal()
            victim = self._emptiest()
            if victim is None:
                return False
        self._ledger.commit(self._point)
        self._point("compact.before")
        pairs, lost = self._copy(victim)
        self._point("compact.copied")
        self._appender.sync()
        self._appender.check_place()
        self._point("compact.synced")
        with self._places.lock:  # adoptions look up the index and set places: not between these
            for row in lost:
                self._ledger.strike(row)
            self._ledger.moved(pairs)
            self._places.relocate(victim.number, pairs)
            self._ledger.commit(self._point)
        self._point("compact.committed")
        self._manifest.checkpoint()  # durable before the bytes it no longer speaks of go
        self._segments.remove(victim.number)
        self._ledger.removed(victim.number)
        self._point("compact.unlinked")
        self._counts.add("compactions")
        return True

    def _emptiest(self) -> Segment | None:
        sealed = [s for s in self._segments.all.values() if s.sealed and s.length]
        readable = [s for s in sealed if s.number not in self._unreadable]
        victim = min(readable or sealed, key=self._live_share, default=None)
        return victim if victim is not None and self._live_share(victim) < _FULL else None

    def _live_share(self, segment: Segment) -> float:
        """The share of a segment's bytes that compaction would have to write again."""
        header = min(self._layout.header_bytes(kind) for kind in Kind)
        return (segment.live * self._layout.page_bytes + segment.rows * header) / segment.length

    def _copy(self, victim: Segment) -> tuple[list[tuple[Row, Row]], list[Row]]:
        """Append the live pages of a segment to the newest one. Returns what became of each row, and the rows that are damaged."""
        found = self._manifest.lying_in(victim.number)
        pairs: list[tuple[Row, Row]] = []
        lost: list[Row] = []
        copies: dict[tuple[int, int, Name], Placed] = {}  # rows that share bytes go on sharing them
        for row in found.rows:
            placed = copies.get((row.offset, row.first, row.name))
            if placed is None:
                try:
                    header, rows = self._read(row)
                except (Damaged, Gone):
                    lost.append(row)
                    continue
                except OSError:
                    self._unreadable.add(victim.number)  # the next attempt takes another: a bad sector stays bad
                    raise
                placed = copies[row.offset, row.first, row.name] = self._appender.append(header.kind, row.name, rows)
                self._counts.add("bytes_rewritten", placed.bytes)
            pairs.append((row, replace(row, segment=placed.segment, offset=placed.offset, first=0, seal=placed.seal)))
        for record in found.damaged:
            self._ledger.remove(record, None)
        self._counts.add("quarantined", len(lost) + len(found.damaged))
        return pairs, lost

    def _read(self, row: Row) -> tuple[Header, Rows]:
        """A row's pages, checked. Damaged, Gone, OSError."""
        layout = self._layout
        raw = memoryview(bytearray(layout.header_bytes(row.kind)))
        with self._segments.reading(row.segment) as fd:
            if not read_all(self._files, fd, [raw], row.offset):
                raise Damaged("a segment is shorter than its index says")
            header = decode(layout, row.kind, raw)
            if header.seal != row.seal or row.first < 0 or not 1 <= row.pages <= header.pages - row.first:
                raise Damaged("a record is not the one that the index knows")
            rows = np.empty((row.pages, layout.page_bytes), np.uint8)
            whole = read_all(self._files, fd, [rows.data], row.offset + len(raw) + row.first * layout.page_bytes)
        if not whole or (page_sums(rows) != header.sums[row.first : row.first + row.pages]).any():
            raise Damaged("a page fails its checksum")
        return header, rows
