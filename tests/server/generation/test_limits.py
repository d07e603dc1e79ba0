"""Calls that take too long, at every stage: each hears so, and leaves nothing behind."""

from __future__ import annotations

import json
import logging
import socket

import httpx
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.generation.answers import Patience
from stepwell.server.http.parts import Limits
from tests.engine.scripted import SLOW
from tests.server.harness import Running, eventually, running


def error_of(server: Running, stream: bool, prompt: list[int]) -> tuple[int | None, dict[str, object], httpx.Headers]:
    """Status (None: inside a stream), error and headers of a call that must fail."""
    body = {"prompt": prompt, "max_tokens": 4000, "stream": stream}
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=60)
    if answer.status_code != 200:
        return answer.status_code, answer.json()["error"], answer.headers
    lines = [line for line in answer.text.split("\n\n") if line]
    assert lines[-1] == "data: [DONE]"
    return None, json.loads(lines[-2].removeprefix("data: "))["error"], answer.headers


@pytest.mark.parametrize("stream", [False, True])
def test_call_that_takes_too_long_is_ended(tokenizer: Tokenizer, stream: bool) -> None:
    with running(tokenizer, patience=Patience(whole=0.3)) as server:
        status, error, _ = error_of(server, stream, [SLOW, 40])
        assert status == (None if stream else 408)
        assert error["code"] == "timeout" and "--request-timeout" in str(error["message"])
        assert eventually(lambda: server.client.open == 0 and not server.loop.busy)
        assert httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 1}).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_call_that_waits_too_long_is_sent_away_with_a_time_to_come_back(tokenizer: Tokenizer, stream: bool) -> None:
    with running(tokenizer, patience=Patience(queued=0.3)) as server:
        server.loop.gate.clear()
        status, error, headers = error_of(server, stream, [5])
        assert status == (None if stream else 503) and error["code"] == "queue_timeout"
        assert stream or int(headers["retry-after"]) > 0
        assert eventually(lambda: server.client.waiting == 0 and not server.loop.waiting)


def test_call_that_was_admitted_in_time_may_take_its_time(tokenizer: Tokenizer) -> None:
    with running(tokenizer, patience=Patience(queued=0.3)) as server:
        body = {"prompt": [SLOW, 40], "max_tokens": 60}
        assert httpx.post(server.url + "/v1/completions", json=body, timeout=60).status_code == 200


def test_body_that_does_not_come_is_answered_and_the_connection_closed(tokenizer: Tokenizer) -> None:
    with running(tokenizer, Limits(body_seconds=0.2)) as server:
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as caller:
            caller.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"prompt"')
            heard = b""
            while part := caller.recv(4096):
                heard += part
        assert heard.startswith(b"HTTP/1.1 408") and b"body_timeout" in heard


def test_caller_who_leaves_in_the_middle_of_its_body_is_no_fault_of_the_server(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    with running(tokenizer) as server, caplog.at_level(logging.DEBUG):
        host, port = server.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=60) as caller:
            caller.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{"prompt"')
        assert eventually(lambda: "POST /v1/completions" in caplog.text)
        assert 'http_errors_total{status="499"} 1.0' in httpx.get(server.url + "/metrics").text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_full_queue_tells_when_to_come_back(tokenizer: Tokenizer) -> None:
    with running(tokenizer, Limits(queue=1)) as server:
        server.loop.gate.clear()
        url = server.url + "/v1/completions"
        with httpx.stream("POST", url, json={"prompt": "x", "stream": True}, timeout=60):
            assert eventually(lambda: server.client.waiting == 1)
            refused = httpx.post(url, json={"prompt": "y"})
        assert refused.status_code == 503 and 1 <= int(refused.headers["retry-after"]) <= 60
