"""Reading pages back, in large pieces, into memory that is used again and again; every page compared with its checksum."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from stepwell.base.errors import StoreError
from stepwell.base.geometry import Ints
from stepwell.cache.moves import Move
from stepwell.store.arena import Rows
from stepwell.store.disk.files import read_all
from stepwell.store.disk.health import DiskCounts
from stepwell.store.disk.ledger import Places, Stretch
from stepwell.store.disk.record import Damaged, Header, Kind, Layout, decode, page_sums
from stepwell.store.disk.segments import Gone, Segments

_VECTORS = 512
"""Buffers at most in one call to the system."""


@dataclass(frozen=True, slots=True)
class Part:
    """One stretch and what is read for it: its header, and its pages into these rows."""

    stretch: Stretch
    header: memoryview
    rows: Rows


Deliver: TypeAlias = Callable[[slice, Rows], None]
"""Takes the bytes of some of a move's slots: `rows[i]` is that of the slice's slot i, good until it returns."""


class Reader:
    """Carries out moves from disk. Safe to use from several threads, each with memory of its own.

    damaged   called with slots and the stretch that they lie in where the bytes fail a check, so that nobody is sent there again
    """

    def __init__(
        self,
        layout: Layout,
        segments: Segments,
        places: Places,
        counts: DiskCounts,
        damaged: Callable[[Ints, Stretch], None],
    ) -> None:
        self._layout = layout
        self._segments = segments
        self._places = places
        self._counts = counts
        self._damaged = damaged

    def read(self, move: Move, memory: Rows, deliver: Deliver) -> None:
        """Read a move's slots into `memory` [n, page_bytes], as many at a time as it holds, and deliver each lot.

        Images are delivered whole. StoreError (Damaged, Gone) or OSError: what has been delivered so far is of no use.
        """
        slots, page = move.source.slots, self._layout.page_bytes
        assert memory.shape[1] == page and memory.flags.c_contiguous
        kind = Kind.of(move)
        if kind is Kind.IMAGE and len(slots) != self._layout.image_pages:
            raise StoreError(
                f"move {move.ticket} takes {len(slots)} disk slots for an image of {self._layout.image_pages} pages"
            )
        step = len(memory)
        assert kind is Kind.KV or step >= len(slots)
        for first in range(0, len(slots), step):
            lot = slots[first : first + step]
            self._read_lot(move, kind, lot, first, memory[: len(lot)])
            deliver(slice(first, first + len(lot)), memory[: len(lot)])
        self._counts.add("bytes_read", len(slots) * page)

    def _read_lot(self, move: Move, kind: Kind, slots: Ints, first: int, rows: Rows) -> None:
        """`slots` are those of the move from number `first` on."""
        for again in (False, True):
            try:
                stretches = self._places.stretches(slots)
                for run in self._runs(kind, stretches):
                    self._fetch(kind, [self._part(kind, stretch, rows) for stretch in run], move, first, slots)
                return
            except Gone:
                if again:  # once: a compaction may have moved the pages between the look and the reading
                    raise

    def _part(self, kind: Kind, stretch: Stretch, rows: Rows) -> Part:
        header = memoryview(bytearray(self._layout.header_bytes(kind)))
        return Part(stretch, header, rows[stretch.at : stretch.at + stretch.count])

    def _runs(self, kind: Kind, stretches: list[Stretch]) -> Iterator[list[Stretch]]:
        """Whole records that follow each other in a file, to be read in one call; what begins inside a record, alone."""
        run: list[Stretch] = []
        end = -1
        for stretch in stretches:
            follows = (
                stretch.index == 0 and stretch.segment == run[0].segment and stretch.offset == end if run else False
            )
            if run and (not follows or run[0].index or 2 * len(run) >= _VECTORS):
                yield run
                run = []
            run.append(stretch)
            used = self._layout.header_bytes(kind) + (stretch.index + stretch.count) * self._layout.page_bytes
            end = stretch.offset + used
        if run:
            yield run

    def _fetch(self, kind: Kind, parts: list[Part], move: Move, first: int, slots: Ints) -> None:
        """Read and check the parts of one run. Damaged names what failed."""
        start = parts[0].stretch
        size = self._layout.header_bytes(kind)
        files = self._segments.files
        with self._segments.reading(start.segment) as fd:
            if start.index:  # the header and the pages do not follow each other
                whole = read_all(files, fd, [parts[0].header], start.offset)
                at = start.offset + size + start.index * self._layout.page_bytes
                buffers = [parts[0].rows.data]
            else:
                whole, at = True, start.offset
                buffers = [view for part in parts for view in (part.header, part.rows.data)]
            files.expect(fd, at, sum(view.nbytes for view in buffers))
            whole = whole and read_all(files, fd, buffers, at)
            files.done_with(fd, start.offset, at - start.offset + sum(view.nbytes for view in buffers))
        if not whole:
            raise self._failed(slots, start, "ends before its pages do")
        for part in parts:
            self._check(kind, part, move, first, slots)

    def _check(self, kind: Kind, part: Part, move: Move, first: int, slots: Ints) -> None:
        stretch = part.stretch
        try:
            header = decode(self._layout, kind, part.header)
        except Damaged as error:
            raise self._failed(slots, stretch, str(error)) from error
        if header.seal != stretch.seal or stretch.index + stretch.count > header.pages:
            raise self._failed(slots, stretch, "is not the record that the index knows")
        if not self._is_due(kind, header, stretch, move, first):
            raise self._failed(slots, stretch, "holds another position than the one asked for")
        if (page_sums(part.rows) != header.sums[stretch.index : stretch.index + stretch.count]).any():
            raise self._failed(slots, stretch, "fails the checksum of a page")

    def _is_due(self, kind: Kind, header: Header, stretch: Stretch, move: Move, first: int) -> bool:
        """Whether the pages belong to the positions that the move says."""
        at = first + stretch.at
        if kind is Kind.IMAGE:
            return header.name.start == header.name.end == move.tokens and stretch.index == at
        position = move.tokens - (len(move.source.slots) - at) * self._layout.block
        return header.name.start + stretch.index * self._layout.block == position

    def _failed(self, slots: Ints, stretch: Stretch, why: str) -> Damaged:
        """Have the stretch's slots struck off, and say so."""
        self._damaged(slots[stretch.at : stretch.at + stretch.count], stretch)
        return Damaged(
            f"the disk cache's record at {stretch.offset} of segment {stretch.segment} {why}: its tokens are recomputed"
        )
