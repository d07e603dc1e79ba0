"""Host memory for a GPU: mapped at once, page-locked slice by slice in the background, in use as far as it is locked.

    rows   ├── locked ──┼── slice ──┼┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┄┤
                        ▲ ready     touched, then locked

A slice is whole slots and whole pages of the system, so a slot never lies across the end of what is locked.
"""

from __future__ import annotations

import ctypes
import logging
import math
import mmap
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from types import TracebackType
from typing import Protocol

import numpy as np

from stepwell.base.clock import Clock, WallClock
from stepwell.base.units import ceil_to, format_size
from stepwell.store.arena import Rows

log = logging.getLogger(__name__)

_SLICE = 16 << 20
"""Bytes: long enough to be worth a call, short enough for a step that waits for the driver meanwhile."""
_FIRST = 4
"""Slices that are locked before anyone serves: enough for the speed of copies to be measured."""
_REST = 2.0
"""How long to leave the driver to the steps between two slices, in times that a slice takes."""
_PATIENCE = 0.1
"""Seconds between two slices while copies are to go before: all of host is to be had some time, however busy the engine is."""
_TOUCHERS = 2
"""Threads that fetch zeroed memory from the system, ahead of the locking: it is most of the time."""
_EVERY = 5.0  # seconds between two lines of the log
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE of Linux 5.14, which Python does not name


class Locker(Protocol):
    """What page-locks: `stepwell.store.cudart.Cudart`."""

    def register(self, address: int, size: int) -> None:
        """StoreError where it cannot be had."""

    def unregister(self, address: int) -> None:
        """Undo it."""


def mapped(slots: int, page_bytes: int) -> Rows:
    """Zeroed memory [slots, page_bytes] that the system hands out as it is touched, in large pages where it has them."""
    memory = mmap.mmap(-1, max(1, slots * page_bytes))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8, slots * page_bytes).reshape(slots, page_bytes)


class Pinning:
    """Page-locks `rows` (uint8 [slots, page_bytes], from `mapped`) from slot 0 on. Close it before the memory goes.

    The first slices are locked when this returns; StoreError where they cannot be had. Where a later one cannot, the log says so and the
    slots up to there are all that there are.
    """

    def __init__(self, rows: Rows, locker: Locker, *, clock: Clock | None = None, slice_bytes: int = _SLICE) -> None:
        self._rows = rows
        self._locker = locker
        self._clock = clock or WallClock()
        slots, width = rows.shape
        unit = mmap.PAGESIZE // math.gcd(width, mmap.PAGESIZE)
        self._step = ceil_to(max(1, slice_bytes // width), unit)
        self._ready = 0
        self._stop = threading.Event()
        self._ended = threading.Event()
        self._locked: list[int] = []
        self._began = self._clock.now()
        slices = iter(range(0, slots, self._step))
        self._rest, self._patience = _REST, _PATIENCE
        self._clear = threading.Event()
        self._clear.set()
        try:
            for first in islice(slices, _FIRST):
                self._lock(first)
        except BaseException:
            self._unlock()
            raise
        self._thread = threading.Thread(target=self._work, args=(slices,), name="stepwell-pinning", daemon=True)
        self._thread.start()

    def __enter__(self) -> Pinning:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def ready(self) -> int:
        """Slots that are locked by now, from 0 on. Never falls before `close`."""
        return self._ready

    @property
    def ended(self) -> bool:
        """Whether no more slots will become ready: all are, or one could not be locked."""
        return self._ended.is_set()

    @property
    def closing(self) -> bool:
        """True once `close` has been called: no more slots will become ready."""
        return self._stop.is_set()

    def give_way(self, wanted: bool) -> None:
        """Whether copies are to go before, from now on: the driver does one thing at a time, and locking a slice takes it some 7 ms."""
        if wanted:
            self._clear.clear()
        else:
            self._clear.set()

    def wait(self) -> None:
        """Return once no more slots will become ready; without rests from here on."""
        self._rest = self._patience = 0.0
        self._clear.set()
        self._ended.wait()

    def close(self) -> None:
        """Stop, and unlock everything. Twice does no harm."""
        self._stop.set()
        self._clear.set()
        self._thread.join()
        self._unlock()

    def _work(self, slices: Iterator[int]) -> None:
        due = self._clock.now() + _EVERY
        with ThreadPoolExecutor(_TOUCHERS, "stepwell-touching") as pool:
            touched: list[tuple[int, Future[None]]] = [(first, pool.submit(self._touch, first)) for first in slices]
            try:
                for first, ahead in touched:
                    ahead.result()
                    self._clear.wait(self._patience)
                    if self._stop.is_set():
                        break
                    began = self._clock.now()
                    self._lock(first)
                    self._stop.wait(self._rest * (self._clock.now() - began))
                    if self._clock.now() >= due:
                        due = self._clock.now() + _EVERY
                        self._tell()
                else:
                    self._tell()
            except Exception as error:
                log.warning(
                    "host memory stays at %s of %s: %s", self._size(self._ready), self._size(len(self._rows)), error
                )
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
                self._ended.set()

    def _lock(self, first: int) -> None:
        part = self._rows[first : first + self._step]
        self._locker.register(part.ctypes.data, part.nbytes)
        self._locked.append(part.ctypes.data)
        self._ready = first + len(part)

    def _unlock(self) -> None:
        while self._locked:
            self._locker.unregister(self._locked.pop())

    def _touch(self, first: int) -> None:
        """Have the system hand out these pages now, which it would do as they are locked, more slowly."""
        part = self._rows[first : first + self._step]
        if not self._stop.is_set():
            ctypes.CDLL(None).madvise(
                ctypes.c_void_p(part.ctypes.data), ctypes.c_size_t(part.nbytes), ctypes.c_int(_POPULATE_WRITE)
            )

    def _tell(self) -> None:
        seconds = max(self._clock.now() - self._began, 1e-9)
        rate = format_size(int(self._ready * self._rows.shape[1] / seconds))
        log.info("host memory: %s of %s page-locked, %s/s", self._size(self._ready), self._size(len(self._rows)), rate)

    def _size(self, slots: int) -> str:
        return format_size(slots * self._rows.shape[1])
