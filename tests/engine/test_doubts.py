"""Warnings about engines that run, and cache nothing."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry
from stepwell.engine.config import EngineConfig
from stepwell.engine.doubts import doubts, longest_context

SIZES = Geometry(16, 64, 1000, 4000)


def told(pages: int = 1000, slots: int = 100, wanted: int = 4096, sizes: Geometry = SIZES, **flags: Any) -> str:
    return "\n".join(doubts(EngineConfig("m", **flags), sizes, pages, slots, wanted))


def test_an_engine_with_room_gives_no_cause() -> None:
    assert told() == ""


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ({"pages": 100}, "4,096 tokens is more than the device holds: prompt and answer may have 1,600"),
        ({"pages": 258}, "more than 4,064 tokens fills the device"),
        ({"pages": 4, "rung_grid": 64}, "--rung-grid 64"),
        ({"slots": 3}, "give at least 3.9 KiB"),
        ({"min_load_tokens": 4096}, "--min-load-tokens 4096"),
    ],
)
def test_each_cause_is_told_with_what_to_change(case: dict[str, Any], named: str) -> None:
    assert named in told(**case)


def test_whoever_switched_caching_or_the_host_tier_off_is_not_told_so() -> None:
    assert told(pages=10, slots=0, enable_prefix_caching=False) == ""
    assert told(slots=0, host_memory=0) == ""


def test_a_model_without_states_needs_no_room_for_rungs() -> None:
    assert told(pages=256, sizes=Geometry(16, 16, 1000, 0)) == ""


def longest(pages: int, **flags: Any) -> int:
    return longest_context(EngineConfig("m", **flags), SIZES, pages, positions=4096)


def test_a_context_is_what_was_asked_for_or_what_the_model_was_made_for() -> None:
    assert (longest(9), longest(9, max_model_len=100), longest(9, max_model_len=4096)) == (4096, 100, 4096)


def test_what_cannot_work_is_refused_with_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"--device-memory holds 8 pages .* need 9: give at least 8\.8 KiB"):
        longest(8)  # an image takes four, a prompt of 65 tokens five
    with pytest.raises(ConfigError, match="--max-model-len 4097 is more than the 4096 positions"):
        longest(1000, max_model_len=4097)


def test_an_interval_of_nothing_is_refused_with_what_to_give() -> None:
    with pytest.raises(ConfigError, match=r"multiple of --rung-grid 64 .* --no-enable-prefix-caching"):
        EngineConfig("m", state_checkpoint_interval_tokens=0)
