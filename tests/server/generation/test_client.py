"""Callers who leave, and engines that die: nothing is left behind, and everyone hears of it."""

from __future__ import annotations

import gc
import socket
import threading

import httpx
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from tests.engine.scripted import RAISES, SLOW
from tests.server.harness import Running, eventually, running


def leave_after(server: Running, body: bytes, read: int, queued: int = 0) -> None:
    """Send a call, read at least `read` bytes of its answer, and hang up; not before the engine has `queued` sequences."""
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as caller:
        caller.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        received = 0
        while received < read:
            received += len(caller.recv(4096))
        if not read:  # else he would be gone before the engine has heard of him
            assert eventually(lambda: server.loop.busy and len(server.loop.waiting) >= queued)


@pytest.mark.parametrize("stream", [b"false", b"true"])
@pytest.mark.parametrize("n", [1, 3])
def test_caller_who_leaves_while_queued_aborts_all_sequences(server: Running, stream: bytes, n: int) -> None:
    server.loop.aborted.clear()
    server.loop.gate.clear()
    leave_after(server, b'{"prompt": "x", "n": %d, "stream": %b}' % (n, stream), 0, queued=n)
    assert eventually(lambda: len(server.loop.aborted) == n)
    server.loop.gate.set()
    assert eventually(lambda: not server.loop.busy)
    assert server.client.open == server.client.waiting == 0


@pytest.mark.parametrize("stream", [b"false", b"true"])
def test_caller_who_leaves_while_tokens_come_aborts(server: Running, stream: bytes) -> None:
    server.loop.aborted.clear()
    body = b'{"prompt": [%d, 40], "max_tokens": 4000, "stream": %b}' % (SLOW, stream)
    leave_after(server, body, 600 if stream == b"true" else 0)
    assert eventually(lambda: len(server.loop.aborted) == 1 and not server.loop.busy)
    assert server.client.open == 0


def test_slow_reader_holds_up_nobody_and_gets_everything(server: Running) -> None:
    body = {"prompt": "abc", "max_tokens": 3000, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=20) as slow:
        assert httpx.post(server.url + "/v1/completions", json={"prompt": "x", "max_tokens": 50}).status_code == 200
        text = "".join(part for part in slow.iter_text())
    assert text.endswith("data: [DONE]\n\n")


def test_dead_engine_ends_open_calls_at_once_and_refuses_new_ones(tokenizer: Tokenizer) -> None:
    with running(tokenizer) as server:
        url = server.url + "/v1/completions"
        answers: list[httpx.Response] = []

        def call() -> None:
            answers.append(httpx.post(url, json={"prompt": [SLOW, 5], "max_tokens": 4000}, timeout=20))

        whole = threading.Thread(target=call)
        whole.start()
        with httpx.stream("POST", url, json={"prompt": [SLOW, 5], "stream": True}, timeout=20) as stream:
            lines = stream.iter_lines()
            next(lines)
            assert eventually(lambda: server.client.open == 2)
            poison = httpx.post(url, json={"prompt": [RAISES]}, timeout=20)
            rest = [line for line in lines if line]
        whole.join(20)
        assert poison.status_code == answers[0].status_code == 503
        assert "the script says so" in poison.json()["error"]["message"]
        assert "the script says so" in rest[-2] and rest[-1] == "data: [DONE]"
        health = httpx.get(server.url + "/health")
        assert health.status_code == 503 and "the script says so" in health.json()["error"]["message"]
        assert httpx.post(url, json={"prompt": "x"}).status_code == 503
        assert "stepwell_engine_up 0.0" in httpx.get(server.url + "/metrics").text
        assert server.client.open == 0


def test_message_that_cannot_be_read_ends_every_call_instead_of_leaving_it_without_an_answer(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tokenizer) as server:
        monkeypatch.setattr("stepwell.engine.process.serving.stats_message", lambda stats: "no statistics")
        for _ in range(2):
            answer = httpx.post(
                server.url + "/v1/completions", json={"prompt": [SLOW, 5], "max_tokens": 400}, timeout=20
            )
            assert answer.status_code == 503 and answer.json()["error"]["code"] == "engine_dead"
            assert "cannot be read" in answer.text


def test_refusals_do_not_add_to_one_another(tokenizer: Tokenizer) -> None:
    with running(tokenizer) as server:
        server.client.lose("the engine hangs", "engine_hung")
        for _ in range(3):
            refused = httpx.post(server.url + "/v1/completions", json={"prompt": [5]})
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "engine_hung"
        trouble = server.client.trouble
        assert trouble is not None and trouble.__traceback__ is None, "what each refusal went through would be kept"


def test_a_call_leaves_nothing_that_only_the_collector_can_free(tokenizer: Tokenizer) -> None:
    with running(tokenizer) as server:
        leave_after(server, b'{"prompt": "x", "stream": true, "max_tokens": 2000}', 300)
        assert eventually(lambda: server.client.open == 0)
        gc.collect()
        gc.disable()
        try:
            for stream in (False, True) * 5:
                body = {"prompt": [5, 6], "max_tokens": 4, "stream": stream}
                assert httpx.post(server.url + "/v1/completions", json=body).status_code == 200
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            left = [kind for kind in map(type, gc.garbage) if kind.__name__ == "RequestResponseCycle"]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    assert not left
