"""What earlier processes left: the directory's view of the index, read on the engine's thread."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from stepwell.base.geometry import Ints
from stepwell.cache.disk.archive import Dormant
from stepwell.store.disk.health import DiskCounts, Health, is_ruin
from stepwell.store.disk.inbox import Inbox
from stepwell.store.disk.ledger import Places
from stepwell.store.disk.manifest import Manifest, Place, Row
from stepwell.store.disk.record import Kind, Layout
from stepwell.store.disk.segments import Segments

MOST_UNDER = 1024
"""Digests at most in one question: as many ways to go on as blocks in a chunk, and far fewer than SQLite takes."""
_BATCH = 256


class DiskCatalogue:
    """`Catalogue` (see `stepwell.cache.disk.archive`). Dormant are the rows with ids up to `last` that nobody has claimed in this process.

    `claim` and `pages` may be used from the writer's thread, the rest belongs to the engine's.
    """

    def __init__(
        self,
        manifest: Manifest,
        layout: Layout,
        segments: Segments,
        places: Places,
        inbox: Inbox,
        health: Health,
        counts: DiskCounts,
        last: int,
        pages: int,
    ) -> None:
        self._manifest = manifest
        self._layout = layout
        self._segments = segments
        self._places = places
        self._inbox = inbox
        self._health = health
        self._counts = counts
        self._last = last
        self._pages = pages
        self._claimed: set[int] = set()
        self._damaged: set[int] = set()

    @property
    def pages(self) -> int:
        """Pages of all dormant records."""
        return self._pages

    def hold(self, seconds: float = 0.0) -> bool:
        """Have no compaction commit until `let_go`; False if one still does after so long: it may wait for the disk. The engine's thread
        holds it, so its own look-ups and adoptions go on."""
        return self._places.lock.acquire(timeout=seconds)

    def let_go(self) -> None:
        self._places.lock.release()

    def under(self, parent: bytes, digests: Sequence[bytes]) -> Sequence[Dormant]:
        """The dormant records of this parent with one of the first MOST_UNDER of these digests. Rows that fail a check go."""
        if not self._pages or self._health.broken:
            return ()
        try:
            found = self._manifest.matching(parent, digests[:MOST_UNDER], self._last)
        except sqlite3.Error as error:
            self._note(error)
            return ()
        self._quarantine(found.damaged)
        usable = [row for row in found.rows if self._usable(row, parent)]
        return [Dormant(row.id, row.kind.what, row.name, row.pages) for row in usable]

    def everything(self) -> list[Dormant]:
        """All dormant records, least recently used first. O(their number): for who keeps a catalogue of several stores."""
        found, at = list[Dormant](), (-1.0, 0)
        try:
            while True:
                rows, at = self._manifest.oldest(self._last, at, _BATCH)
                self._quarantine(rows.damaged)
                usable = [row for row in rows.rows if self._usable(row, row.name.parent)]
                found += [Dormant(row.id, row.kind.what, row.name, row.pages) for row in usable]
                if not rows.rows and not rows.damaged:
                    return found
        except sqlite3.Error as error:
            self._note(error)
            return []

    def adopt(self, dormant: Dormant, slots: Ints) -> None:
        """The record's pages are these slots: they can be read at once. What cannot be had any more reads as a failure."""
        with self._places.lock:
            twice = not self.claim(dormant.record, dormant.pages)
            try:
                row = self._manifest.get(dormant.record)
            except sqlite3.Error as error:
                self._note(error)
                row = None
            if row is not None and row.pages == len(slots):
                self._places.put(slots, row)
            else:  # what they held before may lie at the same position of another prompt
                self._places.vacate(slots)
        self._counts.add("adopted")
        self._inbox.adopt(dormant.record, slots, twice)

    def discard(self, dormant: Dormant) -> None:
        """The record goes."""
        if self.claim(dormant.record, dormant.pages):
            self._inbox.drop(dormant.record)

    def trim_dormant(self, pages: int) -> int:
        """Drop the records least recently used, until `pages` pages have gone or none is left; how many pages that was."""
        gone, records = 0, list[int]()
        at: Place = (-1.0, 0)
        try:
            while gone < pages and self._pages:
                found, at = self._manifest.oldest(self._last, at, _BATCH)
                self._quarantine(found.damaged)
                for row in found.rows:
                    if gone >= pages:
                        break
                    if self.claim(row.id, row.pages):
                        gone += row.pages
                        records.append(row.id)
                if not found.rows and not found.damaged:
                    gone, self._pages = gone + self._pages, 0  # what the count had too many
        except sqlite3.Error as error:
            self._note(error)
        self._inbox.drop(*records)
        return gone

    def expel(self, root: bytes) -> int:
        """Drop every record of this root; how many pages that was."""
        gone, records, after = 0, list[int](), 0
        try:
            while after < self._last:
                found, after = self._manifest.rooted_in(root, self._last, after, _BATCH)
                self._quarantine(found.damaged)
                claimed = [row for row in found.rows if self.claim(row.id, row.pages)]
                gone += sum(row.pages for row in claimed)
                records += [row.id for row in claimed]
        except sqlite3.Error as error:
            self._note(error)
        self._inbox.drop(*records)
        return gone

    def claim(self, record: int, pages: int) -> bool:
        """This record is dormant no more; False if it was not. Whoever claims it says what becomes of it."""
        with self._places.lock:
            if record > self._last or record in self._claimed:
                return False
            self._claimed.add(record)
            self._pages = max(0, self._pages - pages)
            return True

    def is_damaged(self, record: int) -> bool:
        """Whether the record has failed a check of this catalogue, and is only waiting to be removed."""
        return record in self._damaged

    def _usable(self, row: Row, parent: bytes) -> bool:
        """Whether a row, which holds as such, is dormant and speaks of bytes that can be there."""
        if row.id in self._claimed or row.name.parent != parent:
            return False
        if self._makes_sense(row):
            return True
        self._quarantine((row.id,))
        self._pages = max(0, self._pages - row.pages)
        return False

    def _makes_sense(self, row: Row) -> bool:
        layout, name = self._layout, row.name
        span = row.pages * layout.block if row.kind is Kind.KV else 0
        within = row.first >= 0 and 1 <= row.pages <= layout.most_pages(row.kind) - row.first
        whole = row.kind is Kind.KV or (row.first == 0 and row.pages == layout.image_pages)
        size = layout.header_bytes(row.kind) + (row.first + row.pages) * layout.page_bytes
        return within and whole and name.end - name.start == span and self._segments.fits(row.segment, row.offset, size)

    def _quarantine(self, records: Sequence[int]) -> None:
        fresh = [record for record in records if record not in self._claimed]
        self._claimed.update(fresh)
        self._damaged.update(fresh)
        self._counts.add("quarantined", len(fresh))
        self._inbox.drop(*fresh)

    def _note(self, error: sqlite3.Error) -> None:
        """A broken index says that there is nothing."""
        if is_ruin(error):
            self._health.ruined(error)
        else:
            self._health.note("index", f"the index cannot be read: {error}")
