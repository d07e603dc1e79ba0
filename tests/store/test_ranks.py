"""One mover over all ranks: a copy is as good as its worst rank, and as late as its last."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from stepwell.cache.moves import Extent, Forget, Move, Report, Task, Tier
from stepwell.store.copier import HostCopier
from stepwell.store.host import HostArena
from stepwell.store.mover import CopyMover
from stepwell.store.ranks import JointMover, RankCount
from stepwell.testing.faults import FaultPlan, FaultyMover, InstantMover, ManualMover

PAGE = 64


def move(ticket: int, source: int = 0, target: int = 0) -> Move:
    slots = (np.array([slot], np.int32) for slot in (source, target))
    device, host = (Extent(tier, where) for tier, where in zip((Tier.DEVICE, Tier.HOST), slots, strict=True))
    return Move(ticket, "kv", device, host, 0)


class Ranks:
    """Ranks that end a copy when told, and can report whatever they are told to."""

    def __init__(self, count: int) -> None:
        self.inner = [ManualMover() for _ in range(count)]
        self.movers = [FaultyMover(mover, FaultPlan()) for mover in self.inner]
        self.joint = JointMover(self.movers)

    def say(self, rank: int, ticket: int, ok: bool = True, error: str = "") -> list[Report]:
        """What is heard of all ranks once this one has reported."""
        self.movers[rank].deliver(Report(ticket, ok, error))
        return self.joint.poll()


class Sleeper:
    """A mover that notes what it is given, and how long it was waited for."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.slept: list[float] = []

    def start(self, tasks: Sequence[Task]) -> None:
        self.tasks += tasks

    def poll(self) -> list[Report]:
        return []

    def wait(self, seconds: float) -> None:
        self.slept.append(seconds)


def test_every_rank_is_told_the_same_in_the_same_order() -> None:
    ranks = [Sleeper(), Sleeper(), Sleeper()]
    first, forget, second = move(1), Forget(np.array([3], np.int32)), move(2)
    JointMover(ranks).start([first, forget, second])
    assert all(rank.tasks == [first, forget, second] for rank in ranks)


def test_a_copy_has_ended_when_the_last_rank_has_ended_it() -> None:
    ranks = Ranks(3)
    ranks.joint.start([move(1), move(2)])
    assert [ranks.say(rank, 1) for rank in (2, 0)] == [[], []]
    assert [ranks.say(rank, 2) for rank in (0, 1)] == [[], []]
    assert ranks.say(1, 1) == [Report(1, True)]
    assert ranks.say(2, 2) == [Report(2, True)]


def test_one_failure_fails_the_copy_but_not_before_the_others_have_stopped_writing() -> None:
    ranks = Ranks(3)
    ranks.joint.start([move(1)])
    assert ranks.say(1, 1, False, "no such record") == []
    assert ranks.say(0, 1) == []
    (report,) = ranks.say(2, 1)
    assert not report.ok and report.error == "rank 1: no such record"


def test_every_rank_that_failed_is_named() -> None:
    ranks = Ranks(3)
    ranks.joint.start([move(1)])
    ranks.say(2, 1, False, "checksum")
    ranks.say(1, 1)
    (report,) = ranks.say(0, 1, False)
    assert report == Report(1, False, "rank 0: failed; rank 2: checksum")


def test_a_second_report_of_a_rank_stands_for_no_other_rank() -> None:
    ranks = Ranks(2)
    ranks.joint.start([move(1)])
    assert ranks.say(0, 1) == ranks.say(0, 1) == ranks.say(0, 1, False, "after all") == []
    assert ranks.say(1, 1) == [Report(1, True)]
    assert [count.ignored for count in ranks.joint.counts()] == [2, 0]


def test_reports_of_what_has_ended_or_never_began_are_ignored() -> None:
    ranks = Ranks(2)
    ranks.joint.start([move(1)])
    ranks.say(0, 1), ranks.say(1, 1)
    assert ranks.say(0, 1) == ranks.say(1, 1, False, "late") == ranks.say(1, 77) == []
    assert [count.ignored for count in ranks.joint.counts()] == [1, 2]


def test_a_rank_with_no_part_in_a_copy_does_not_end_it_for_the_others() -> None:
    working = ManualMover()
    joint = JointMover([InstantMover(), working])
    joint.start([move(1)])
    assert joint.poll() == []
    working.finish(1)
    assert joint.poll() == [Report(1, True)]


def test_what_each_rank_has_done_is_counted() -> None:
    ranks = Ranks(2)
    ranks.joint.start([move(1), move(2), move(3)])
    ranks.say(0, 1), ranks.say(0, 2, False, "torn"), ranks.say(0, 3)
    ranks.say(1, 1), ranks.say(1, 9)
    assert ranks.joint.counts() == (RankCount(done=2, failed=1), RankCount(done=1, ignored=1, open=2))


def test_a_ticket_is_in_flight_once() -> None:
    ranks = Ranks(2)
    ranks.joint.start([move(1)])
    with pytest.raises(AssertionError, match="ticket 1"):
        ranks.joint.start([move(1)])


def test_waiting_is_for_ranks_that_owe_a_report() -> None:
    first, quick, last = Sleeper(), InstantMover(), Sleeper()
    joint = JointMover([first, quick, last])
    joint.wait(5)
    assert not first.slept and not last.slept  # nothing is owed: no rank to wait for
    joint.start([move(1)])
    joint.poll()
    joint.wait(5)
    assert sum(first.slept + last.slept) < 0.1  # two owe one: whichever is slept on, the other is heard soon


def test_the_last_rank_is_waited_for_as_long_as_allowed() -> None:
    quick, slow = InstantMover(), Sleeper()
    joint = JointMover([quick, slow])
    joint.start([move(1)])
    joint.poll()
    joint.wait(5)
    assert slow.slept == [5]


def test_threads_of_several_ranks_copy_each_its_own_bytes() -> None:
    arenas = [{Tier.DEVICE: HostArena(8, PAGE), Tier.HOST: HostArena(8, PAGE)} for _ in range(3)]
    every = np.arange(8, dtype=np.int32)
    for rank, tiers in enumerate(arenas):
        tiers[Tier.DEVICE].write(every, np.full((8, PAGE), rank + 1, np.uint8))
    movers = [CopyMover(HostCopier(tiers)) for tiers in arenas]
    joint = JointMover(movers)
    joint.start([move(ticket, source=ticket, target=7 - ticket) for ticket in range(8)])
    reports: list[Report] = []
    while any(count.open for count in joint.counts()):
        joint.wait(1.0)
        reports += joint.poll()
    for mover in movers:
        mover.close()
    assert sorted(report.ticket for report in reports) == list(range(8)) and all(report.ok for report in reports)
    for rank, tiers in enumerate(arenas):
        assert (tiers[Tier.HOST].rows == rank + 1).all()


def test_ranks_are_joined_without_tensors() -> None:
    program = "import sys; sys.modules['torch'] = None; import stepwell.store.ranks, stepwell.testing.harness"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


def test_who_reports_last_is_late_by_what_the_first_waited() -> None:
    time = [10.0]
    inner = [FaultyMover(ManualMover(), FaultPlan()) for _ in range(3)]
    joint = JointMover(inner, lambda: time[0])
    joint.start([move(1), move(2)])
    for rank, ticket, after in ((0, 1, 1.0), (2, 1, 0.5), (1, 1, 0.25), (1, 2, 1.0), (0, 2, 0.0), (2, 2, 4.0)):
        time[0] += after
        inner[rank].deliver(Report(ticket, True, "", seconds=after))
        told = joint.poll()
    assert [count.late for count in joint.counts()] == [0.0, 0.75, 4.0]
    assert told == [Report(2, True, "", 4.0)], "a copy took as long as on the slowest rank"
