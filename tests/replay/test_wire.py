"""What is sent to a server, and what is read from its answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from stepwell.replay.lanes import TraceRequest
from stepwell.replay.trace import Conversation, Stream, Turn
from stepwell.replay.wire import Server, Usage, call_of, usage_of


def request(body: dict[str, Any] | None = None) -> TraceRequest:
    turn = Turn(0.0, 4, 7, 0.0, (), None if body is None else json.dumps(body).encode())
    return TraceRequest(0.0, 0, 0, Conversation("a", 64, (Stream(0.0, (turn,)),)), 0, 0)


def test_tokens_are_sent_as_a_completion_of_the_recorded_length() -> None:
    dialect, body = call_of(request(), np.arange(4, dtype=np.int32), "m", Server("http://x"))
    assert dialect.value == "/completions"
    assert (body["prompt"], body["max_tokens"], body["ignore_eos"]) == ([0, 1, 2, 3], 7, True)
    assert body["stream_options"] == {"include_usage": True}


def test_a_logged_request_keeps_its_fields_and_is_streamed() -> None:
    logged = {
        "model": "theirs",
        "messages": [{"role": "user", "content": "x"}],
        "max_completion_tokens": 99,
        "top_k": 3,
    }
    dialect, body = call_of(request(logged), np.empty(0, np.int32), "m", Server("http://x", ignore_eos=False))
    assert dialect.value == "/chat/completions"
    assert (body["messages"], body["top_k"], body["model"]) == (logged["messages"], 3, "m")
    assert (body["max_completion_tokens"], body["stream"]) == (7, True)
    assert not {"ignore_eos", "max_tokens", "prompt"} & set(body)


@pytest.mark.parametrize(
    ("details", "usage"),
    [
        ({"cached_tokens": 8, "device_tokens": 5, "host_tokens": 2, "disk_tokens": 1}, Usage(10, 3, 5, 2, 1, True)),
        ({"cached_tokens": 8}, Usage(10, 3, 8, 0, 0, False)),
        ({"cached_tokens": None}, Usage(10, 3, 0, 0, 0, False)),
        (None, Usage(10, 3, 0, 0, 0, False)),
    ],
)
def test_usage_is_read_whether_or_not_it_tells_tiers(details: dict[str, Any] | None, usage: Usage) -> None:
    found = usage_of({"prompt_tokens": 10, "completion_tokens": 3, "prompt_tokens_details": details})
    assert found == usage
    assert found is not None
    assert found.recomputed == 10 - usage.device - usage.host - usage.disk


def test_no_usage_is_none_and_urls_may_end_in_v1() -> None:
    assert usage_of(None) is None
    assert {Server(url).base for url in ("http://x", "http://x/", "http://x/v1", "http://x/v1/")} == {"http://x"}


@pytest.mark.parametrize(
    ("logged", "path", "limit"),
    [
        ({"system": "s", "messages": [], "max_tokens": 9}, "/messages", "max_tokens"),
        ({"input": [], "model": "x"}, "/responses", "max_output_tokens"),
    ],
)
def test_other_apis_are_sent_their_own_fields(logged: dict[str, Any], path: str, limit: str) -> None:
    dialect, body = call_of(request(logged), np.empty(0, np.int32), "m", Server("http://x"))
    assert dialect.value == path and body[limit] == 7 and body["stream"] and "stream_options" not in body
