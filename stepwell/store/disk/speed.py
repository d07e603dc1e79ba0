"""How fast a folder's file system gives bytes back, for weighing a load against computing again."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

TYPICAL = 1e9
"""Bytes a second where nothing can be measured: a slow NVMe drive or a good network file system."""
_NAME = "speed.trial"
_PIECE = 4 << 20
_MOST = 64 << 20
_PATIENCE = 1.0  # seconds of writing


def read_speed(folder: Path, budget: int) -> float:
    """Bytes a second of a plain read of a file just written and dropped from the page cache; TYPICAL where that fails.

    Writes at most 64 MiB and 1/16 of `budget` bytes, for about a second, and removes them. The folder must be locked.
    """
    count = min(_MOST, budget // 16) // _PIECE
    path = folder / _NAME
    try:
        if not count:
            return TYPICAL
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            return _measure(fd, count)
        finally:
            os.close(fd)
    except OSError:
        return TYPICAL
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _measure(fd: int, count: int) -> float:
    piece = memoryview(os.urandom(_PIECE))
    began, size = time.monotonic(), 0
    for _ in range(count):
        size += os.pwrite(fd, piece, size)
        os.fdatasync(fd)
        if time.monotonic() - began > _PATIENCE:
            break
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    buffer = [memoryview(bytearray(_PIECE))]
    began, offset = time.monotonic(), 0
    while offset < size:
        done = os.preadv(fd, buffer, offset)
        if not done:
            break
        offset += done
    return offset / max(time.monotonic() - began, 1e-6)
