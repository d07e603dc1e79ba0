"""The copy worker: right bytes, one report a ticket, and no way to kill it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from stepwell.base.errors import StoreError
from stepwell.base.geometry import Ints
from stepwell.cache.moves import Extent, LiveState, Move, Report, Tier
from stepwell.store.arena import Rows
from stepwell.store.copier import BegunCopy, HostCopier, Landed
from stepwell.store.host import HostArena
from stepwell.store.mover import CopyMover
from stepwell.store.tickets import CopyTotal

PAGE = 64


class Images:
    """Live states that keep what they were given."""

    def __init__(self) -> None:
        self.loaded: dict[int, bytes] = {}

    def load_image(self, slot: int, image: Rows) -> None:
        self.loaded[slot] = image.tobytes()


class Arenas:
    """Two tiers of random bytes, their live states, and a mover between them."""

    def __init__(self, slots: int = 32) -> None:
        self.device, self.host = HostArena(slots, PAGE), HostArena(slots, PAGE)
        self.images = Images()
        every = np.arange(slots, dtype=np.int32)
        for seed, arena in enumerate((self.device, self.host)):
            arena.write(every, np.random.default_rng(seed).integers(0, 256, (slots, PAGE), dtype=np.uint8))
        self.copier = HostCopier({Tier.DEVICE: self.device, Tier.HOST: self.host}, self.images)


@pytest.fixture
def arenas() -> Arenas:
    return Arenas()


@pytest.fixture
def mover(arenas: Arenas) -> Iterator[CopyMover]:
    with CopyMover(arenas.copier) as mover:
        yield mover


def ints(*slots: int) -> Ints:
    return np.array(slots, np.int32)


def save(ticket: int, source: Ints, target: Ints) -> Move:
    return Move(ticket, "kv", Extent(Tier.DEVICE, source), Extent(Tier.HOST, target), 0)


def load(ticket: int, source: Ints, target: Ints) -> Move:
    return Move(ticket, "kv", Extent(Tier.HOST, source), Extent(Tier.DEVICE, target), 0)


def finish(mover: CopyMover) -> list[Report]:
    assert mover.drain(30)
    return mover.poll()


class Gate:
    """A copier whose copies begin only when let through, one permit each; `failing` tickets raise."""

    page_bytes, name, together = PAGE, "a gate", 0

    def __init__(self, failing: dict[int, Exception] | None = None) -> None:
        self.permits, self.entered = threading.Semaphore(0), threading.Semaphore(0)
        self.begun: list[int] = []
        self.landed: list[int] = []
        self.broken: set[int] = set()
        self._failing = failing or {}

    def begin(self, moves: Sequence[Move]) -> BegunCopy:
        [move] = moves
        self.entered.release()
        assert self.permits.acquire(timeout=30)
        self.begun.append(move.ticket)
        if move.ticket in self._failing:
            raise self._failing[move.ticket]
        return _GateFlight(self, move.ticket)


class _GateFlight:
    def __init__(self, gate: Gate, ticket: int) -> None:
        self._gate, self._ticket = gate, ticket

    def arrived(self) -> bool:
        if self._ticket in self._gate.broken:
            raise RuntimeError("device lost")
        return False

    def land(self) -> float:
        if self._ticket in self._gate.broken:
            raise RuntimeError("device lost")
        self._gate.landed.append(self._ticket)
        return self._ticket / 10


@pytest.mark.parametrize(
    ("source", "target"), [((1, 2, 3), (4, 5, 6)), ((9, 1, 2, 7), (0, 3, 4, 5)), ((5, 4, 3), (3, 4, 5)), ((), ())]
)
def test_slot_i_goes_to_slot_i(
    arenas: Arenas, mover: CopyMover, source: tuple[int, ...], target: tuple[int, ...]
) -> None:
    before = arenas.host.rows.copy()
    mover.start([save(1, ints(*source), ints(*target))])
    assert finish(mover) == [Report(1, True)]
    before[list(target)] = arenas.device.rows[list(source)]
    assert (arenas.host.rows == before).all()


def test_random_moves_there_and_back_again(arenas: Arenas, mover: CopyMover) -> None:
    rng = random.Random(0)
    original = arenas.device.rows.copy()
    for ticket in range(0, 60, 2):
        count = rng.randint(1, 12)
        pages, slots = (ints(*rng.sample(range(32), count)) for _ in range(2))
        mover.start([save(ticket, pages, slots)])
        assert finish(mover) == [Report(ticket, True)]
        arenas.device.poison(pages)
        mover.start([load(ticket + 1, slots, pages)])
        assert finish(mover) == [Report(ticket + 1, True)]
        assert (arenas.device.rows == original).all()


def test_an_image_reaches_its_live_state_in_order(arenas: Arenas, mover: CopyMover) -> None:
    mover.start([Move(7, "image", Extent(Tier.HOST, ints(9, 3, 4)), LiveState(5), 640)])
    assert finish(mover) == [Report(7, True)]
    assert arenas.images.loaded == {5: arenas.host.rows[[9, 3, 4]].tobytes()}


def test_moves_of_one_direction_are_carried_out_and_reported_in_order(arenas: Arenas, mover: CopyMover) -> None:
    mover.start([save(t, ints(t), ints(t + 1)) for t in range(10)])
    mover.start([load(t, ints(t), ints(t)) for t in range(10, 20)])
    ended = [r.ticket for r in finish(mover)]
    assert [t for t in ended if t < 10] == list(range(10)) and [t for t in ended if t >= 10] == list(range(10, 20))
    assert mover.poll() == []


@pytest.mark.parametrize(
    ("move", "why"),
    [
        (save(1, ints(0, 32), ints(0, 1)), "which has 32 slots"),
        (save(1, ints(0, 1), ints(5)), "2 slots to 1"),
        (Move(1, "kv", Extent(Tier.DISK, ints(0)), Extent(Tier.HOST, ints(0)), 0), "slots of the disk arena, which"),
    ],
)
def test_a_move_that_cannot_be_carried_out_is_a_report_and_the_worker_lives(
    arenas: Arenas, mover: CopyMover, move: Move, why: str
) -> None:
    mover.start([move, save(2, ints(0), ints(0))])
    first, second = sorted(finish(mover), key=lambda report: report.ticket)
    assert (first.ticket, first.ok) == (1, False)
    assert why in first.error
    assert second == Report(2, True)


def test_a_torn_host_copy_fails_its_load(arenas: Arenas, mover: CopyMover) -> None:
    arenas.host.rows[3, 0] ^= 255
    mover.start([load(1, ints(2, 3), ints(0, 9))])
    [report] = finish(mover)
    assert not report.ok
    assert "host slot 3 fails its checksum" in report.error


def test_an_image_without_live_states_is_a_report() -> None:
    arenas = Arenas()
    with CopyMover(HostCopier({Tier.HOST: arenas.host})) as mover:
        mover.start([Move(1, "image", Extent(Tier.HOST, ints(0)), LiveState(2), 0)])
        [report] = finish(mover)
    assert "no live states" in report.error


def test_any_exception_becomes_a_report_with_its_type() -> None:
    gate = Gate({1: ZeroDivisionError("of the copier")})
    with CopyMover(gate) as mover:
        gate.permits.release(2)
        mover.start([save(1, ints(0), ints(0)), save(2, ints(0), ints(0))])
        assert finish(mover) == [Report(1, False, "ZeroDivisionError: of the copier"), Report(2, True)]


def test_a_copy_that_breaks_under_way_becomes_a_report() -> None:
    gate = Gate()
    gate.broken = {1}
    with CopyMover(gate) as mover:
        gate.permits.release(2)
        mover.start([save(1, ints(0), ints(0)), save(2, ints(0), ints(0))])
        assert finish(mover) == [Report(1, False, "RuntimeError: device lost"), Report(2, True)]


def test_start_returns_before_the_copy_is_made_and_wait_returns_after() -> None:
    gate = Gate()
    with CopyMover(gate) as mover:
        mover.start([save(1, ints(0), ints(0))])
        assert gate.entered.acquire(timeout=30)
        assert mover.poll() == []
        mover.wait(0.0)
        assert not mover.drain(0.0)
        gate.permits.release()
        mover.wait(30)
        assert mover.poll() == [Report(1, True)]
        mover.wait(0.0)


class UnderWay(Landed):
    """A copy that has not arrived until somebody waits for it."""

    def arrived(self) -> bool:
        return False


class Batches:
    """A copier that takes up to four pages at a time, each batch once it is let through; tickets in `failing` cannot begin."""

    page_bytes, name, together = PAGE, "batches", 4 * PAGE

    def __init__(self, failing: int = -1, broken_page: int = -1) -> None:
        self.begun: list[list[int]] = []
        self.moved: dict[int, list[tuple[int, int]]] = {}
        self._broken_page = broken_page
        self.entered, self.permit = threading.Event(), threading.Event()
        self._failing = failing

    def begin(self, moves: Sequence[Move]) -> BegunCopy:
        self.entered.set()
        assert self.permit.wait(30)
        if any(move.ticket == self._failing for move in moves):
            raise StoreError("no such slot")
        if any(self._broken_page in move.source.slots for move in moves):
            raise StoreError("no such slot")
        self.begun.append([move.ticket for move in moves])
        for move in moves:
            if isinstance(move.target, Extent):
                pairs = zip(move.source.slots.tolist(), move.target.slots.tolist(), strict=True)
                self.moved.setdefault(move.ticket, []).extend(pairs)
        return UnderWay(1.0)


def test_small_moves_of_one_way_go_together_up_to_a_size() -> None:
    copier = Batches()
    image = Move(8, "image", Extent(Tier.HOST, ints(0, 1)), LiveState(0), 0)
    with CopyMover(copier) as mover:
        mover.start([load(0, ints(0), ints(0))])
        assert copier.entered.wait(30)
        mover.start([*(load(t, ints(t, 0), ints(t, 0)) for t in (1, 2, 3)), image, load(9, ints(0), ints(0))])
        copier.permit.set()
        reports = finish(mover)
    assert copier.begun == [[0], [1, 2], [3], [8], [9]]
    assert {report.ticket: report.seconds for report in reports} == {0: 1.0, 1: 0.5, 2: 0.5, 3: 1.0, 8: 1.0, 9: 1.0}


def test_calls_are_full_wherever_moves_end() -> None:
    """A short call would leave the link idle while the next one is made. The first is short: the link is idle until it is made."""
    copier = Batches()
    with CopyMover(copier) as mover:
        mover.start([save(t, ints(*range(5 * t, 5 * t + 5)), ints(*range(5 * t, 5 * t + 5))) for t in range(3)])
        copier.permit.set()
        reports = finish(mover)
    assert copier.begun == [[0], [0], [1], [1, 2], [2]]
    assert copier.moved == {t: [(slot, slot) for slot in range(5 * t, 5 * t + 5)] for t in range(3)}
    assert {report.ticket: report.seconds for report in reports} == {0: 2.0, 1: 1.25, 2: 1.75}


def test_one_of_several_that_cannot_begin_fails_alone() -> None:
    copier = Batches(failing=2)
    with CopyMover(copier) as mover:
        mover.start([load(t, ints(t), ints(t)) for t in range(4)])
        copier.permit.set()
        reports = finish(mover)
    assert [(r.ticket, r.ok) for r in sorted(reports, key=lambda r: r.ticket)] == [
        (0, True),
        (1, True),
        (2, False),
        (3, True),
    ]


def test_a_long_move_goes_in_parts_and_is_reported_once_with_the_time_of_all() -> None:
    copier = Batches()
    with CopyMover(copier) as mover:
        mover.start([save(1, ints(*range(10)), ints(*range(10, 20))), save(2, ints(20), ints(0))])
        copier.permit.set()
        reports = finish(mover)
        totals = mover.totals()[Tier.DEVICE, Tier.HOST]
    assert copier.begun == [[1], [1], [1], [1, 2]]
    assert copier.moved[1] == [(slot, slot + 10) for slot in range(10)]
    assert [report.ticket for report in reports] == [1, 2]
    assert reports[0].seconds == pytest.approx(1 + 1 + 1 + 1 / 2) and (totals.moves, totals.bytes) == (2, 11 * PAGE)


def test_a_long_move_of_which_a_part_fails_begins_no_more_of_them() -> None:
    copier = Batches(broken_page=5)
    with CopyMover(copier, in_flight=1) as mover:
        mover.start([save(1, ints(*range(16)), ints(*range(16))), save(2, ints(20), ints(0))])
        copier.permit.set()
        reports = finish(mover)
    assert copier.begun == [[1], [2]]
    assert [(report.ticket, report.ok, report.error) for report in reports] == [
        (1, False, "no such slot"),
        (2, True, ""),
    ]


class OneWay:
    """A copier whose copies from `held` begin only when let through."""

    page_bytes, name, together = PAGE, "one way", 0

    def __init__(self, held: Tier) -> None:
        self.held, self.permit = held, threading.Event()

    def begin(self, moves: Sequence[Move]) -> BegunCopy:
        [move] = moves
        assert move.source.tier != self.held or self.permit.wait(30)
        return Landed()


@pytest.mark.parametrize("held", [Tier.DEVICE, Tier.HOST])
def test_no_direction_waits_for_the_other(held: Tier) -> None:
    copier = OneWay(held)
    blocked, free = (save, load) if held == Tier.DEVICE else (load, save)
    with CopyMover(copier, in_flight=1) as mover:
        mover.start([blocked(t, ints(0), ints(0)) for t in range(3)])
        mover.start([free(9, ints(1), ints(1))])
        heard: list[Report] = []
        while not heard:
            mover.wait(30)
            heard = mover.poll()
        assert heard == [Report(9, True)]
        copier.permit.set()
        assert len(finish(mover)) == 3


def test_a_report_says_how_long_the_bytes_took_whatever_was_ahead_of_them() -> None:
    gate = Gate()
    with CopyMover(gate) as mover:
        gate.permits.release(3)
        mover.start([save(t, ints(0), ints(0)) for t in (1, 2, 3)])
        assert [report.seconds for report in finish(mover)] == [0.1, 0.2, 0.3]
        assert mover.totals()[Tier.DEVICE, Tier.HOST].seconds == pytest.approx(0.6)


def test_no_more_than_the_limit_is_in_flight() -> None:
    gate = Gate()
    with CopyMover(gate, in_flight=2) as mover:
        mover.start([save(t, ints(0), ints(0)) for t in range(4)])
        for _ in range(4):
            assert gate.entered.acquire(timeout=30)
            assert len(gate.begun) - len(gate.landed) <= 1  # the one that is at the gate makes two
            gate.permits.release()
        finish(mover)
    assert gate.landed == [0, 1, 2, 3]


def test_closing_fails_what_has_not_begun_and_finishes_what_has() -> None:
    gate = Gate()
    mover = CopyMover(gate)
    mover.start([save(t, ints(0), ints(0)) for t in range(3)])
    assert gate.entered.acquire(timeout=30)
    closer = threading.Thread(target=mover.close)
    closer.start()
    while not mover.closing:
        threading.Event().wait(0.001)
    gate.permits.release()
    closer.join(30)
    mover.close()
    reports = sorted(mover.poll(), key=lambda r: r.ticket)
    assert [(r.ticket, r.ok) for r in reports] == [(0, True), (1, False), (2, False)]
    assert "closed before this copy began" in reports[1].error
    with pytest.raises(StoreError, match="takes no more moves"):
        mover.start([save(9, ints(0), ints(0))])


def test_totals_say_what_went_where(arenas: Arenas) -> None:
    with CopyMover(arenas.copier) as mover:
        mover.start([save(1, ints(0, 1), ints(0, 1)), save(2, ints(2), ints(2)), save(3, ints(99), ints(0))])
        finish(mover)  # before that, the host has no whole page to read
        mover.start([Move(4, "image", Extent(Tier.HOST, ints(0)), LiveState(0), 0)])
        finish(mover)
        totals = mover.totals()
    saved = totals[Tier.DEVICE, Tier.HOST]
    assert (saved.moves, saved.failed, saved.bytes) == (2, 1, 3 * PAGE)
    assert totals[Tier.HOST, None].moves == 1
    assert totals.get((Tier.HOST, Tier.DEVICE), CopyTotal()) == CopyTotal()


def test_a_ticket_in_flight_cannot_be_started_again() -> None:
    gate = Gate()
    with CopyMover(gate) as mover:
        mover.start([save(1, ints(0), ints(0))])
        with pytest.raises(AssertionError, match="already in flight"):
            mover.start([save(1, ints(0), ints(0))])
        gate.permits.release()
        assert finish(mover) == [Report(1, True)]


def test_a_plain_copy_has_landed_when_it_begins(arenas: Arenas) -> None:
    assert isinstance(arenas.copier.begin([save(1, ints(0), ints(1))]), Landed)
    assert (arenas.host.rows[1] == arenas.device.rows[0]).all()
