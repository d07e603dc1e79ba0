"""A file system that fails as planned, for tests of the disk store.

files = FaultyFiles()
store = DiskStore.open(path, budget, layout, Options(files=files))
files.fail("write", errno.EIO, after=3, count=1)
files.fill(1 << 20)      # no space left after so many more bytes
files.heal()
files.lose_power()       # what was never synced is gone; open the store again with new files
"""

from __future__ import annotations

import errno
import os
import random
import threading
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from stepwell.store.disk.files import Buffers, OsFiles

Call: TypeAlias = Literal["open", "create", "write", "read", "sync", "truncate", "unlink", "list"]

READ_ONLY: tuple[Call, ...] = ("create", "write", "truncate", "unlink")
"""The calls that a file system mounted read-only refuses."""


@dataclass(slots=True)
class _Fault:
    call: Call
    error: int
    after: int
    left: int | None


class FaultyFiles(OsFiles):
    """The real files, with faults. Every method may be called from any thread.

    calls   how often each call was made      injected   how often a fault was
    """

    def __init__(self, rng: random.Random | None = None) -> None:
        self.calls: Counter[str] = Counter()
        self.injected = 0
        self._rng = rng or random.Random(0)
        self._lock = threading.RLock()
        self._faults: list[_Fault] = []
        self._space: int | None = None
        self._most: int | None = None
        self._flips = 0
        self._flip_after = 0
        self._paths: dict[int, Path] = {}
        self._synced: dict[Path, int] = {}
        self._unnamed: set[Path] = set()

    # ---- the plan -----------------------------------------------------------------------------------------

    def fail(self, call: Call, error: int, *, after: int = 0, count: int | None = None) -> None:
        """Let this call raise OSError of this number, `count` times (None: always), once it has been made `after` times more."""
        with self._lock:
            self._faults.append(_Fault(call, error, after, count))

    def read_only(self) -> None:
        """As if the file system had been mounted anew, read-only."""
        for call in READ_ONLY:
            self.fail(call, errno.EROFS)

    def fill(self, left: int) -> None:
        """No more than so many bytes can be written: the last write is short, the next one fails."""
        self._space = left

    def dribble(self, most: int) -> None:
        """No call reads or writes more than so many bytes."""
        self._most = most

    def flip(self, count: int, *, after: int = 0) -> None:
        """Flip one bit in what each of the next `count` reads returns, after `after` good ones."""
        with self._lock:
            self._flips, self._flip_after = count, after

    def heal(self) -> None:
        """No more faults."""
        with self._lock:
            self._faults, self._space, self._most, self._flips = [], None, None, 0

    def lose_power(self, tail: Literal["cut", "zeros", "noise"] = "cut") -> None:
        """Bytes never synced are cut off, or are zeros, or anything; files whose name was never synced are gone.

        The store that used these files must not be used any more.
        """
        for path, synced in self._synced.items():
            if not path.exists():
                continue
            lost = path.stat().st_size - synced
            os.truncate(path, synced)
            if tail != "cut" and lost > 0:
                with path.open("ab") as file:
                    file.write(bytes(lost) if tail == "zeros" else self._rng.randbytes(lost))
        for path in self._unnamed:
            path.unlink(missing_ok=True)

    # ---- the calls ----------------------------------------------------------------------------------------

    def open(self, path: Path, flags: int) -> int:
        self._meet("create" if flags & os.O_CREAT else "open")
        with self._lock:
            fresh = not path.exists()
            fd = super().open(path, flags)
            if flags & os.O_CREAT and fresh:
                self._synced[path] = 0
                self._unnamed.add(path)
            self._paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._paths.pop(fd, None)
            super().close(fd)

    def pwritev(self, fd: int, buffers: Buffers, offset: int) -> int:
        self._meet("write")
        wanted = b"".join(buffers)[: self._most]
        with self._lock:
            if self._space is not None:
                if not self._space and wanted:
                    self._raise(errno.ENOSPC)
                wanted = wanted[: self._space]
                self._space -= len(wanted)
        return super().pwritev(fd, [memoryview(wanted)], offset)

    def preadv(self, fd: int, buffers: Buffers, offset: int) -> int:
        self._meet("read")
        left, views = self._most, list(buffers)
        if left is not None:
            views = [buffers[0][:left]]
        done = super().preadv(fd, views, offset)
        with self._lock:
            if self._flip_after:
                self._flip_after -= 1
            elif self._flips and done:
                self._flips -= 1
                self.injected += 1
                self._flip_in(views, self._rng.randrange(done))
        return done

    def fdatasync(self, fd: int) -> None:
        self._meet("sync")
        super().fdatasync(fd)
        with self._lock:
            path = self._paths[fd]
            if path in self._synced:
                self._synced[path] = os.fstat(fd).st_size

    def truncate(self, fd: int, length: int) -> None:
        self._meet("truncate")
        super().truncate(fd, length)

    def unlink(self, path: Path) -> None:
        self._meet("unlink")
        super().unlink(path)

    def names(self, path: Path) -> list[str]:
        self._meet("list")
        return super().names(path)

    def sync_folder(self, path: Path) -> None:
        super().sync_folder(path)
        with self._lock:
            self._unnamed = {file for file in self._unnamed if file.parent != path}

    def _meet(self, call: Call) -> None:
        with self._lock:
            self.calls[call] += 1
            for fault in self._faults:
                if fault.call != call or fault.left == 0:
                    continue
                if fault.after:
                    fault.after -= 1
                    continue
                if fault.left is not None:
                    fault.left -= 1
                self._raise(fault.error)

    def _raise(self, error: int) -> None:
        self.injected += 1
        raise OSError(error, os.strerror(error))

    def _flip_in(self, views: list[memoryview], at: int) -> None:
        for view in views:
            if at < view.nbytes:
                view.cast("B")[at] ^= 1 << self._rng.randrange(8)
                return
            at -= view.nbytes
