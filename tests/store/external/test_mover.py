"""The threads before an external store: whatever it does, each ticket is reported once, and no slot is written after that."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pytest

from stepwell.base.clock import VirtualClock
from stepwell.base.errors import StoreError
from stepwell.cache.disk.names import Names
from stepwell.cache.external.ledger import What
from stepwell.cache.external.query import Query, QueryAnswer
from stepwell.cache.moves import Extent, Move, Name, Report, Tier
from stepwell.store.arena import PlainArena, Rows
from stepwell.store.disk.gate import MemoryGate
from stepwell.store.external.backend import DictBackend
from stepwell.store.external.mover import ExternalMover

PAGE, BLOCK, CHUNK = 32, 16, 64
TRAIL = Names(b"k" * 32, CHUNK).trail("", np.arange(300, dtype=np.int32))
FIRST, SECOND = TRAIL.records(0, 2 * CHUNK)
IMAGE = TRAIL.image(CHUNK)
LIMIT = 20.0
"""Seconds after which a test gives up."""


class Gated(DictBackend):
    """Does nothing before `open` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()

    def find(self, query: Query, waited_for: Callable[[], bool]) -> QueryAnswer:
        assert self.open.wait(LIMIT)
        return super().find(query, waited_for)

    def get(self, what: What, name: Name) -> Rows:
        assert self.open.wait(LIMIT)
        return super().get(what, name)

    def put(self, what: What, name: Name, rows: Rows) -> None:
        assert self.open.wait(LIMIT)
        super().put(what, name, rows)


class Rig:
    def __init__(self) -> None:
        self.backend, self.clock = Gated(), VirtualClock()
        self.rows = np.random.default_rng(0).integers(0, 255, (16, PAGE), dtype=np.uint8)
        gate = MemoryGate({Tier.DEVICE: PlainArena(self.rows)})
        self.mover = ExternalMover(self.backend, gate, PAGE, BLOCK, patience=5.0, clock=self.clock)
        self._tickets = 0

    def move(self, pages: Sequence[int], names: Sequence[Name], up: bool, what: What = "kv") -> int:
        self._tickets += 1
        here = Extent(Tier.DEVICE, np.array(pages, np.int32))
        there = Extent(Tier.EXTERNAL, np.arange(len(pages), dtype=np.int32))
        source, target = (there, here) if up else (here, there)
        self.mover.start([Move(self._tickets, what, source, target, names[-1].end, tuple(names))])
        return self._tickets

    def reports(self, count: int = 1) -> list[Report]:
        found: list[Report] = []
        end = time.monotonic() + LIMIT
        while len(found) < count:
            assert time.monotonic() < end, f"only {found}"
            self.mover.wait(0.01)
            found += self.mover.poll()
        return found

    def answers(self) -> list[QueryAnswer]:
        end = time.monotonic() + LIMIT
        while not (found := list(self.mover.answers())):
            assert time.monotonic() < end
            self.mover.wait(0.01)
        return found


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    with made.mover:
        yield made
        made.backend.open.set()


def stored(rig: Rig) -> None:
    rig.move([0, 1, 2, 3], [FIRST], up=False)
    rig.move([4, 5, 6, 7], [SECOND], up=False)
    rig.move([8, 9], [IMAGE], up=False, what="image")
    assert all(report.ok for report in rig.reports(3))


def test_what_is_stored_comes_back_in_order(rig: Rig) -> None:
    stored(rig)
    before = rig.rows.copy()
    rig.rows[8:] = 0
    rig.move([15, 14, 13, 12, 11, 10, 9, 8], [FIRST, SECOND], up=True)
    (report,) = rig.reports()
    assert report.ok and (rig.rows[15:7:-1] == before[:8]).all()
    assert not rig.mover.busy


@pytest.mark.parametrize("pages", range(5, 9))
def test_of_the_first_chunk_only_the_end_is_copied_where_fewer_pages_are_asked_for(rig: Rig, pages: int) -> None:
    stored(rig)
    before = rig.rows.copy()
    rig.rows[8:] = 0
    rig.move(range(16 - pages, 16), [FIRST, SECOND], up=True)
    (report,) = rig.reports()
    assert report.ok and (rig.rows[16 - pages :] == before[8 - pages : 8]).all()
    assert (rig.rows[8 : 16 - pages] == 0).all()


@pytest.mark.parametrize("pages", [3, 4, 9])
def test_pages_that_the_chunks_cannot_be_of_are_refused(rig: Rig, pages: int) -> None:
    stored(rig)
    before = rig.rows.copy()
    rig.move(range(16 - pages, 16), [FIRST, SECOND], up=True)
    (report,) = rig.reports()
    assert not report.ok and (rig.rows == before).all()


def test_an_answer_says_how_far_it_goes(rig: Rig) -> None:
    stored(rig)
    rig.mover.look_up(Query(1, 0, (FIRST, SECOND, *TRAIL.records(128, 192)), (IMAGE, TRAIL.image(128))))
    assert rig.answers() == [QueryAnswer(1, 128, 64)]
    assert rig.backend.leases == {1}
    rig.mover.release(1)
    rig.mover.close()
    assert not rig.backend.leases


@pytest.mark.parametrize("harm", ["gone", "garbage"])
def test_a_load_of_what_is_not_there_writes_nothing_and_says_what_it_was(
    rig: Rig, harm: str, caplog: pytest.LogCaptureFixture
) -> None:
    stored(rig)
    if harm == "gone":
        rig.backend.forget("kv", [SECOND])
    else:
        rig.backend.objects["kv", SECOND.digest][-1] ^= 1
    before = rig.rows.copy()
    rig.move(range(8, 16), [FIRST, SECOND], up=True)
    (report,) = rig.reports()
    assert not report.ok and "KV of tokens 64 to 128, rank 0" in report.error
    assert (rig.rows == before).all()
    assert "a load from the external store failed: KV of tokens 64 to 128, rank 0" in caplog.text


@pytest.mark.parametrize("up", [True, False])
def test_a_store_that_hangs_fails_the_copy_and_writes_nothing_later(rig: Rig, up: bool) -> None:
    stored(rig)
    before = rig.rows.copy()
    rig.backend.open.clear()
    ticket = rig.move([12, 13, 14, 15], [FIRST], up)
    assert rig.mover.poll() == []
    end = time.monotonic() + LIMIT
    while not (found := rig.mover.poll()):  # once what is copied at once has been
        assert time.monotonic() < end
        rig.clock.advance(6.0)
    assert [(one.ticket, one.ok) for one in found] == [(ticket, False)]
    assert "no answer within 5 s" in found[0].error
    rig.backend.open.set()
    rig.mover.close()
    assert rig.mover.poll() == [] and (rig.rows == before).all()


def test_a_report_that_nobody_has_taken_keeps_it_busy(rig: Rig) -> None:
    rig.move([0, 1, 2, 3], [FIRST], up=False)
    rig.mover.wait(LIMIT)
    assert rig.mover.busy  # so a loop does not wait for another mover meanwhile
    assert len(rig.reports()) == 1 and not rig.mover.busy


class Stubborn(DictBackend):
    """Answers no query below `first` as long as that is waited for."""

    first = 3

    def find(self, query: Query, waited_for: Callable[[], bool]) -> QueryAnswer:
        end = time.monotonic() + LIMIT
        while query.number < self.first and time.monotonic() < end:
            if not waited_for():
                raise StoreError("given up")
            time.sleep(0.001)
        return super().find(query, waited_for)


def test_lookups_that_are_given_up_leave_their_threads_to_later_ones(rig: Rig) -> None:
    gate = MemoryGate({Tier.DEVICE: PlainArena(rig.rows)})
    with ExternalMover(Stubborn(), gate, PAGE, BLOCK, threads=2) as mover:
        for number in (1, 2, 3):
            mover.look_up(Query(number, 0, (FIRST,), ()))
        for number in (1, 2):
            mover.release(number)
        end = time.monotonic() + LIMIT
        while not (found := list(mover.answers())):
            assert time.monotonic() < end
            mover.wait(0.01)
        assert found == [QueryAnswer(3, 0, 0)] and not mover.busy


def test_what_is_found_for_a_query_that_was_given_up_is_not_kept(rig: Rig) -> None:
    stored(rig)
    rig.backend.open.clear()
    rig.mover.look_up(Query(1, 0, (FIRST,), (IMAGE,)))
    rig.mover.release(1)
    assert not rig.mover.busy
    rig.backend.open.set()
    rig.mover.close()
    assert not rig.backend.leases and not rig.mover.answers()


@pytest.mark.parametrize("up", [True, False])
def test_a_store_that_hangs_makes_no_queue_of_what_is_given_up(rig: Rig, up: bool) -> None:
    rig.backend.open.clear()
    for _ in range(50):
        rig.move([0, 1, 2, 3], [FIRST], up)
    for number in range(1, 51):
        rig.mover.look_up(Query(number, 0, (FIRST,), ()))
    assert rig.mover.queued >= 90
    for number in range(1, 51):
        rig.mover.release(number)
    reports: list[Report] = []
    end = time.monotonic() + LIMIT
    while len(reports) < 50:
        assert time.monotonic() < end
        rig.clock.advance(6.0)
        reports += rig.mover.poll()
    assert rig.mover.queued == 0 and not any(report.ok for report in reports)


def test_closing_waits_for_no_store() -> None:
    rig = Rig()
    rig.backend.open.clear()
    ticket = rig.move([0, 1, 2, 3], [FIRST], up=True)
    rig.mover.close(patience=0.05)
    assert [(one.ticket, one.ok) for one in rig.mover.poll()] == [(ticket, False)]
    rig.backend.open.set()


def test_closing_has_one_deadline_for_all_threads(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr("stepwell.store.external.mover.time.monotonic", lambda: 100.0 + sum(waits))
    monkeypatch.setattr(threading.Thread, "join", lambda self, timeout: waits.append(timeout))
    rig.mover.close(patience=2.0)
    monkeypatch.undo()
    assert sum(waits) == 2.0


def test_a_store_that_raises_has_nothing_and_the_log_says_so_once(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise OSError("connection refused")

    for name in ("find", "get", "put", "forget", "release"):
        monkeypatch.setattr(rig.backend, name, broken)
    rig.mover.look_up(Query(3, 64, (SECOND,), ()))
    assert rig.answers() == [QueryAnswer(3, 64, 0)]
    rig.mover.look_up(Query(4, 64, (SECOND,), ()))
    assert rig.answers() == [QueryAnswer(4, 64, 0)]
    assert caplog.text.count("a lookup of the external store failed: OSError: connection refused") == 1
    rig.mover.forget("kv", [FIRST])
    rig.mover.release(3)
    rig.move([0, 1, 2, 3], [FIRST], up=True)
    rig.move([0, 1, 2, 3], [FIRST], up=False)
    assert all("connection refused" in report.error for report in rig.reports(2))
