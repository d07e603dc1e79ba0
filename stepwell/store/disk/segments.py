"""The files that records lie in: written once, front to back, never again, removed as a whole."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from stepwell.base.errors import StoreError
from stepwell.store.disk.files import Files, is_plain

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
