"""Policies by name."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.base.errors import ConfigError
from stepwell.replay.cost import CostModel
from stepwell.replay.eviction import POLICIES
from stepwell.replay.machine import MachineSizes
from stepwell.replay.peers.names import PEERS
from stepwell.replay.policies import expect_policies, is_own, machine_for, policies


def test_every_policy_has_a_line_and_a_machine() -> None:
    assert list(policies()) == [*POLICIES, *PEERS]
    assert all(policies().values())
    for name in policies():
        machine = machine_for(replace(MachineSizes(), policy=name), CostModel(), seed=0)
        assert not machine.loop.busy
        assert is_own(name) == (name in POLICIES)


def test_names_are_told_apart_and_unknown_ones_answered_with_those_there_are() -> None:
    assert expect_policies(["lru", "vllm", "lru"]) == ["lru", "vllm"]
    with pytest.raises(
        ConfigError, match=r"--policy 'fifo' is unknown: use one of ladder, lru, vllm, sglang, atom-before"
    ):
        expect_policies(["lru", "fifo"])
    with pytest.raises(ConfigError, match="at least one of ladder"):
        expect_policies([])
