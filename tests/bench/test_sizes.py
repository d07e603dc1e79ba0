"""What is measured fits the engine."""

from __future__ import annotations

import pytest

from stepwell.base.errors import ConfigError
from stepwell.bench.sizes import Sizes


def test_sizes_stay_within_what_the_engine_can_take() -> None:
    assert max(Sizes().within(3000, 4).prompts) == 2048
    assert all(b <= 4 and c <= 2048 for b, c in Sizes().within(3000, 4).decodes)
    with pytest.raises(ConfigError, match="too few"):
        Sizes().within(300, 1)


def test_sizes_follow_the_longest_prompt() -> None:
    found = Sizes.up_to(1600, 2)
    assert found.prompts == (100, 200, 400, 800, 1600)
    assert max(c for _, c in found.decodes) == 800
    assert found.rounds == 2
