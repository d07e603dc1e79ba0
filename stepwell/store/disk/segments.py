"""The files that records lie in: written once, front to back, never again, removed as a whole.

`Appender` writes records at the end of the newest segment; each is read back and compared before it counts.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Name
from stepwell.store.arena import Rows
from stepwell.store.disk.files import Files, Point, is_plain, read_all, write_all
from stepwell.store.disk.record import Kind, Layout, Sums, encode, page_sums

NAME = re.compile(r"([0-9]{8})\.seg")
MOST_OPEN = 128
"""Descriptors kept open for reading when nobody is reading."""


class Gone(StoreError):
    """A segment is not there, or not as long as what it is said to hold."""


@dataclass(slots=True)
class Segment:
    """length: bytes that records may lie in; live, rows: pages and rows that the index has in it; sealed: takes no more."""

    number: int
    length: int
    live: int = 0
    rows: int = 0
    sealed: bool = True


@dataclass(slots=True)
class _Open:
    fd: int
    readers: int = 0
    doomed: bool = False


class Segments:
    """All segments of a namespace. Numbers are never used twice, so no index entry can come to mean other bytes."""

    def __init__(self, folder: Path, files: Files) -> None:
        self.folder = folder
        self.files = files
        self.all: dict[int, Segment] = {}
        self._open: dict[int, _Open] = {}  # least recently used first
        self._lock = threading.Lock()

    def path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.seg"

    def found(self) -> dict[int, os.stat_result]:
        """The files that look like segments, by number."""
        matches = (NAME.fullmatch(name) for name in self.files.names(self.folder))
        numbers = (int(match[1]) for match in matches if match is not None)
        return {number: self.files.lstat(self.path(number)) for number in numbers}

    @property
    def bytes(self) -> int:
        """Bytes of all segment files."""
        return sum(segment.length for segment in list(self.all.values()))

    def fits(self, number: int, offset: int, size: int) -> bool:
        """Whether a record of this size can lie there."""
        segment = self.all.get(number)
        return segment is not None and 0 <= offset <= segment.length - size

    @contextmanager
    def reading(self, number: int) -> Iterator[int]:
        """A descriptor, good to the end of the block even if the segment is removed meanwhile. Gone, OSError."""
        with self._lock:
            held = self._open.pop(number, None) or _Open(self._open_file(number))
            self._open[number] = held
            held.readers += 1
        try:
            yield held.fd
        finally:
            with self._lock:
                held.readers -= 1
                self._trim(held)

    def remove(self, number: int) -> None:
        """Unlink a segment. Whoever reads it goes on reading. OSError: it is still there."""
        with suppress(FileNotFoundError):  # someone else has removed it
            self.files.unlink(self.path(number))
        self.all.pop(number, None)
        self.forget(number)

    def forget(self, number: int) -> None:
        """Close the descriptor once nobody reads."""
        with self._lock:
            held = self._open.pop(number, None)
            if held is not None:
                held.doomed = True
                self._trim(held)

    def close(self) -> None:
        """Close every descriptor that nobody uses."""
        for number in list(self._open):
            self.forget(number)

    def _open_file(self, number: int) -> int:
        if number not in self.all:
            raise Gone(f"segment {number} is no longer there: its record is recomputed")
        try:
            fd = self.files.open(self.path(number), os.O_RDONLY)
        except FileNotFoundError as error:
            self.files.lstat(self.folder)  # where all of it has vanished, it may come back
            raise Gone(f"segment {number} has been removed: its record is recomputed") from error
        if not is_plain(self.files.status(fd)):
            self.files.close(fd)
            raise Gone(f"segment {number} is not a plain file: it is not read")
        return fd

    def _trim(self, held: _Open) -> None:
        if held.doomed and not held.readers:
            with suppress(OSError):
                self.files.close(held.fd)
        idle = [number for number, one in self._open.items() if not one.readers] if len(self._open) > MOST_OPEN else []
        for number in idle[: max(0, len(self._open) - MOST_OPEN)]:
            with suppress(OSError):
                self.files.close(self._open.pop(number).fd)


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
