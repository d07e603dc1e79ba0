"""Sweeps over sizes, and the point at which more memory stops paying."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.replay.profile import DEFAULT, load_profile
from stepwell.replay.sweep import Point, knee, machines, sweep

PLAIN = Point(0, 0, 0, 100, 0.95, 0.0, 0.0, 0.0, 0.1, 0.01, 0.1, 0)

PARAMS: dict[str, Any] = {
    "trace": "synthetic",
    "conversations": 8,
    "scale": 0.1,
    "turns": 46.0,
    "agents": 0.005,
    "fan_out": 1,
    "seed": 1,
    "lanes": 3,
    "start": (0.25, 0.75),
    "once": False,
    "think_cap": 300.0,
    "max_prompt": 256_000,
    "idle_gap_cap": None,
    "warmup": 20.0,
    "duration": 200.0,
    "profile": DEFAULT,
    "rung_tokens": 300,
    "block_size": 64,
    "rung_grid": 64,
    "state_checkpoint_interval_tokens": 8192,
    "decode_rung_tokens": 128,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 16_384,
    "coalesce": True,
    "policy": ["ladder"],
    "peer_failure_rate": 0.0,
    "device": ["2e5", "3e4"],
    "host": ["0", "1e5"],
    "disk": ["0"],
}


def test_every_combination_is_simulated_once_in_order() -> None:
    found = machines(PARAMS, load_profile(DEFAULT))
    assert [(m.device_tokens, m.host_tokens) for m in found] == [
        (30_000, 0),
        (30_000, 100_000),
        (200_000, 0),
        (200_000, 100_000),
    ]
    assert {m.decode_rung_tokens for m in found} == {128}
    both = machines({**PARAMS, "policy": ["lru", "vllm", "lru"]}, load_profile(DEFAULT))
    assert [m.policy for m in both] == ["lru"] * 4 + ["vllm"] * 4
    with pytest.raises(ConfigError, match="--host must be"):
        machines({**PARAMS, "host": ["much"]}, load_profile(DEFAULT))


def test_processes_find_what_one_process_finds() -> None:
    alone = list(sweep(PARAMS, 1))
    assert len(alone) == 4
    assert len({p.requests for p in alone}) <= 4
    assert all(0 < p.hit <= p.bound for p in alone)
    assert max(p.hit for p in alone) == alone[-1].hit
    few = {**PARAMS, "device": ["3e4", "2e5"], "host": ["0"]}
    assert sorted(sweep(few, 2), key=lambda p: p.device_tokens) == [alone[0], alone[2]]


def test_the_knee_is_where_the_curve_bends() -> None:
    shares = {1: 0.4, 2: 0.8, 4: 0.85, 8: 0.87}
    points = [replace(PLAIN, device_tokens=size, device=share) for size, share in shares.items()]
    assert knee(points, 0.1).device_tokens == 2
    assert knee(points[:1], 0.1).device_tokens == 1


def test_host_memory_is_preferred_where_it_is_cheap() -> None:
    points = [
        replace(PLAIN, device_tokens=10, device=0.4),
        replace(PLAIN, device_tokens=10, host_tokens=100, device=0.4, host=0.5),
        replace(PLAIN, device_tokens=40, device=0.8),
        replace(PLAIN, device_tokens=80, device=0.9),
    ]
    assert knee(points, 0.01).host_tokens == 100
    assert knee(points, 1.0).device_tokens == 40


def test_equal_hits_cost_the_least() -> None:
    points = [replace(PLAIN, device_tokens=size, device=0.7) for size in (8, 2, 4)]
    assert knee(points, 0.1).device_tokens == 2


def test_a_trace_that_is_not_there_is_named_whatever_the_number_of_processes() -> None:
    for jobs in (1, 2):
        with pytest.raises(ConfigError, match="no trace at"):
            next(sweep({**PARAMS, "trace": "/not/there"}, jobs))
