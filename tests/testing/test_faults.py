"""Each fault befalls the moves it names, as often as it says, and nothing else."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.base.clock import VirtualClock
from stepwell.cache.moves import Extent, LiveState, Move, Report, Tier
from stepwell.testing.faults import LIVE, FaultPlan, FaultyMover, InstantMover, ManualMover, Where


def move(ticket: int, slots: int = 2, source: Tier = Tier.HOST, target: Tier = Tier.DEVICE) -> Move:
    side = np.arange(slots, dtype=np.int32)
    return Move(ticket, "kv", Extent(source, side), Extent(target, side), 16)


def image(ticket: int) -> Move:
    return Move(ticket, "image", Extent(Tier.HOST, np.arange(4, dtype=np.int32)), LiveState(0), 64)


class Log:
    """A copy that only remembers: ticket → slots copied."""

    def __init__(self) -> None:
        self.copied: dict[int, int] = {}

    def __call__(self, move: Move) -> None:
        assert move.ticket not in self.copied
        self.copied[move.ticket] = len(move.source.slots)


def faulty(plan: FaultPlan, log: Log | None = None) -> FaultyMover:
    return FaultyMover(InstantMover(log or Log()), plan, VirtualClock())


def tickets(mover: FaultyMover) -> list[int]:
    return [report.ticket for report in mover.poll()]


def test_without_faults_it_is_the_inner_mover() -> None:
    log = Log()
    mover = faulty(FaultPlan(), log)
    mover.start([move(1), image(2)])
    assert mover.poll() == [Report(1, True), Report(2, True)]
    assert (mover.poll(), log.copied, mover.tally) == ([], {1: 2, 2: 4}, Counter())


def test_a_move_delayed_by_polls_is_not_even_copied_before() -> None:
    log = Log()
    mover = faulty(FaultPlan().delay(Where(source=Tier.HOST), polls=2), log)
    mover.start([move(1), move(2, source=Tier.DEVICE, target=Tier.HOST)])
    assert tickets(mover) == [2]
    assert tickets(mover) == []
    assert 1 not in log.copied
    assert tickets(mover) == [1]
    assert mover.tally == {"delayed": 1}


def test_a_move_delayed_by_seconds_follows_the_clock() -> None:
    clock = VirtualClock()
    mover = FaultyMover(InstantMover(), FaultPlan().delay(seconds=5), clock)
    mover.start([move(1)])
    clock.advance(4.9)
    mover.wait(0.1)
    assert mover.poll() == []
    clock.advance(0.1)
    assert mover.poll() == [Report(1, True)]


@pytest.mark.parametrize(("copied", "slots"), [("none", {}), ("half", {1: 2}), ("all", {1: 5})])
def test_a_failure_may_leave_any_part_of_the_bytes(copied: str, slots: dict[int, int]) -> None:
    log = Log()
    mover = faulty(FaultPlan().fail(copied=copied, error="disk on fire"), log)  # type: ignore[arg-type]
    mover.start([move(1, slots=5)])
    assert mover.poll() == [Report(1, False, "disk on fire")]
    assert (log.copied, mover.tally) == (slots, {"failed": 1})


def test_half_an_image_never_reaches_a_live_state() -> None:
    log = Log()
    mover = faulty(FaultPlan().fail(copied="half"), log)
    mover.start([image(1), move(2, slots=1)])
    assert [report.ok for report in mover.poll()] == [False, False]
    assert log.copied == {}


def test_the_next_so_many_fail_and_no_more() -> None:
    mover = faulty(FaultPlan().fail(Where("image", target=LIVE), count=2))
    mover.start([image(1), move(2), image(3), image(4)])
    assert {report.ticket: report.ok for report in mover.poll()} == {1: False, 2: True, 3: False, 4: True}


def test_a_dropped_report_can_be_delivered_later() -> None:
    log = Log()
    mover = faulty(FaultPlan().drop(count=1), log)
    mover.start([move(1), move(2)])
    assert tickets(mover) == [2]
    assert log.copied == {1: 2, 2: 2}
    mover.deliver(mover.lost.pop())
    assert mover.poll() == [Report(1, True)]


def test_a_duplicate_comes_with_the_next_poll() -> None:
    mover = faulty(FaultPlan().duplicate(count=1))
    mover.start([move(1), move(2)])
    assert tickets(mover) == [1, 2]
    assert tickets(mover) == [1]
    assert tickets(mover) == []


def test_a_failure_that_was_decided_can_be_dropped_or_doubled_too() -> None:
    mover = faulty(FaultPlan().fail(count=2).drop(count=1).duplicate())
    mover.start([move(1), move(2)])
    assert mover.lost == [Report(1, False, "injected failure")]
    assert Counter(tickets(mover) + tickets(mover)) == {2: 2}


def test_reports_out_of_order_all_arrive_once() -> None:
    mover = faulty(FaultPlan(random.Random(1)).reorder(0.5))
    mover.start([move(t) for t in range(20)])
    batches = [tickets(mover) for _ in range(20)]
    seen = [ticket for batch in batches for ticket in batch]
    assert sorted(seen) == list(range(20))
    assert seen != sorted(seen)
    assert len(batches[0]) < 20


def test_where_names_kind_source_and_target() -> None:
    assert Where().fits(image(1))
    assert Where("image", Tier.HOST, LIVE).fits(image(1))
    assert not Where(target=LIVE).fits(move(1))
    assert not Where(target=Tier.DEVICE).fits(image(1))
    assert Where(source=Tier.DEVICE).fits(move(1, source=Tier.DEVICE))
    assert not Where(source=Tier.DEVICE).fits(move(1))
    assert not Where("kv").fits(image(1))


@given(st.integers(0, 2**32), st.floats(0, 1), st.integers(0, 3))
def test_whatever_is_injected_every_ticket_is_reported_or_lost_exactly_once(
    seed: int, chance: float, polls: int
) -> None:
    plan = FaultPlan(random.Random(seed)).delay(polls=polls, chance=chance).fail(copied="half", chance=chance)
    mover = faulty(plan.drop(chance=chance / 2).reorder(chance / 2))
    mover.start([move(t) for t in range(30)])
    seen = [ticket for _ in range(200) for ticket in tickets(mover)]
    assert sorted(seen + [report.ticket for report in mover.lost]) == list(range(30))


def test_the_same_seed_gives_the_same_faults() -> None:
    def run() -> list[list[Report]]:
        mover = faulty(FaultPlan(random.Random(5)).fail(chance=0.3).delay(polls=1, chance=0.5).reorder(0.2))
        mover.start([move(t) for t in range(30)])
        return [mover.poll() for _ in range(20)]

    assert run() == run()


def test_waiting_passes_on_only_what_the_inner_mover_can_wait_for() -> None:
    waited: list[float] = []

    class Waits(InstantMover):
        def wait(self, seconds: float) -> None:
            waited.append(seconds)

    mover = FaultyMover(Waits(), FaultPlan().delay(polls=1, count=1).delay(seconds=3, count=2), VirtualClock())
    mover.start([move(1)])
    mover.wait(10)
    assert waited == []
    mover.poll()
    mover.start([move(2)])
    mover.wait(10)
    mover.wait(1)
    assert waited == [3, 1]


def test_a_manual_mover_moves_nothing_until_told() -> None:
    log = Log()
    mover = ManualMover(log)
    mover.start([move(1), move(2), move(3)])
    assert (mover.poll(), log.copied, list(mover.pending)) == ([], {}, [1, 2, 3])
    mover.finish(2)
    mover.fail(1, "no")
    mover.finish_all()
    assert mover.poll() == [Report(2, True), Report(1, False, "no"), Report(3, True)]
    assert (log.copied, mover.pending) == ({2: 2, 3: 2}, {})
    with pytest.raises(KeyError):
        mover.finish(1)


def test_a_copy_that_raises_is_a_report() -> None:
    def broken(move: Move) -> None:
        raise OSError("no such slot")

    mover = InstantMover(broken)
    mover.start([move(1)])
    assert mover.poll() == [Report(1, False, "OSError: no such slot")]


def test_the_fault_library_needs_no_torch() -> None:
    code = "import sys; sys.modules['torch'] = None; import stepwell.testing.faults, stepwell.testing.checkpoint"
    subprocess.run([sys.executable, "-c", code], check=True)
