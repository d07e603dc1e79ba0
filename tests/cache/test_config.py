"""Rules that cannot work are refused, with what to change."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry
from stepwell.cache.config import CacheConfig


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"device_pages": 0}, "raise --device-memory"),
        ({"interval": 100}, "--state-checkpoint-interval-tokens 100 must be a multiple of --rung-grid 64"),
        ({"interval": 32}, "must be a multiple of --rung-grid 64"),
        ({"chunk": 24}, "chunk 24 must be a multiple of --block-size 16"),
        ({"chunk": 0}, "chunk 0 must be a multiple"),
        ({"clean_share": 1.5}, "must be between 0 and 1"),
        ({"clean_share": -0.1}, "must be between 0 and 1"),
    ],
)
def test_what_cannot_work_says_what_to_change(change: dict[str, Any], message: str) -> None:
    sizes: dict[str, Any] = {"geometry": Geometry(), "device_pages": 10, **change}
    with pytest.raises(ConfigError, match=message):
        CacheConfig(**sizes)


def test_the_defaults_work() -> None:
    rules = CacheConfig(Geometry(), 10)
    assert (rules.chunk, rules.interval, rules.whole_chunks) == (256, 8192, False)


@pytest.mark.parametrize(("block", "grid"), [(0, 64), (16, 0), (16, 24)])
def test_a_geometry_needs_whole_blocks(block: int, grid: int) -> None:
    with pytest.raises(ConfigError, match=r"--block-size|--rung-grid"):
        Geometry(block, grid)
