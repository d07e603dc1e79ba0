"""Flags to what a replay is made of."""

from __future__ import annotations

import pytest

from stepwell.base.errors import ConfigError
from stepwell.replay.idle import CappedIdle
from stepwell.replay.lanes import LaneRules, Lanes, Timeline
from stepwell.replay.setup import settings_of, source_from, tokens_in
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.trace import Trace


@pytest.mark.parametrize(
    ("text", "tokens"), [("8e6", 8_000_000), ("0", 0), ("1GiB", 2**30 // 1000), ("1.5 MB", 1500), ("7", 7)]
)
def test_sizes_are_tokens_or_memory(text: str, tokens: int) -> None:
    assert tokens_in(text, "--host-tokens", 1000) == tokens


@pytest.mark.parametrize("text", ["nan", "-1", "8M", "many", "1e30", "xGiB", ""])
def test_other_sizes_are_refused_by_the_name_of_their_flag(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--host-tokens must be|cannot read 'xGiB'"):
        tokens_in(text, "--host-tokens", 1000)


def test_the_source_is_what_the_trace_and_the_cap_ask_for() -> None:
    trace = synthetic(2, 0, Shape(scale=0.05))
    assert isinstance(source_from(trace, LaneRules(), None), Lanes)
    assert isinstance(source_from(Trace(trace.conversations, open_loop=True), LaneRules(), None), Timeline)
    assert isinstance(source_from(trace, LaneRules(), 3.0), CappedIdle)


def test_settings_show_what_matters_and_no_secret() -> None:
    params = {"lanes": 4, "start": (0.25, 0.75), "api_key": "secret", "html": "x", "live": None}
    assert settings_of(params) == (("lanes", "4"), ("start", "0.25 0.75"))
