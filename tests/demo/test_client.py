from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from openai import OpenAI
from rich.progress import Progress

from stepwell.base.errors import StepwellError
from stepwell.demo.__main__ import converse
from stepwell.demo.client import ask, call
from stepwell.demo.script import speaking_order, write_scripts

USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 2,
    "total_tokens": 102,
    "prompt_tokens_details": {"cached_tokens": 96, "device_tokens": 32, "host_tokens": 64, "disk_tokens": 0},
}


class FakeServer:
    """Answers every chat request with the length of its last message; keeps the requests."""

    def __init__(self, usage: dict[str, Any] | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        self._usage = usage

    def client(self) -> OpenAI:
        transport = httpx.MockTransport(self._answer)
        return OpenAI(base_url="http://test/v1", api_key="none", http_client=httpx.Client(transport=transport))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.requests.append(body)
        said = str(len(body["messages"][-1]["content"]))
        choices: list[dict[str, Any]] = [
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None},
            {"index": 0, "delta": {"content": said[:1]}, "finish_reason": None},
            {"index": 0, "delta": {"content": said[1:]}, "finish_reason": "length"},
        ]
        head = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "tiny"}
        chunks = [head | {"choices": [choice]} for choice in choices]
        if self._usage:
            chunks.append(head | {"choices": [], "usage": self._usage})
        text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, text=text)


def test_answer_carries_text_and_tokens_by_tier() -> None:
    answer = ask(FakeServer(USAGE).client(), "tiny", [{"role": "user", "content": "x" * 42}], cold=False)
    assert (answer.text, answer.finish, answer.generated) == ("42", "length", 2)
    assert (answer.prompt, answer.device, answer.host, answer.disk) == (100, 32, 64, 0)
    assert (answer.cached, answer.recomputed) == (96, 4)
    assert answer.ttft > 0


def test_cold_request_neither_reads_nor_writes_the_cache() -> None:
    server = FakeServer(USAGE)
    for cold in (True, False):
        ask(server.client(), "tiny", [{"role": "user", "content": "hello"}], cold=cold)
    cold, warm = server.requests
    assert (cold["read_cache"], cold["write_cache"]) == (False, False)
    assert "read_cache" not in warm
    assert cold["temperature"] == warm["temperature"] == 0


def test_answer_without_usage_is_an_error() -> None:
    with pytest.raises(StepwellError, match="usage"):
        ask(FakeServer(None).client(), "tiny", [{"role": "user", "content": "hello"}], cold=False)


def test_each_turn_is_asked_twice_with_the_answers_so_far() -> None:
    server = FakeServer(USAGE)
    order = list(speaking_order(2, 2))
    rows = converse(server.client(), "tiny", write_scripts(2, 2), order, Progress(disable=True))
    assert [row.turn for row in rows] == order
    assert all(row.identical for row in rows)
    served, cold = server.requests[:4], server.requests[4:]
    assert [request["messages"] for request in served] == [request["messages"] for request in cold]
    assert [message["role"] for message in served[3]["messages"]] == ["system", "user", "assistant", "user"]
    assert served[3]["messages"][2]["content"] == rows[0].served.text


def test_a_call_of_a_tool_is_shown_as_one() -> None:
    function = {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }

    def client(message: dict[str, Any]) -> OpenAI:
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        body = {"id": "1", "object": "chat.completion", "created": 0, "model": "tiny", "choices": [choice]}
        transport = httpx.MockTransport(lambda request: httpx.Response(200, json=body))
        return OpenAI(base_url="http://test/v1", api_key="none", http_client=httpx.Client(transport=transport))

    assert call(client(message), "tiny", "Weather?", []) == 'get_weather({"city": "Paris"})'
    assert call(client({"role": "assistant", "content": "Sunny."}), "tiny", "Weather?", []) == "Sunny."
