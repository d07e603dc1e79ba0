"""Rules under which a step could not make progress are refused."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry
from stepwell.sched.config import SchedConfig


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_num_seqs": 0}, "--max-num-seqs must be at least 1"),
        ({"max_num_batched_tokens": 94}, "must be at least 95"),
        ({"decode_rung_tokens": 8}, "--decode-rung-tokens 8 must be a multiple of --block-size 16"),
        ({"decode_rung_tokens": 24}, "must be a multiple of --block-size 16"),
        ({"max_model_len": 1}, "--max-model-len must be at least 2"),
    ],
)
def test_what_cannot_work_says_what_to_change(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SchedConfig(**change).validate(Geometry())


def test_a_decode_each_and_one_grid_of_prompt_is_enough() -> None:
    SchedConfig(max_num_batched_tokens=95).validate(Geometry())
