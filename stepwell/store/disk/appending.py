"""Writing records at the end of the newest segment, each read back and compared before it counts."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Name
from stepwell.store.arena import Rows
from stepwell.store.disk.files import read_all, write_all
from stepwell.store.disk.layout import Kind, Layout
from stepwell.store.disk.points import Point
from stepwell.store.disk.record import Sums, encode, page_sums
from stepwell.store.disk.segments import Segment, Segments

_VERIFY_BYTES = 4 << 20
FLUSH_BYTES = 8 << 20
"""Bytes after which the disk is set to work while the next records are still being written and read back."""


class Unfaithful(StoreError):
    """What was read back is not what was written."""


@dataclass(frozen=True, slots=True)
class Placed:
    """Where a record was put, its seal, and its bytes in the file."""

    segment: int
    offset: int
    seal: int
    bytes: int


class Appender:
    """The one place that writes segments. Belongs to the writer's thread.

    Nothing it writes counts before `sync`; after an error the segment gets no more records, and `abandon` cuts it back.
    `verify` reads every record back through the page cache; `grown` hears of each segment that has become longer.
    """

    def __init__(
        self,
        layout: Layout,
        segments: Segments,
        size: int,
        verify: bool,
        next_number: int,
        point: Point,
        grown: Callable[[int], None],
    ) -> None:
        self._layout = layout
        self._segments = segments
        self._files = segments.files
        self._size = size
        self._verify = verify
        self._next = next_number
        self._point = point
        self._active: Segment | None = None
        self._fd = -1
        self._unsynced: list[tuple[int, int, int, int]] = []  # fd, segment, offset, end
        self._scratch = np.empty(_VERIFY_BYTES, np.uint8)
        self._flusher = ThreadPoolExecutor(1, "stepwell-disk-flush")
        self._flush: Future[None] | None = None
        self._unflushed = 0
        self._grown = grown

    @property
    def active(self) -> int:
        """The number of the segment being written, or 0."""
        return self._active.number if self._active is not None else 0

    def append(self, kind: Kind, name: Name, rows: Rows) -> Placed:
        """Write one record of these pages. OSError, or Unfaithful if the bytes read back differ."""
        layout, files, point = self._layout, self._files, self._point
        sums = page_sums(rows)
        header, seal = encode(layout, kind, name, sums)
        size = layout.record_bytes(kind, len(rows))
        segment = self._room_for(size)
        offset = segment.length
        half = len(rows) // 2
        point("write.before")
        at = write_all(files, self._fd, [memoryview(header), *_views(rows[:half])], offset)
        point("write.half")
        padding = memoryview(bytes(size - len(header) - rows.nbytes))
        write_all(files, self._fd, [*_views(rows[half:]), padding], at)
        point("write.after")
        self._unsynced.append((self._fd, segment.number, offset, offset + size))
        segment.length += size
        self._grown(segment.number)
        if self._verify:
            point("verify.before")
            self._read_back(header, offset, sums)
            point("verify.after")
        self._set_to_work(size)
        return Placed(segment.number, offset, seal, size)

    def sync(self) -> None:
        """Make everything appended so far durable. OSError: nothing since the last `sync` may be trusted."""
        self._point("sync.before")
        self._wait()
        for fd in dict.fromkeys(fd for fd, *_ in self._unsynced):
            self._files.fdatasync(fd)
        self._point("sync.after")
        for fd, _, offset, end in self._unsynced:
            self._files.done_with(fd, offset, end - offset)
        self._settle()

    def abandon(self) -> None:
        """After an error: give back the bytes that nobody will ask for, as far as the system lets us, and begin a new segment."""
        with suppress(OSError):
            self._wait()
        starts: dict[int, tuple[int, int]] = {}
        for fd, number, offset, _ in self._unsynced:
            starts.setdefault(number, (fd, offset))
        for number, (fd, offset) in starts.items():
            self._cut(number, fd, offset)
        if self._active is not None and self._active.number not in starts:
            self._cut(self._active.number, self._fd, self._active.length)  # a record that was not complete
        self.seal()
        self._settle()

    def seal(self) -> None:
        """The newest segment gets no more records."""
        if self._active is not None:
            self._active.sealed = True
            if all(fd != self._fd for fd, *_ in self._unsynced):
                self._close(self._fd)
        self._active, self._fd = None, -1

    def close(self) -> None:
        """Seal, and end the thread that flushes."""
        self.seal()
        self._flusher.shutdown()

    def try_out(self) -> None:
        """Write, sync and remove a small file. OSError where writing would fail as well."""
        path: Path = self._segments.folder / "trial"
        fd = self._files.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(self._files, fd, [memoryview(bytes(4096))], 0)
            self._files.fdatasync(fd)
        finally:
            self._close(fd)
            with suppress(OSError):
                self._files.unlink(path)

    def check_place(self) -> None:
        """OSError unless the segment being written is still where its name says: a folder can be moved away or removed."""
        if self._active is not None:
            here, there = self._files.status(self._fd), self._files.lstat(self._segments.path(self._active.number))
            if (here.st_dev, here.st_ino) != (there.st_dev, there.st_ino):
                raise FileNotFoundError(2, f"{self._segments.folder} has been replaced by another")

    def _set_to_work(self, size: int) -> None:
        """Have the disk begin with what has been written, unless it is busy."""
        self._unflushed += size
        if self._unflushed >= FLUSH_BYTES and (self._flush is None or self._flush.done()):
            self._wait()
            self._unflushed = 0
            with suppress(RuntimeError):  # no thread takes work once Python ends; `sync` does it all then
                self._flush = self._flusher.submit(self._files.fdatasync, self._fd)

    def _wait(self) -> None:
        """Wait for the flush under way. Its OSError is raised here: the system tells of a lost write once, and then no more."""
        flush, self._flush = self._flush, None
        if flush is not None:
            flush.result()

    def _room_for(self, size: int) -> Segment:
        """The newest segment, or a new one where this one is full."""
        if self._active is not None and self._active.length + size > self._size:
            self.seal()
        if self._active is None:
            self._active = self._begin()
        return self._active

    def _begin(self) -> Segment:
        number = self._next
        self._next += 1
        self._point("segment.before")
        path = self._segments.path(number)
        fd = self._files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._point("segment.made")
            self._files.sync_folder(self._segments.folder)
            self._point("segment.after")
        except OSError:
            self._close(fd)
            with suppress(OSError):
                self._files.unlink(path)
            raise
        self._fd = fd
        segment = self._segments.all[number] = Segment(number, 0, sealed=False)
        return segment

    def _read_back(self, header: bytes, offset: int, sums: Sums) -> None:
        page, files = self._layout.page_bytes, self._files
        found = memoryview(bytearray(len(header)))
        if not read_all(files, self._fd, [found], offset) or found != header:
            raise Unfaithful("a header read back differs from what was written")
        if len(self._scratch) < page:
            self._scratch = np.empty(page, np.uint8)
        step = len(self._scratch) // page
        for first in range(0, len(sums), step):
            want = sums[first : first + step]
            rows = self._scratch[: len(want) * page].reshape(len(want), page)
            whole = read_all(files, self._fd, [rows.data], offset + len(header) + first * page)
            if not whole or (page_sums(rows) != want).any():
                raise Unfaithful("pages read back differ from what was written")

    def _cut(self, number: int, fd: int, length: int) -> None:
        segment = self._segments.all.get(number)
        if segment is not None:
            segment.length = length
        with suppress(OSError):
            self._files.truncate(fd, length)

    def _settle(self) -> None:
        for fd in dict.fromkeys(fd for fd, *_ in self._unsynced):
            if fd != self._fd:
                self._close(fd)
        self._unsynced = []

    def _close(self, fd: int) -> None:
        with suppress(OSError):
            self._files.close(fd)


def _views(rows: Rows) -> list[memoryview]:
    """The bytes of these rows in as few pieces as can be."""
    if not len(rows):
        return []
    return [rows.data] if rows.flags.c_contiguous else [row.data for row in rows]
