"""Where the store meets the operating system, and where it can die, so that tests can make it fail and kill it.

`OsFiles` makes every call that touches the store's bytes. POINTS names the moments between which a process can die.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeAlias

Buffers = Sequence[memoryview]
_WORTH_A_WORD = 256 << 10


class Files(Protocol):
    """Each call raises OSError as the system's own would. Descriptors are plain numbers."""

    def open(self, path: Path, flags: int) -> int: ...

    def close(self, fd: int) -> None: ...

    def pwritev(self, fd: int, buffers: Buffers, offset: int) -> int: ...

    def preadv(self, fd: int, buffers: Buffers, offset: int) -> int: ...

    def fdatasync(self, fd: int) -> None: ...

    def truncate(self, fd: int, length: int) -> None: ...

    def status(self, fd: int) -> os.stat_result: ...

    def lstat(self, path: Path) -> os.stat_result: ...

    def unlink(self, path: Path) -> None: ...

    def names(self, path: Path) -> list[str]: ...

    def mkdir(self, path: Path) -> None: ...

    def sync_folder(self, path: Path) -> None: ...

    def remove_tree(self, path: Path) -> None: ...

    def expect(self, fd: int, offset: int, length: int) -> None: ...

    def done_with(self, fd: int, offset: int, length: int) -> None: ...


class OsFiles:
    """The real ones. Links are never followed where a file of ours should be."""

    def open(self, path: Path, flags: int) -> int:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwritev(self, fd: int, buffers: Buffers, offset: int) -> int:
        return os.pwritev(fd, buffers, offset)

    def preadv(self, fd: int, buffers: Buffers, offset: int) -> int:
        return os.preadv(fd, buffers, offset)

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def status(self, fd: int) -> os.stat_result:
        return os.fstat(fd)

    def lstat(self, path: Path) -> os.stat_result:
        return os.lstat(path)

    def unlink(self, path: Path) -> None:
        os.unlink(path)

    def names(self, path: Path) -> list[str]:
        return os.listdir(path)

    def mkdir(self, path: Path) -> None:
        os.mkdir(path, 0o700)

    def sync_folder(self, path: Path) -> None:
        """Make new and removed names in `path` durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove_tree(self, path: Path) -> None:
        shutil.rmtree(path)

    def expect(self, fd: int, offset: int, length: int) -> None:
        """These bytes are about to be read. Readers share a descriptor, so that the system cannot guess it from their order."""
        if length >= _WORTH_A_WORD:
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_WILLNEED)

    def done_with(self, fd: int, offset: int, length: int) -> None:
        """These bytes need not stay in the page cache: what they are for lies in memory already."""
        if length >= _WORTH_A_WORD:
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)


def write_all(files: Files, fd: int, buffers: Buffers, offset: int) -> int:
    """Write every byte, however short the system's writes are. Returns the offset behind them."""
    left = [view.cast("B") for view in buffers if view.nbytes]
    while left:
        done = files.pwritev(fd, left, offset)
        if done <= 0:
            raise OSError(0, "a write made no progress")
        offset += done
        left = _rest(left, done)
    return offset


def read_all(files: Files, fd: int, buffers: Buffers, offset: int) -> bool:
    """Fill every buffer. False if the file ends before that."""
    left = [view.cast("B") for view in buffers if view.nbytes]
    while left:
        done = files.preadv(fd, left, offset)
        if done <= 0:
            return False
        offset += done
        left = _rest(left, done)
    return True


def _rest(views: list[memoryview], done: int) -> list[memoryview]:
    """What is left of `views` after their first `done` bytes."""
    for i, view in enumerate(views):
        if done < view.nbytes:
            return [view[done:], *views[i + 1 :]]
        done -= view.nbytes
    return []


def is_plain(status: os.stat_result) -> bool:
    """Whether this is a regular file."""
    return stat.S_ISREG(status.st_mode)


def disk_usage(files: Files, path: Path) -> int:
    """Bytes that `path` and everything in it take on disk, as `du` counts them; what vanishes meanwhile counts nothing."""
    try:
        status = files.lstat(path)
        size = status.st_blocks * 512
        if stat.S_ISDIR(status.st_mode):
            size += sum(disk_usage(files, path / name) for name in files.names(path))
    except OSError:
        return 0
    return size


Point: TypeAlias = Callable[[str], None]
"""Called with one of POINTS as it is passed. What it raises is treated as a failure of the system at that place."""

POINTS = (
    "segment.before",  # a new segment's file is about to be made
    "segment.made",  # it is there, its name perhaps not yet durable
    "segment.after",
    "write.before",  # per record
    "write.half",
    "write.after",
    "verify.before",
    "verify.after",
    "sync.before",  # per batch
    "sync.after",
    "insert.before",  # inside the transaction of a batch
    "insert.after",
    "commit.after",
    "unlink.before",  # a segment without live pages
    "unlink.after",
    "compact.before",  # a segment is about to be rewritten
    "compact.copied",
    "compact.synced",
    "compact.committed",
    "compact.unlinked",
    "remove.before",  # a whole namespace of another model or format
    "remove.after",
)
"""In the order in which a write meets them; numbered by their place here."""


def no_point(name: str) -> None:
    """Passes every point."""
