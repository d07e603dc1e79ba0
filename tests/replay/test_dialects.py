"""Captured bodies of three APIs: the same conversation is the same prompt, whichever API it came by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.replay.dialects import Dialect, dialect_of, speaks, usage_in
from stepwell.replay.formats import read_trace
from stepwell.replay.trace import Trace
from tests.agents.bodies import PROGRAMS, sent_by

SYSTEM, ASK, SAID = "You are terse. " * 100, "How deep is a stepwell? " * 40, "It goes down. " * 30
RESULT = "thirteen storeys " * 40


def chat() -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "read", "arguments": {"path": "/x"}}}
    return {
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": ASK},
            {"role": "assistant", "content": SAID, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": RESULT},
        ]
    }


def messages() -> dict[str, Any]:
    use = {"type": "tool_use", "id": "c", "name": "read", "input": {"path": "/x"}}
    return {
        "system": [{"type": "text", "text": SYSTEM}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": ASK}]},
            {"role": "assistant", "content": [{"type": "text", "text": SAID}, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": RESULT}]},
        ],
        "max_tokens": 9,
    }


def responses() -> dict[str, Any]:
    return {
        "instructions": SYSTEM,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": ASK}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": SAID}]},
            {"type": "function_call", "call_id": "c", "name": "read", "arguments": {"path": "/x"}},
            {"type": "function_call_output", "call_id": "c", "output": RESULT},
        ],
        "max_output_tokens": 11,
    }


def read(tmp_path: Path, *lines: object) -> Trace:
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_trace(path)


def test_one_conversation_is_one_prompt_in_every_api(tmp_path: Path) -> None:
    turns = [
        turn
        for c in read(tmp_path, chat(), messages(), responses()).conversations
        for s in c.streams
        for turn in s.turns
    ]
    assert len({turn.runs for turn in turns}) == 1 and len({turn.prompt for turn in turns}) == 1
    assert [turn.output for turn in turns] == [256, 9, 11]
    assert turns[0].prompt * 4 > len(SYSTEM + ASK + SAID + RESULT), "nothing is lost, the system text least of all"


def test_what_changes_with_every_call_is_left_out_as_the_server_does(tmp_path: Path) -> None:
    def billed(number: int) -> dict[str, Any]:
        head = {"type": "text", "text": f"x-anthropic-billing-header: cch={number}"}
        return messages() | {"system": [head, {"type": "text", "text": SYSTEM}], "metadata": {"user_id": "u"}}

    (found,) = read(tmp_path, billed(1), billed(2)).conversations
    assert found.id == "u"
    assert len({turn.runs for turn in found.streams[0].turns}) == 1


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_real_agents_sent_is_read_and_each_step_goes_on_from_the_last(tmp_path: Path, program: str) -> None:
    bodies = [call.body for call in sent_by(program) if call.kind == "main" and call.body is not None]
    trace = read(tmp_path, *bodies)
    turns = [turn for c in trace.conversations for s in c.streams for turn in s.turns]
    assert len(turns) == len(bodies)
    assert all(turn.prompt > 100 for turn in turns)


@pytest.mark.parametrize(
    ("body", "dialect"),
    [
        ({"prompt": "x"}, Dialect.COMPLETIONS),
        ({"messages": [{"role": "user", "content": "x"}]}, Dialect.CHATS),
        ({"messages": [], "tools": [{"name": "f", "input_schema": {}}]}, Dialect.MESSAGES),
        ({"messages": [{"content": [{"type": "tool_result"}]}]}, Dialect.MESSAGES),
        ({"messages": [{"content": [{"type": "image_url"}]}], "tools": [{"function": {}}]}, Dialect.CHATS),
        ({"input": "x"}, Dialect.RESPONSES),
        ({"messages": 7, "tools": "x"}, Dialect.CHATS),
        ({"timestamp": 0, "hash_ids": []}, None),
    ],
)
def test_a_body_tells_its_api(body: dict[str, Any], dialect: Dialect | None) -> None:
    assert dialect_of(body) is dialect


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({"input": "x", "previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [3]}, r"input\.0"),
        ({"input": None}, "input"),
        ({"system": 3, "messages": [{"role": "user", "content": "x"}]}, "system"),
        ({"system": "s", "messages": [{"role": "nobody", "content": "x"}]}, r"messages\.0\.role"),
    ],
)
def test_faults_are_named_with_their_line(tmp_path: Path, line: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        read(tmp_path, chat(), line)
    assert "line 2" in str(error.value)


def test_events_tell_when_an_answer_begins_and_what_it_took() -> None:
    usage = {"input_tokens": 3, "cache_read_input_tokens": 7, "output_tokens": 5}
    assert speaks(Dialect.MESSAGES, {"type": "content_block_delta"}) and not speaks(Dialect.MESSAGES, {"type": "ping"})
    assert usage_in(Dialect.MESSAGES, {"type": "message_start", "message": {"usage": usage}}) is None
    told = {"prompt_tokens": 10, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 7}}
    assert usage_in(Dialect.MESSAGES, {"type": "message_delta", "usage": usage}) == told
    details = {"cached_tokens": 7, "device_tokens": 7, "host_tokens": 0, "disk_tokens": 0}
    ended = {"input_tokens": 10, "input_tokens_details": details, "output_tokens": 5}
    assert usage_in(Dialect.RESPONSES, {"response": {"usage": ended}}) == {**told, "prompt_tokens_details": details}
    assert usage_in(Dialect.RESPONSES, {"type": "response.created", "response": {"usage": None}}) is None
    assert speaks(Dialect.RESPONSES, {"type": "response.reasoning_text.delta"})
    assert not speaks(Dialect.CHATS, {"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    assert speaks(Dialect.CHATS, {"choices": [{"delta": {"tool_calls": [{}]}}]})
    assert speaks(Dialect.COMPLETIONS, {"choices": [{"text": "x"}]})
