"""Logs of OpenAI requests: shared text becomes shared blocks, sessions become conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.replay.convert import write_trace
from stepwell.replay.formats import read_trace
from stepwell.replay.trace import Trace

SYSTEM = {"role": "system", "content": "You are terse. " * 100}
ASK = {"role": "user", "content": "How deep is a stepwell? " * 40}
SAID = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "measure"}}]}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), "max_tokens": 9, **more}


def read(tmp_path: Path, *lines: object) -> Trace:
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_trace(path)


def test_a_longer_conversation_begins_with_the_blocks_of_the_shorter(tmp_path: Path) -> None:
    (found,) = read(tmp_path, chat(SYSTEM, ASK), chat(SYSTEM, ASK, SAID, ASK)).conversations
    one, two = found.streams[0].turns
    size = len("system\n") + len(SYSTEM["content"]) + 1 + len("user\n") + len(ASK["content"])
    assert one.prompt == -(-size // 4)
    assert one.ids().tolist() == two.ids().tolist()[: one.blocks]
    assert one.blocks == size // 256
    assert one.output == 9


def test_prompts_share_as_far_as_their_text_does(tmp_path: Path) -> None:
    other = {"role": "user", "content": "Something else. " * 40}
    turns = [c.streams[0].turns[0] for c in read(tmp_path, chat(SYSTEM, ASK), chat(SYSTEM, other)).conversations]
    same = [a == b for a, b in zip(turns[0].ids().tolist(), turns[1].ids().tolist(), strict=False)]
    assert same[: len(SYSTEM["content"]) // 256] == [True] * (len(SYSTEM["content"]) // 256)
    assert not any(same[len(SYSTEM["content"]) // 256 + 1 :])


def test_sessions_are_conversations_whatever_their_text(tmp_path: Path) -> None:
    lines = [chat(SYSTEM, ASK, session_id=name) for name in ("a", "b", "a")]
    assert [(c.id, c.requests) for c in read(tmp_path, *lines).conversations] == [("a", 2), ("b", 1)]


def test_timestamps_make_an_open_loop_that_shares_across_sessions(tmp_path: Path) -> None:
    lines = [chat(SYSTEM, ASK, user=f"u{i}", timestamp=5000 - 1000 * i) for i in range(3)]
    trace = read(tmp_path, *lines)
    assert trace.open_loop
    (found,) = trace.conversations
    assert [stream.start for stream in found.streams] == [0.0, 1.0, 2.0]
    assert len({stream.turns[0].runs for stream in found.streams}) == 1


def test_token_ids_and_batch_lines(tmp_path: Path) -> None:
    body = {"model": "m", "prompt": list(range(200))}
    batch = {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": body, "output_tokens": 77}
    (found,) = read(tmp_path, body, batch).conversations
    bare, batched = found.streams[0].turns
    assert (bare.prompt, bare.blocks) == (200, 3)
    assert (batched.runs, batched.output) == (bare.runs, 77)
    assert json.loads(batched.body or b"") == body


def test_what_is_written_holds_no_text(tmp_path: Path) -> None:
    write_trace(read(tmp_path, chat(SYSTEM, ASK)), tmp_path / "out.jsonl")
    assert "stepwell" not in (tmp_path / "out.jsonl").read_text().replace("stepwell_trace", "")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"prompt": ["a", "b"]}], "`prompt`"),
        ([{"prompt": [-1]}], "`prompt`"),
        ([{"messages": []}], "`messages`"),
        ([{"body": 3}], "expected a JSON object"),
        ([chat(ASK, max_tokens="9")], "`max_tokens`"),
        ([chat(ASK, timestamp=0), chat(ASK)], "either every line"),
        ([chat(ASK), {"timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [1]}], "split it"),
    ],
)
def test_bad_lines_are_refused_with_their_place(tmp_path: Path, lines: list[object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read(tmp_path, *lines)
    assert f"line {len(lines)}" in str(error.value)
