"""A runner and a mover that only let time pass."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.clock import VirtualClock
from stepwell.cache.moves import Extent, Forget, LiveState, Move, Tier, Touch
from stepwell.replay.cost import CostModel
from stepwell.replay.runner import ANSWER_TOKEN, CostRunner, Links, VirtualMover
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Carry, Fresh, Sample, Step, Work

COSTS = CostModel(to_device=100.0, to_host=50.0, copy_latency_s=0.0)


def work(tokens: int, draw: int | None) -> Work:
    sample = None if draw is None else Sample(SamplingParams(), draw)
    state = Carry() if draw else Fresh()
    return Work("r", 0, 0, 0, np.zeros(tokens, np.int32), np.zeros(1, np.int32), 0, state, (), sample)


def load(ticket: int, slots: int) -> Move:
    return Move(ticket, "image", Extent(Tier.HOST, np.arange(slots, dtype=np.int32)), LiveState(0), 64)


def save(ticket: int, slots: int) -> Move:
    ids = np.arange(slots, dtype=np.int32)
    return Move(ticket, "kv", Extent(Tier.DEVICE, ids), Extent(Tier.HOST, ids), 64)


def test_a_step_takes_its_cost_and_answers_where_it_samples() -> None:
    clock = VirtualClock()
    runner = CostRunner(clock, COSTS)
    step = Step((work(100, None), work(50, 0)))
    assert runner.launch(step).result().sampled == ((), (ANSWER_TOKEN,))
    assert clock.now() == COSTS.step_seconds(step)
    runner.passes = 3
    assert runner.launch(Step((work(1, 4),))).result().sampled == ((ANSWER_TOKEN,) * 3,)
    assert runner.launch(Step((work(1, 7),))).result().sampled == ((ANSWER_TOKEN,),), "a leap is over after one step"
    assert runner.steps == 5


def test_a_step_begins_when_the_one_before_ends_and_launching_takes_no_time() -> None:
    clock = VirtualClock()
    runner = CostRunner(clock, COSTS)
    step = Step((work(100, 0),))
    first, second = runner.launch(step), runner.launch(step)
    assert clock.now() == 0.0
    first.result()
    assert clock.now() == COSTS.step_seconds(step)
    second.result()
    assert clock.now() == 2 * COSTS.step_seconds(step)
    runner.launch(step).result()
    assert clock.now() == pytest.approx(3 * COSTS.step_seconds(step))


def test_copies_of_one_direction_queue_and_directions_do_not_wait_for_each_other() -> None:
    clock = VirtualClock(10.0)
    mover = VirtualMover(clock, links := Links(clock, COSTS), page_bytes=10)
    mover.start([load(1, 10), load(2, 20), save(3, 10)])
    ends = []
    while (when := mover.next_time()) is not None:
        clock.advance_to(when)
        ends += [(when, report.ticket, report.ok) for report in mover.poll()]
    assert ends == [(11.0, 1, True), (12.0, 3, True), (13.0, 2, True)]
    assert links.bytes_moved == {(Tier.HOST, Tier.DEVICE): {11: 100, 13: 200}, (Tier.DEVICE, Tier.HOST): {12: 100}}
    assert links.images == {(Tier.HOST, Tier.DEVICE): {11: 1, 13: 1}}


def test_a_copy_does_not_begin_before_it_was_asked_for() -> None:
    clock = VirtualClock()
    mover = VirtualMover(clock, Links(clock, COSTS), page_bytes=10)
    mover.start([load(1, 10)])
    clock.advance(5.0)
    mover.start([load(2, 10)])
    assert [r.ticket for r in mover.poll()] == [1]
    assert mover.next_time() == 6.0
    assert mover.poll() == []


def test_waiting_ends_with_the_next_copy_or_the_given_time() -> None:
    clock = VirtualClock()
    mover = VirtualMover(clock, Links(clock, COSTS), page_bytes=10)
    mover.start([load(1, 10)])
    mover.wait(0.25)
    assert (clock.now(), mover.poll()) == (0.25, [])
    mover.wait(100.0)
    assert clock.now() == 1.0
    assert [r.ticket for r in mover.poll()] == [1]
    mover.wait(2.0)
    assert clock.now() == pytest.approx(3.0)


def test_the_disk_is_a_direction_of_its_own_each_way_and_its_bookkeeping_takes_no_time() -> None:
    clock = VirtualClock()
    links = Links(clock, CostModel(from_disk=10.0, to_disk=5.0, to_device=1e9, copy_latency_s=0.0))
    mover = VirtualMover(clock, links, page_bytes=10)
    ids = np.arange(10, dtype=np.int32)
    down = Move(1, "kv", Extent(Tier.HOST, ids), Extent(Tier.DISK, ids), 64)
    up = Move(2, "kv", Extent(Tier.DISK, ids), Extent(Tier.DEVICE, ids), 64)
    mover.start([Forget(ids), down, Touch(ids), up])
    assert mover.next_time() == 10.0
    clock.advance(20.0)
    assert [report.ticket for report in mover.poll()] == [2, 1]
    assert mover.next_time() is None
    assert links.bytes_moved == {(Tier.HOST, Tier.DISK): {20: 100}, (Tier.DISK, Tier.DEVICE): {10: 100}}
