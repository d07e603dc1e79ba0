"""Peers' engines over a made-up trace: what must hold whatever they cache."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepwell.base.errors import CapacityError, ConfigError
from stepwell.replay.cost import CostModel
from stepwell.replay.lanes import LaneRules
from stepwell.replay.machine import MachineSizes
from stepwell.replay.peers.engine import PeerLoop
from stepwell.replay.peers.names import PEERS, peer_machine
from stepwell.replay.report import Summary
from stepwell.replay.simulate import Phases
from stepwell.replay.simulated import Setting, simulated
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.trace import Trace
from stepwell.sched.request import Admitted, Finished, Request, SamplingParams, Tokens
from tests.replay.peers.play import text

PHASES = Phases(60.0, 300.0)
TIGHT = MachineSizes(device_tokens=150_000, host_tokens=2_000_000, rung_tokens=300)
AMPLE = MachineSizes(device_tokens=8_000_000, host_tokens=0, rung_tokens=300)
COSTS = CostModel(to_device=1e8, to_host=1e8)


@pytest.fixture(scope="module")
def trace() -> Trace:
    return synthetic(20, 3, Shape(scale=0.6, turns=(20, 0.5), agents=0.02, branch=0.05))


def replay(trace: Trace, sizes: MachineSizes) -> Summary:
    return simulated(Setting(trace, LaneRules(lanes=6, seed=1), PHASES, COSTS), sizes)


@pytest.mark.parametrize("name", PEERS)
def test_memory_decides_how_much_is_reused(trace: Trace, name: str) -> None:
    ample, tight = replay(trace, replace(AMPLE, policy=name)), replay(trace, replace(TIGHT, policy=name))
    alone = replay(trace, replace(TIGHT, policy=name, host_tokens=0))
    for found in (ample, tight, alone):
        a = found.admitted
        assert found.failed == 0
        assert found.requests > 50
        assert a.device + a.host + a.recomputed == a.prompt
        assert a.device + a.host <= found.bound, "no cache reuses more than an infinite one"
        assert sum(a.lost.values()) == a.recomputed
    assert ample.admitted.host == alone.admitted.host == 0 < tight.admitted.host
    assert alone.share(alone.admitted.recomputed) > tight.share(tight.admitted.recomputed)
    assert {way for way, size in tight.traffic.since(0.0) if size} == {"device to host", "host to device"}
    assert tight.rungs is not None
    assert tight.rungs.left > 0


@pytest.mark.parametrize("name", PEERS)
def test_the_same_seed_gives_the_same_figures(trace: Trace, name: str) -> None:
    sizes = replace(TIGHT, policy=name, peer_failure_rate=0.5)
    one, two = replay(trace, sizes), replay(trace, sizes)
    assert (one.rows, one.traffic, one.course.end_s) == (two.rows, two.traffic, two.course.end_s)


@pytest.mark.parametrize("name", ["vllm", "atom-before", "atom-after"])
def test_loads_that_always_fail_bring_nothing(trace: Trace, name: str) -> None:
    found = replay(trace, replace(TIGHT, policy=name, peer_failure_rate=1.0))
    assert found.admitted.host == 0
    assert any(row.reason.startswith("load_failed") for row in found.rows)


def engine(**sizes: int) -> PeerLoop:
    return peer_machine("sglang", replace(AMPLE, **sizes), COSTS, 0.0, 0).loop


def test_each_request_is_admitted_answered_and_ended_once() -> None:
    loop = engine(max_num_seqs=2)
    for i in range(4):
        loop.submit(Request(str(i), text(i, 500), SamplingParams(max_tokens=5)))
    heard = []
    while loop.busy:
        heard += loop.step(most=100)
    assert [e.request_id for e in heard if isinstance(e, Admitted)] == ["0", "1", "2", "3"], "first come, first served"
    assert sorted(e.request_id for e in heard if isinstance(e, Finished)) == ["0", "1", "2", "3"]
    assert sum(len(e.tokens) for e in heard if isinstance(e, Tokens)) == 20


def test_decodes_taken_at_once_cost_what_the_single_ones_do() -> None:
    ends = []
    for most in (1, 100):
        machine = peer_machine("vllm", AMPLE, COSTS, 0.0, 0)
        for i in range(3):
            machine.loop.submit(Request(str(i), text(i, 700 * (i + 1)), SamplingParams(max_tokens=40 + i)))
        while machine.loop.busy:
            machine.loop.step(most)
        ends.append((machine.clock.now(), machine.steps))
    assert ends[0][1] == ends[1][1]
    assert ends[0][0] == pytest.approx(ends[1][0], rel=1e-6)


def test_a_request_that_can_never_fit_is_refused() -> None:
    with pytest.raises(CapacityError, match="raise --device-tokens"):
        engine(device_tokens=4000).submit(Request("r", np.ones(5000, np.int32)))


@pytest.mark.parametrize(
    ("name", "least"), [("vllm", 63 + 112), ("sglang", 63 + 64), ("atom-before", 63 + 64), ("atom-after", 63 + 64)]
)
def test_a_step_must_hold_a_page_beside_the_decodes(name: str, least: int) -> None:
    peer_machine(name, replace(AMPLE, max_num_batched_tokens=least), COSTS, 0.0, 0)
    with pytest.raises(ConfigError, match=f"must be at least {least} for --policy {name}"):
        peer_machine(name, replace(AMPLE, max_num_batched_tokens=least - 1), COSTS, 0.0, 0)


@pytest.mark.parametrize("block", [0, -64, 96])
def test_blocks_must_divide_the_chunks_of_atom(block: int) -> None:
    with pytest.raises(ConfigError, match="--block-size must divide 256"):
        peer_machine("atom-after", replace(AMPLE, block=block), COSTS, 0.0, 0)


@pytest.mark.parametrize("name", PEERS)
def test_a_device_that_holds_no_request_at_all_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"hold no request under --policy {name}.*raise --device-tokens"):
        peer_machine(name, replace(AMPLE, device_tokens=500), COSTS, 0.0, 0)
