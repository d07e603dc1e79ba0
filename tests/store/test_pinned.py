"""Host memory that is page-locked in the background: what is locked, when it counts, and what is left where that ends early."""

from __future__ import annotations

import logging
import mmap
import threading
from pathlib import Path

import numpy as np
import pytest

from stepwell.base.errors import StoreError
from stepwell.store import pinned
from stepwell.store.numa import node_of, prefer_node
from stepwell.store.pinned import Pinning, mapped

WIDTH, SLOTS = 1536, 200  # eight slots are three pages of the system
SLICE = 20 * WIDTH  # rounded up to 24 slots; four of them are locked at once


class Locker:
    """Locks nothing; each call but the first four waits to be let through. Refuses the call with number `refused`."""

    def __init__(self, refused: int = -1) -> None:
        self.locked: list[tuple[int, int]] = []
        self.unlocked: list[int] = []
        self.permits, self.entered = threading.Semaphore(4), threading.Semaphore(0)
        self._refused = refused

    def register(self, address: int, size: int) -> None:
        self.entered.release()
        assert self.permits.acquire(timeout=30)
        if len(self.locked) == self._refused:
            raise StoreError("cudaHostRegister failed with CUDA error 2")
        self.locked.append((address, size))

    def unregister(self, address: int) -> None:
        self.unlocked.append(address)


def until_ended(pinning: Pinning) -> None:
    while not pinning.ended:
        threading.Event().wait(0.001)


def test_slots_count_slice_by_slice_and_the_first_at_once() -> None:
    rows, locker = mapped(SLOTS, WIDTH), Locker()
    with Pinning(rows, locker, slice_bytes=SLICE) as pinning:
        assert pinning.ready == 96 and not pinning.ended
        for _ in range(4):
            assert locker.entered.acquire(timeout=30)
        for ready in (96, 120, 144, 168, 192):
            assert locker.entered.acquire(timeout=30) and pinning.ready == ready
            locker.permits.release()
        pinning.wait()
        assert pinning.ready == SLOTS and pinning.ended
        begins = [address - rows.ctypes.data for address, _ in locker.locked]
        assert begins == [i * 24 * WIDTH for i in range(9)] and all(begin % mmap.PAGESIZE == 0 for begin in begins)
        assert sum(size for _, size in locker.locked) == rows.nbytes
    assert sorted(locker.unlocked) == [address for address, _ in locker.locked]
    pinning.close()
    assert len(locker.unlocked) == 9


def test_where_no_more_can_be_locked_the_rest_is_left_out_and_said(caplog: pytest.LogCaptureFixture) -> None:
    locker = Locker(refused=6)
    locker.permits.release(9)
    with caplog.at_level(logging.WARNING), Pinning(mapped(SLOTS, WIDTH), locker, slice_bytes=SLICE) as pinning:
        pinning.wait()
        assert pinning.ready == 144 and pinning.ended
    assert "stays at 216.0 KiB of 300.0 KiB: cudaHostRegister failed with CUDA error 2" in caplog.text
    assert len(locker.unlocked) == 6


def test_without_the_first_slices_there_is_no_host_memory() -> None:
    locker = Locker(refused=1)
    with pytest.raises(StoreError, match="error 2"):
        Pinning(mapped(SLOTS, WIDTH), locker, slice_bytes=SLICE)
    assert locker.unlocked == [address for address, _ in locker.locked]


def test_closing_ends_it_after_the_slice_that_is_being_locked() -> None:
    locker = Locker()
    pinning = Pinning(mapped(SLOTS, WIDTH), locker, slice_bytes=SLICE)
    for _ in range(5):
        assert locker.entered.acquire(timeout=30)
    closer = threading.Thread(target=pinning.close)
    closer.start()
    while not pinning.closing:
        threading.Event().wait(0.001)
    locker.permits.release(9)
    closer.join(30)
    assert len(locker.locked) <= 5 and len(locker.unlocked) == len(locker.locked)


def test_while_copies_are_to_go_before_a_slice_waits_for_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_PATIENCE", 3600.0)
    locker = Locker()
    with Pinning(mapped(SLOTS, WIDTH), locker, slice_bytes=SLICE) as pinning:
        for _ in range(5):
            assert locker.entered.acquire(timeout=30)
        pinning.give_way(True)
        locker.permits.release(9)
        assert not locker.entered.acquire(timeout=0.05), "the slice that was being locked as they came is the last"
        pinning.give_way(False)
        until_ended(pinning)
        assert pinning.ready == SLOTS


def test_however_busy_the_engine_is_all_is_locked_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pinned, "_PATIENCE", 0.001)
    locker = Locker()
    locker.permits.release(9)
    with Pinning(mapped(SLOTS, WIDTH), locker, slice_bytes=SLICE) as pinning:
        pinning.give_way(True)
        until_ended(pinning)
        assert pinning.ready == SLOTS


def test_mapped_memory_is_zero_and_can_be_written() -> None:
    rows = mapped(3, 10)
    assert rows.shape == (3, 10) and not rows.any()
    rows[2] = 7
    assert rows[2].tolist() == [7] * 10


def test_a_device_says_on_which_node_it_sits(tmp_path: Path) -> None:
    for name, text in (("a", "1\n"), ("b", "-1\n"), ("c", "none")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "numa_node").write_text(text)
    assert [node_of(name, tmp_path) for name in "abcd"] == [1, None, None, None]


def test_a_node_that_is_not_there_is_said_and_does_no_harm() -> None:
    rows = mapped(4, mmap.PAGESIZE)
    assert prefer_node(rows.ctypes.data, rows.nbytes, 63)
    assert prefer_node(rows.ctypes.data, rows.nbytes, 64)
    rows[:] = 1
    assert np.count_nonzero(rows) == rows.size
