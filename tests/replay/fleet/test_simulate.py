"""Several engines in virtual time: nothing is lost, the same seed gives the same figures, and routing decides what is reused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from stepwell.base.errors import ConfigError
from stepwell.cli import app
from stepwell.replay.cost import CostModel
from stepwell.replay.fleet.compare import Fleet, FleetSummary, faster, play
from stepwell.replay.fleet.routing import ROUTINGS, PrefixRouting
from stepwell.replay.lanes import LaneRules
from stepwell.replay.machine import Machine, MachineSizes
from stepwell.replay.simulate import Phases
from stepwell.replay.simulated import Setting, simulated
from stepwell.replay.synthetic import Shape, synthetic

SIZES = MachineSizes(device_tokens=150_000, host_tokens=0, rung_tokens=300)
RULES = LaneRules(lanes=6, seed=1)


@pytest.fixture(scope="module")
def setting() -> Setting:
    trace = synthetic(20, 3, Shape(scale=0.1, turns=(20, 0.5), agents=0.02, branch=0.05))
    return Setting(trace, RULES, Phases(60.0, 240.0), CostModel())


@pytest.fixture(scope="module")
def found(setting: Setting) -> dict[str, FleetSummary]:
    return dict(play(Fleet(3, name, SIZES), setting) for name in ROUTINGS)


def test_every_request_is_served_once_under_every_routing(found: dict[str, FleetSummary]) -> None:
    for one in found.values():
        admitted = one.summary.admitted
        assert one.summary.failed == 0 and one.summary.requests > 50
        assert admitted.device + admitted.host + admitted.recomputed == admitted.prompt
        assert admitted.device <= one.summary.bound, "no fleet reuses more than an infinite cache"
        names = [(r.conversation, r.edition, r.stream, r.index, r.sent) for r in one.summary.rows]
        assert len(set(names)) == len(names) == one.summary.played
        assert all(row.ttft is None or row.ttft >= 0 for row in one.summary.rows)


def test_where_sessions_stay_nearly_all_is_reused_that_one_cache_would_reuse(found: dict[str, FleetSummary]) -> None:
    assert found["stepwell"].hit > 0.95 * found["one"].hit > found["random"].hit
    assert found["session"].moves == found["one"].moves == 0 < found["random"].moves


def test_the_same_seed_gives_the_same_figures(setting: Setting, found: dict[str, FleetSummary]) -> None:
    _, again = play(Fleet(3, "stepwell", SIZES), setting)
    assert again.summary.rows == found["stepwell"].summary.rows


def test_a_fleet_of_one_is_that_machine(setting: Setting) -> None:
    """As a replay without replicas has it, but for the moments at which requests are noticed."""
    _, fleet = play(Fleet(1, "stepwell", SIZES), setting)
    alone = simulated(setting, SIZES)
    share = alone.share(alone.admitted.prompt - alone.admitted.recomputed)
    assert fleet.hit == pytest.approx(share, abs=0.01)
    assert fleet.summary.requests == pytest.approx(alone.requests, rel=0.03)


def test_one_machine_as_fast_as_three_takes_a_third_of_the_time() -> None:
    costs = CostModel(weights_s=0.0, overhead_s=0.0, sequence_s=0.0)
    assert faster(costs, 3).pass_seconds([(0, 9000)], 0, 0) == pytest.approx(costs.pass_seconds([(0, 9000)], 0, 0) / 3)


def test_prefix_routing_is_modelled_for_as_many_replicas_as_a_word_has_bits() -> None:
    machines = [Machine(replace(SIZES, device_tokens=10_000), CostModel())] * 65
    with pytest.raises(ConfigError, match="64 replicas"):
        PrefixRouting(machines, 0)


SMALL = ["replay", "synthetic", "--scale", "0.05", "--lanes", "4", "--warmup", "10", "--duration", "60"]
SMALL += ["--conversations", "6", "--device-tokens", "1e5", "--host-tokens", "0", "--replicas", "2", "--jobs", "1"]


def test_the_command_puts_routings_side_by_side() -> None:
    done = CliRunner().invoke(app, [*SMALL, "--routing", "stepwell", "--routing", "one", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.output.splitlines()[-1])["routings"]
    assert list(told) == ["stepwell", "one"] and told["stepwell"]["hit"] > 0
    assert "of one" in done.output


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--routing", "nearest"], "--routing 'nearest' is unknown"),
        (["--policy", "vllm"], "our own engines"),
        (["--bound", "future"], "--bound future"),
        (["--live", "http://localhost:1"], "leave it out with --live"),
        (["--html", "x.html"], "--json-file"),
    ],
)
def test_what_a_fleet_cannot_do_is_told(more: list[str], said: str) -> None:
    done = CliRunner().invoke(app, [*SMALL, *more])
    assert done.exit_code == 2 and said in done.output.replace("\n", " "), done.output
