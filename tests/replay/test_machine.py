"""The real scheduler and cache on a machine of costs: what must hold for any policy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.base.errors import ConfigError
from stepwell.replay.cost import CostModel
from stepwell.replay.lanes import LaneRules, Lanes
from stepwell.replay.machine import Machine, MachineSizes
from stepwell.replay.report import Course, Summary, summarise
from stepwell.replay.simulate import Phases, Simulation
from stepwell.replay.simulated import rungs_of, traffic_of
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.text import Text
from stepwell.replay.trace import Trace

PHASES = Phases(60.0, 300.0)
AMPLE = MachineSizes(device_tokens=2_000_000, host_tokens=0, rung_tokens=300)
TIGHT = MachineSizes(device_tokens=20_000, host_tokens=400_000, rung_tokens=300)


class OnePass(Machine):
    """Takes every decode pass by itself."""

    __slots__ = ()

    def passes_until(self, when: float) -> int:
        return 1


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic(20, 3, Shape(scale=0.1, turns=(20, 0.5), agents=0.02, branch=0.05))


def replay(trace: Trace, machine: Machine) -> Summary:
    source = Lanes(trace.conversations, LaneRules(lanes=6, seed=1))
    simulation = Simulation(source, machine, Text(1), PHASES)
    simulation.run()
    assert len(machine.loop.directory.leases) <= 3 * machine.loop.config.max_num_seqs
    end = machine.clock.now()
    course = Course("simulated", (), end, 1.0, machine.steps)
    return summarise(simulation.ledger, course, traffic_of(machine, end), rungs_of(simulation, machine))


def test_with_room_for_everything_the_bound_is_near(trace: Trace) -> None:
    found = replay(trace, Machine(AMPLE, CostModel()))
    assert found.requests > 80
    assert found.failed == 0
    assert found.admitted.device + found.admitted.recomputed == found.admitted.prompt
    assert found.admitted.device <= found.bound, "no cache reuses more than an infinite one"
    assert 0 <= found.excess < 0.5


def test_a_machine_that_builds_its_steps_ahead_answers_the_same_requests_later(trace: Trace) -> None:
    at_once, ahead = (replay(trace, Machine(replace(AMPLE, ahead=value), CostModel())) for value in (False, True))
    assert ahead.failed == 0
    assert ahead.admitted.device + ahead.admitted.recomputed == ahead.admitted.prompt
    assert abs(ahead.excess - at_once.excess) < 0.05
    slower, faster = (sum(one.ttft) / len(one.ttft) for one in (ahead, at_once))
    assert slower > faster, "whoever comes while a step computes waits for the one behind it too"


def test_a_small_device_serves_from_host_too(trace: Trace) -> None:
    found = replay(trace, Machine(TIGHT, CostModel()))
    admitted = found.admitted
    assert found.failed == 0
    assert admitted.device + admitted.host + admitted.recomputed == admitted.prompt
    assert admitted.device + admitted.host <= found.bound
    assert {way for way, size in found.traffic.since(0.0) if size} == {"device to host", "host to device"}
    assert found.rungs is not None
    assert found.rungs.left > found.requests
    assert sum(found.rungs.used) == sum(row.recomputed < row.prompt for row in found.rows if row.measured)
    assert found.rungs.demoted > 0


def test_decodes_taken_at_once_change_nothing_where_there_is_room(trace: Trace) -> None:
    one, many = replay(trace, OnePass(AMPLE, CostModel())), replay(trace, Machine(AMPLE, CostModel()))
    assert (one.admitted, one.bound, one.course.steps, one.answered) == (
        many.admitted,
        many.bound,
        many.course.steps,
        many.answered,
    )
    assert many.ttft == pytest.approx(one.ttft, abs=1e-9)


def test_the_same_seed_gives_the_same_figures(trace: Trace) -> None:
    one, two = replay(trace, Machine(TIGHT, CostModel())), replay(trace, Machine(TIGHT, CostModel()))
    assert one == two


@pytest.mark.parametrize("bad", [{"block": 0}, {"block": 48}, {"device_tokens": 10}, {"max_num_batched_tokens": 3}])
def test_sizes_that_cannot_work_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        Machine(MachineSizes(**bad), CostModel())


def test_passes_that_take_no_time_are_taken_one_by_one() -> None:
    machine = Machine(AMPLE, CostModel(weights_s=0.0, overhead_s=0.0))
    assert machine.passes_until(100.0) == 1
