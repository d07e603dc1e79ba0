"""Traces written and read again: nothing that a replay looks at gets lost."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from stepwell.base.errors import ConfigError
from stepwell.replay.bound import share
from stepwell.replay.convert import convert
from stepwell.replay.formats import read_trace
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.trace import Conversation, Stream, Trace, Turn


@pytest.fixture(scope="module")
def made() -> Trace:
    trace = synthetic(5, seed=3, shape=Shape(scale=0.1, agents=0.1))
    assert any(len(c.streams) > 1 for c in trace.conversations)
    return trace


def _turns(conversation: Conversation) -> Conversation:
    """Without the sizes of its system prompts."""
    bare = tuple(replace(stream, tool_tokens=0, system_tokens=0) for stream in conversation.streams)
    return replace(conversation, streams=bare)


def _fits(conversation: Conversation) -> bool:
    return all(s.tool_tokens + s.system_tokens <= s.turns[0].prompt - 64 for s in conversation.streams)


def test_single_requests_keep_their_times_in_our_own_form(tmp_path: Path) -> None:
    streams = tuple(Stream(1.5 * i, (Turn(0.0, 100 + i, 3, 0.0, ((0, 1),)),)) for i in range(3))
    trace = Trace((Conversation("m", 64, streams),), open_loop=True)
    convert(trace, tmp_path / "t.jsonl", "own")
    assert read_trace(tmp_path / "t.jsonl") == trace


def test_the_source_form_reads_back_equal(tmp_path: Path, made: Trace) -> None:
    convert(made, tmp_path / "folder", "source")
    read = read_trace(tmp_path / "folder")
    assert [_turns(c) for c in read.conversations] == [_turns(c) for c in made.conversations]
    whole = [(a, b) for a, b in zip(read.conversations, made.conversations, strict=True) if _fits(b)]
    assert whole and all(a == b for a, b in whole)
    told = json.loads((tmp_path / "folder" / "conversation_00000.json").read_text())
    assert {"id", "models", "block_size", "hash_id_scope", "tool_tokens", "system_tokens", "requests"} == set(told)


@pytest.mark.parametrize(
    ("prompt", "tools", "system"), [(798, 597, 171), (1000, 597, 200), (768, 597, 107), (64, 0, 0)]
)
def test_the_source_form_says_no_more_of_the_system_prompt_than_the_first_prompt_holds(
    tmp_path: Path, prompt: int, tools: int, system: int
) -> None:
    turns = (Turn(0.0, prompt, 3, 0.0, ((0, prompt // 64),)),)
    convert(Trace((Conversation("a", 64, (Stream(0.0, turns, 597, 200),)),)), tmp_path / "t", "source")
    told = json.loads((tmp_path / "t" / "conversation_00000.json").read_text())
    assert (told["tool_tokens"], told["system_tokens"]) == (tools, system)
    assert -(-(tools + system) // 64) * 64 < prompt


def test_mooncake_blocks_are_shared_where_all_eight_of_ours_are(tmp_path: Path) -> None:
    turns = (
        Turn(0.0, 1100, 5, 0.0, ((1, 17),)),
        Turn(2.0, 1600, 5, 1.0, ((1, 25),)),
        Turn(9.0, 1100, 5, 1.0, ((1, 9), (90, 8))),
    )
    convert(Trace((Conversation("a", 64, (Stream(1.0, turns),)),)), tmp_path / "m.jsonl", "mooncake")
    lines = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert [line["timestamp"] for line in lines] == [1000, 3000, 10000]
    first, longer, branch = (line["hash_ids"] for line in lines)
    assert (len(first), len(longer), len(branch)) == (3, 4, 3)
    assert first[:2] == longer[:2]
    assert first[2] != longer[2], "a block that is not whole belongs to its request alone"
    assert first[0] == branch[0]
    assert first[1] != branch[1]


def test_mooncake_reads_back_with_nearly_the_same_bound(tmp_path: Path, made: Trace) -> None:
    convert(made, tmp_path / "m.jsonl.gz", "mooncake")
    again = read_trace(tmp_path / "m.jsonl.gz")
    assert again.open_loop
    assert again.requests == made.requests
    assert 0 <= share(made.conversations) - share(again.conversations) < 0.35, (
        "512-token blocks reuse less than 64-token ones"
    )


def test_what_cannot_be_written_is_refused(tmp_path: Path, made: Trace) -> None:
    odd = Trace((Conversation("a", 48, (Stream(0.0, (Turn(0.0, 48, 1, 0.0, ((0, 1),)),)),)),))
    pair = Trace((Conversation("a", 64, (made.conversations[0].streams[0],) * 2),))
    for trace, form, message in (
        (odd, "mooncake", "do not make up"),
        (made, "x", "--convert-to"),
        (pair, "source", "use own"),
    ):
        with pytest.raises(ConfigError, match=message):
            convert(trace, tmp_path / "out", form)
    with pytest.raises(ConfigError, match="cannot write"):
        convert(made, tmp_path / "no" / "such" / "t.jsonl", "own")
