"""Made-up conversations: repeatable, well formed, of the shape they promise."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from stepwell.base.errors import ConfigError
from stepwell.replay.bound import share
from stepwell.replay.synthetic import Shape, synthetic


def test_the_same_arguments_give_the_same_trace() -> None:
    assert synthetic(5, 1) == synthetic(5, 1)
    assert synthetic(5, 1) != synthetic(5, 2)
    assert synthetic(5, 1).conversations == synthetic(9, 1).conversations[:5]


def test_the_shape_follows_the_medians() -> None:
    trace = synthetic(150, 4)
    turns = [turn for c in trace.conversations for s in c.streams for turn in s.turns]
    steps = [b.prompt - a.prompt for c in trace.conversations for a, b in pairwise(c.streams[0].turns)]
    assert 500 < np.median(steps) < 900
    assert 180 < np.median([turn.output for turn in turns]) < 260
    assert 7 < np.median([turn.think for turn in turns]) < 13
    assert 0.90 < share(trace.conversations) < 0.98
    assert max(turn.prompt for turn in turns) <= 200_000
    assert any(len(c.streams) > 1 for c in trace.conversations)


def test_prompts_cover_their_blocks_and_times_go_forward() -> None:
    for conversation in synthetic(30, 5, Shape(scale=0.05, agents=0.05)).conversations:
        root = conversation.streams[0]
        for stream in conversation.streams:
            assert all(turn.blocks == turn.prompt // 64 for turn in stream.turns)
            assert all(a.time + a.output / 60 <= b.time for a, b in pairwise(stream.turns))
            assert stream.tool_tokens + stream.system_tokens <= stream.turns[0].prompt
        for agent in conversation.streams[1:]:
            assert agent.parent == 0
            assert 0 <= agent.start <= root.turns[-1].time


def test_sub_agents_of_a_conversation_share_their_head_alone() -> None:
    made = synthetic(40, 6, Shape(scale=0.2, agents=0.1)).conversations
    several = next(c for c in made if len(c.streams) > 2)
    root, one, two = (set(s.turns[0].ids().tolist()) for s in several.streams[:3])
    head = (several.streams[1].tool_tokens + several.streams[1].system_tokens) // 64
    assert len(one & two) == head
    assert not root & one


def test_sub_agents_may_start_together() -> None:
    made = synthetic(40, 6, Shape(scale=0.2, agents=0.05, fan_out=5)).conversations
    agents = next(c for c in made if len(c.streams) > 1).streams[1:6]
    assert len({agent.start for agent in agents}) == 1
    assert len({tuple(agent.turns[0].ids().tolist()) for agent in agents}) == 5


def test_small_prompts_for_small_models() -> None:
    turns = [t for c in synthetic(20, 1, Shape(scale=0.05)).conversations for t in c.streams[0].turns]
    assert min(t.prompt for t in turns) >= 400
    assert max(t.prompt for t in turns) <= 10_000


@pytest.mark.parametrize("bad", [{"scale": 0.0}, {"block": 0}, {"max_prompt": 30_000}, {"fan_out": 0}, {"agents": 2.0}])
def test_a_shape_that_cannot_be_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        Shape(**bad)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="at least 1 conversation"):
        synthetic(0)
