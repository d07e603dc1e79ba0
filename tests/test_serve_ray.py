"""Replicas on Ray Serve. What needs no cluster is told first; the rest runs one, where Ray is installed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="stepwell.serve_ray needs ray[serve]: pip install 'stepwell[ray]'")

import httpx
import ray
from ray import serve

from stepwell.base.errors import ConfigError
from stepwell.cache.moves import Tier
from stepwell.fleet.router import Router
from stepwell.sched.outlook import Outlook
from stepwell.serve_ray import Call, Nearest, StoredResponses, build, outlook_in, session_of

MODEL = Path(__file__).resolve().parents[1] / "tiny" / "model"
CHAT = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}]


def body(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def test_a_session_is_what_the_call_names_and_else_how_its_prompt_begins() -> None:
    assert session_of({"x-session-id": "h"}, body(user="b")) == session_of({}, body(user="h"))
    assert session_of({}, body(prompt_cache_key="k", user="b")) == session_of({}, body(user="k"))
    assert session_of({}, body(metadata={"user_id": "claude"}, messages=CHAT)) == session_of({}, body(user="claude"))
    assert session_of({}, body(user="b")) != session_of({}, body(user="k"))
    assert len(session_of({}, body(user="b" * 100_000))) == len(session_of({}, body(user="b"))), "a table may hold it"
    later = [*CHAT, {"role": "assistant", "content": "two"}, {"role": "user", "content": "three"}]
    assert session_of({}, body(messages=CHAT)) == session_of({}, body(messages=later)) != ""
    assert session_of({}, body(messages=CHAT)) != session_of({}, body(messages=CHAT[1:]))
    for nothing in (b"", b"{", b"[]", body(), body(messages=[])):
        assert session_of({}, nothing) == ""


def test_a_query_does_not_hide_that_a_call_generates() -> None:
    assert Call("POST", "/v1/messages?beta=true", (), b"", "").generates
    assert not Call("POST", "/v1/batches", (), b"", "").generates


def test_what_is_no_outlook_is_not_taken_for_one() -> None:
    told = {"tokens": 9, "boundary": 4, "tier": "host", "load_s": 0.5, "prefill_s": 1, "queue_s": 0, "requests": 2}
    assert outlook_in(told) == Outlook(9, 4, Tier.HOST, 0.5, 1.0, 0.0, 2)
    wrong = ({"boundary": 10}, {"tier": "moon"}, {"load_s": -1}, {"queue_s": float("nan")}, {"tokens": None})
    for change in wrong:
        with pytest.raises((KeyError, ValueError, TypeError)):
            outlook_in({**told, **change})


def test_a_stored_response_leads_to_its_session() -> None:
    stored = StoredResponses(most=2)
    stored.note("resp_1", "here")
    assert stored.session_of("/v1/responses", body(previous_response_id="resp_1")) == "here"
    assert stored.session_of("/v1/responses/resp_1?include=all", b"") == "here"
    for path, sent in (
        ("/v1/responses", body(previous_response_id=["resp_1"])),
        ("/v1/responses", b'{"previous_response_id'),
        ("/v1/responses", body(input="resp_1")),
        ("/v1/responses/resp_2", b""),
        ("/v1/models", b""),
    ):
        assert stored.session_of(path, sent) == ""
    for name in ("resp_2", "resp_3", "x" * 10, "resp_" + "x" * 100):
        stored.note(name, "there")
    assert stored.session_of("/v1/responses/resp_1", b"") == "" and stored.session_of("/v1/responses/resp_3", b"")


class Asked(Nearest):
    """Asks replicas that are not there: `late` never answer. `texts` counts by replica what it was sent."""

    def __init__(self, late: set[str]) -> None:
        self._router, self._ask_s, self.late, self.texts = Router(), 0.3, late, {}

    async def _outlook(self, url: str, path: str, headers: Any, sent: bytes, ends: float) -> Any:
        self.texts[url] = sent
        if url in self.late:
            await asyncio.sleep(ends - asyncio.get_running_loop().time())
            return None
        return Outlook(9, 4, Tier.HOST, 0.5, 1.0, 0.0, 2), [1, 2, 3]


@pytest.mark.parametrize("late", [set(), {"a"}, {"b"}, {"a", "b", "c"}])
def test_a_replica_that_hangs_costs_a_call_its_own_expectation_alone(late: set[str]) -> None:
    nearest = Asked(late)
    call = Call("POST", "/v1/chat/completions", (), b"the text", "s")
    told, asked = asyncio.run(nearest._ask(call, ["a", "b", "c"], {name: name for name in "abc"}))
    assert set(told) == set("abc") - late and asked == ["a", "b", "c"]
    assert nearest.texts["a"] == b"the text"
    assert nearest.texts["b"] == (b"the text" if "a" in late else b'{"prompt":[1,2,3]}')


def test_an_unknown_argument_is_told() -> None:
    with pytest.raises(ConfigError, match="replica_count"):
        build({"model": "m", "replica_count": 3})


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Two replicas on this machine."""
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(http_options={"port": 8417})
    flags = "--device-memory 64MiB --host-memory 0 --max-model-len 4096"
    serve.run(build({"model": str(MODEL), "replicas": 2, "cpus": 0.5, "ask_ms": 2000, "flags": flags}))
    yield "http://127.0.0.1:8417"
    serve.shutdown()
    ray.shutdown()


def ask(url: str, said: str, **fields: Any) -> dict[str, Any]:
    sent = {"messages": [{"role": "user", "content": said}], "max_tokens": 4, "temperature": 0, **fields}
    answer = httpx.post(f"{url}/v1/chat/completions", json=sent, timeout=120)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


@pytest.mark.long
def test_a_conversation_stays_where_its_cache_is_and_a_death_costs_open_streams_alone(url: str) -> None:
    text = "a long and winding road " * 40
    cold = ask(url, text)
    warm = [ask(url, text + "and on") for _ in range(4)]
    assert all(one["usage"]["prompt_tokens_details"]["cached_tokens"] > 0 for one in warm), "none went elsewhere"
    sent = {"messages": [{"role": "user", "content": text}], "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=sent, timeout=120) as stream:
        lines = (line for line in stream.iter_lines() if line)
        assert next(lines).startswith("data: ")
        os.kill(int(stream.headers["x-stepwell-replica"].rpartition(":")[2]), signal.SIGKILL)
        last = list(lines)[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "replica_died"
    assert ask(url, text)["choices"] == cold["choices"], "the other replica answers"
    end = time.monotonic() + 240
    while time.monotonic() < end and _running() < 2:
        time.sleep(1)
    assert _running() == 2, "Ray has started another"


def _running() -> int:
    return serve.status().applications["default"].deployments["stepwell"].replica_states.get("RUNNING", 0)
