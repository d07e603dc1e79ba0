"""The disk mover: every ticket ends once, nobody is kept waiting, and reading goes on beside writing."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Extent, Forget, LiveState, Move, Report, Tier
from stepwell.store.arena import Rows
from stepwell.store.disk.gate import Fence, MemoryGate
from stepwell.store.disk.mover import DiskMover
from tests.store.disk.rig import Chat, Rig, ints


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "c")
    yield rig
    rig.store.close()


def finish(mover: DiskMover) -> list[Report]:
    assert mover.drain(30)
    return mover.poll()


def load(rig: Rig, slots: Any, end: int, target: Any, what: Any = "kv") -> Move:
    place = target if isinstance(target, LiveState) else Extent(Tier.HOST, target)
    return Move(next(rig.tickets), what, Extent(Tier.DISK, slots), place, end)


class Holding(MemoryGate):
    """Holds fetches, and says so, until let through."""

    def __init__(self, rig: Rig) -> None:
        super().__init__({Tier.HOST: rig.host}, rig.live)
        self.entered, self.permits = threading.Semaphore(0), threading.Semaphore(0)
        self.fences = 0

    def fence(self) -> Fence:
        self.fences += 1
        return self.fences

    def fetch(self, extent: Extent, fence: Fence) -> Rows:
        self.entered.release()
        assert self.permits.acquire(timeout=30)
        return super().fetch(extent, fence)


def test_there_and_back_again(rig: Rig) -> None:
    chat = Chat(1)
    slots, image = rig.take(8), rig.take(3)
    with DiskMover(rig.store, rig.gate) as mover:
        mover.start([rig.saving(chat, 0, 32, slots), rig.saving_image(chat, 32, image)])
        assert [r.ok for r in finish(mover)] == [True, True]
        rig.host.poison(np.arange(64, dtype=np.int32))
        target = ints(9, 8, 7, 20, 21, 22, 1, 2)
        mover.start([load(rig, slots, 32, target), load(rig, image, 32, LiveState(5), "image")])
        assert [r.ok for r in finish(mover)] == [True, True]
        assert (rig.host.read(target) == chat.kv(0, 32, 64)).all()
        assert rig.live.loaded == {5: chat.image(32, 64).tobytes()}
        mover.start([load(rig, image, 32, ints(30, 31, 32), "image")])
        assert [r.ok for r in finish(mover)] == [True]
        assert (rig.host.read(ints(30, 31, 32)) == chat.image(32, 64)).all()
        totals = mover.totals()
    assert (totals[Tier.HOST, Tier.DISK].moves, totals[Tier.HOST, Tier.DISK].bytes) == (2, 11 * 64)
    assert totals[Tier.DISK, None].moves == 1
    assert totals[Tier.DISK, Tier.HOST].bytes == 11 * 64


def test_orders_are_carried_out_between_the_moves_of_the_same_list(rig: Rig) -> None:
    one, two = Chat(1), Chat(2)
    slots = rig.take(4)
    with DiskMover(rig.store, rig.gate) as mover:
        mover.start([rig.saving(one, 0, 16, slots)])
        assert finish(mover)[0].ok
        mover.start([Forget(slots), rig.saving(two, 0, 16, slots)])
        assert finish(mover)[0].ok
    assert rig.holds(two, 0, 16, slots)
    assert rig.again().recall(one) == (0, 0)


def test_moves_that_cannot_be_carried_out_are_reports_and_the_threads_live(rig: Rig) -> None:
    chat = Chat(1)
    slots, image = rig.save(chat, 0, 16), rig.save_image(chat, 16)
    bad = [
        load(rig, slots, 16, ints(0, 1)),
        load(rig, ints(99, 100), 8, ints(0, 1)),
        load(rig, slots, 16, LiveState(0)),
        load(rig, slots, 12, ints(0, 1, 2, 3)),
        load(rig, slots, 16, ints(0, 1, 2, 3_000_000)),
    ]
    slots = rig.save(chat, 16, 32)
    with DiskMover(rig.store, rig.gate, readers=2) as mover:
        mover.start(bad)
        reports = finish(mover)
        assert sorted(r.ticket for r in reports) == [m.ticket for m in bad]
        assert not any(r.ok for r in reports)
        assert all(r.error for r in reports)
        mover.start([load(rig, slots, 32, ints(4, 5, 6, 7)), load(rig, image, 16, LiveState(1), "image")])
        assert all(r.ok for r in finish(mover))


def test_an_image_without_live_states_is_a_report(rig: Rig) -> None:
    image = rig.save_image(Chat(1), 16)
    with DiskMover(rig.store, MemoryGate({Tier.HOST: rig.host})) as mover:
        mover.start([load(rig, image, 16, LiveState(1), "image")])
        [report] = finish(mover)
    assert "this engine has none" in report.error


def test_a_full_queue_fails_writes_at_once_and_reads_wait(tmp_path: Path) -> None:
    rig, chat = Rig(tmp_path / "c", queue=2), Chat(1, 320)
    slots = rig.save(chat, 0, 16)
    gate = Holding(rig)
    with DiskMover(rig.store, gate) as mover:
        mover.start([rig.saving(chat, 16, 32, rig.take(4))])
        assert gate.entered.acquire(timeout=30)
        moves = [rig.saving(chat, 16 * i, 16 * i + 16, rig.take(4)) for i in range(2, 7)]
        mover.start(moves)
        refused = mover.poll()
        assert [r.ticket for r in refused] == [m.ticket for m in moves[2:]]
        assert all("queue full" in r.error for r in refused)
        reads = [load(rig, slots, 16, ints(*range(32 + 4 * (i % 4), 36 + 4 * (i % 4)))) for i in range(50)]
        mover.start(reads)
        heard: list[Report] = []
        while len(heard) < 50:
            mover.wait(30)
            heard += mover.poll()
        assert {r.ticket for r in heard} == {m.ticket for m in reads}  # while the writer is held up
        gate.permits.release(3)
        assert len(finish(mover)) == 3


def test_start_never_waits_and_one_fence_marks_a_call(rig: Rig) -> None:
    gate, chat = Holding(rig), Chat(1)
    with DiskMover(rig.store, gate) as mover:
        mover.start([rig.saving(chat, 0, 16, rig.take(4)), rig.saving_image(chat, 16, rig.take(3))])
        assert gate.entered.acquire(timeout=30)
        assert mover.poll() == []
        mover.wait(0)
        assert not mover.drain(0)
        assert gate.fences == 1
        mover.start([Forget(ints(50))])
        assert gate.fences == 1
        gate.permits.release(2)
        assert all(r.ok for r in finish(mover))


def test_closing_fails_what_has_not_begun_and_carries_out_orders(tmp_path: Path) -> None:
    rig, chat, old = Rig(tmp_path / "c"), Chat(1), Chat(2)
    slots = rig.save(old, 0, 16)
    gate = Holding(rig)
    mover = DiskMover(rig.store, gate)
    first = rig.saving(chat, 0, 16, rig.take(4))
    mover.start([first])
    assert gate.entered.acquire(timeout=30)
    second = rig.saving_image(chat, 16, rig.take(3))
    mover.start([second, Forget(slots)])
    closer = threading.Thread(target=mover.close)
    closer.start()
    while not mover.closing:
        threading.Event().wait(0.001)
    gate.permits.release(2)
    closer.join(30)
    mover.close()
    assert [(r.ticket, r.ok) for r in mover.poll()] == [(first.ticket, True), (second.ticket, False)]
    with pytest.raises(StoreError, match="takes no more moves"):
        mover.start([Forget(slots)])
    rig = rig.again()
    assert (rig.recall(chat), rig.recall(old)) == ((16, 0), (0, 0))


def test_a_ticket_in_flight_cannot_be_started_again(rig: Rig) -> None:
    gate = Holding(rig)
    with DiskMover(rig.store, gate) as mover:
        move = rig.saving(Chat(1), 0, 16, rig.take(4))
        mover.start([move])
        with pytest.raises(AssertionError, match="already in flight"):
            mover.start([move])
        gate.permits.release()
        assert [r.ok for r in finish(mover)] == [True]


def test_an_error_nobody_thought_of_fails_the_batch_and_not_the_writer(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = Chat(1)
    monkeypatch.setattr(rig.store, "write", lambda jobs, gate: 1 / 0)
    with DiskMover(rig.store, rig.gate) as mover:
        mover.start([rig.saving(chat, 0, 16, rig.take(4))])
        [report] = finish(mover)
        assert "ZeroDivisionError" in report.error
        monkeypatch.undo()
        mover.start([rig.saving(chat, 0, 16, rig.take(4))])
        assert [r.ok for r in finish(mover)] == [True]


def test_a_failing_disk_is_a_report(rig: Rig) -> None:
    chat = Chat(1)
    slots = rig.save(chat, 0, 16)
    rig.files.fail("read", errno.EIO)
    with DiskMover(rig.store, rig.gate) as mover:
        mover.start([load(rig, slots, 16, ints(0, 1, 2, 3)), rig.saving(Chat(2), 0, 16, rig.take(4))])
        reports = finish(mover)
    assert len(reports) == 2
    assert not any(r.ok for r in reports)


def test_the_bell_rings_for_every_report(rig: Rig) -> None:
    rung = threading.Semaphore(0)
    with DiskMover(rig.store, rig.gate) as mover:
        mover.listen(rung.release)
        mover.start([rig.saving(Chat(1), 0, 16, rig.take(4)), rig.saving_image(Chat(1), 16, rig.take(3))])
        assert rung.acquire(timeout=30) and rung.acquire(timeout=30)
        assert len(mover.poll()) == 2
