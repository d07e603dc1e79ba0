"""Pins and prefetches over HTTP, before the real scheduler and cache."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from stepwell.engine.process.messages import Stats
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.loop import EngineLoop
from stepwell.server.http.keys import Keys
from stepwell.server.observe.metrics import Metrics
from tests.server.harness import Running, eventually, running
from tests.server.http.test_gate import KEY, MINE, OTHER, THEIRS
from tests.server.routes.test_conversation import real_loop

PROMPT = [(7 * j) % 101 for j in range(60)]
BODY: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture
def loop() -> EngineLoop:
    return real_loop()


@pytest.fixture
def served(tokenizer: Tokenizer, loop: EngineLoop) -> Iterator[Running]:
    with running(tokenizer, loop=loop, keys=Keys([KEY, OTHER], salt_per_key=True)) as server:
        yield server


def post(server: Running, path: str, body: dict[str, Any], headers: dict[str, str] = MINE) -> Any:
    answer = httpx.post(server.url + path, json=body, headers=headers, timeout=20)
    assert answer.status_code == 200, answer.text
    return answer.json()


def crowd(server: Running, first: int = 0) -> None:
    """Other prompts, enough to fill the device; each comes once the engine rests, with all copied to host that can be.
    Else a request that needs room at once may take the pages of a pin, which are clean, before others that are not."""
    for seed in range(first, first + 8):
        post(
            server,
            "/v1/completions",
            {**BODY, "prompt": [(seed * 11 + 3 * j) % 97 for j in range(60)]},
        )
        assert eventually(lambda: not server.loop.busy)


def cached(server: Running, **fields: Any) -> dict[str, int]:
    answer = post(server, "/v1/completions", {**BODY, "max_tokens": 1, **fields})
    details: dict[str, int] = answer["usage"]["prompt_tokens_details"]
    return details


def test_a_pinned_prompt_stays_on_the_device(served: Running) -> None:
    post(served, "/v1/completions", BODY)
    pinned = post(served, "/cache/pin", {"prompt": PROMPT, "ttl_s": 600})
    assert pinned["pinned_tokens"] == 56 and 595 < pinned["until"] - time.time() < 605
    crowd(served)
    assert cached(served)["device_tokens"] == 56
    assert post(served, "/cache/unpin", {"prompt": PROMPT}) == {"unpinned_tokens": 56}
    crowd(served, 20)
    assert cached(served)["device_tokens"] < 56


def test_a_prefetch_is_answered_once_it_is_there(served: Running) -> None:
    post(served, "/v1/completions", BODY)
    crowd(served)
    told = post(served, "/cache/prefetch", {"prompt": PROMPT})
    assert told["status"] == "loaded" and told["tokens"] == told["device"] + told["host"] == 56 and told["host"]
    assert cached(served)["device_tokens"] == 56
    assert post(served, "/cache/prefetch", {"prompt": PROMPT})["status"] == "resident"
    assert post(served, "/cache/prefetch", {"prompt": [5, 4, 3]})["status"] == "unknown"


def test_messages_name_the_prompt_of_a_chat(served: Running) -> None:
    messages = [{"role": "user", "content": "a long and winding road that leads to the same door " * 2}]
    post(served, "/v1/chat/completions", {"messages": messages, "max_tokens": 8})
    assert post(served, "/cache/pin", {"messages": messages})["pinned_tokens"] > 0
    assert eventually(lambda: served.client.stats.pages["device"]["pinned"] > 0)
    assert post(served, "/cache/unpin", {"messages": messages})["unpinned_tokens"] > 0


def test_hints_reach_no_other_key(served: Running) -> None:
    post(served, "/v1/completions", BODY, THEIRS)
    assert post(served, "/cache/prefetch", {"prompt": PROMPT}, MINE)["status"] == "unknown"
    assert post(served, "/cache/pin", {"prompt": PROMPT}, MINE) == {"pinned_tokens": 0, "until": None}
    assert httpx.post(f"{served.url}/cache/pin", json={"prompt": PROMPT}).status_code == 401


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("pin", {}, "prompt"),
        ("pin", {"prompt": [1], "messages": [{"role": "user", "content": "x"}]}, "prompt"),
        ("pin", {"prompt": [1], "ttl_s": 0}, "ttl_s"),
        ("pin", {"prompt": [1], "ttl_s": 1e9}, "ttl_s"),
        ("pin", {"prompt": [[1], [2]]}, "prompt"),
        ("pin", {"prompt": ""}, "prompt"),
        ("prefetch", {"messages": []}, "messages"),
        ("prefetch", {"prompt": [10**6]}, "prompt"),
        ("unpin", {}, "prompt"),
    ],
)
def test_what_is_wrong_is_named(server: Running, path: str, body: dict[str, Any], field: str) -> None:
    answer = httpx.post(f"{server.url}/cache/{path}", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == field


def test_counts_are_shown_from_the_start() -> None:
    metrics = Metrics()
    metrics.watch(Stats, lambda: True)
    text = metrics.render().decode()
    assert (
        'stepwell_prefetches_total{status="no_room"} 0.0' in text
        and 'stepwell_pages{state="pinned",tier="host"} 0.0' in text
    )
    assert "stepwell_pins 0.0" in text and "stepwell_prefetched_tokens_total 0.0" in text
