"""Questions to the cache, and its emptying, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.keys import Keys
from tests.server.harness import Running, eventually, running
from tests.server.http.test_gate import KEY, MINE, OTHER, THEIRS
from tests.server.routes.test_conversation import real_loop

TEXT = "a long and winding road that leads to the same door every time it is walked "
BODY: dict[str, Any] = {"prompt": TEXT, "max_tokens": 2}


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Running]:
    """The real scheduler and cache behind a server with two keys."""
    keys = Keys([KEY, OTHER], salt_per_key=True)
    with running(tokenizer, loop=real_loop(), keys=keys, allow_reset=True) as server:
        yield server


def ask(server: Running, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> Any:
    answer = httpx.post(server.url + path, json=body, headers=headers or MINE)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_plan_is_told_as_the_admission_then_is(served: Running) -> None:
    ask(served, "/v1/completions", BODY)
    (told,) = ask(served, "/cache/explain", {**BODY, "prompt": TEXT + "and once more"})["prompts"]
    again = ask(served, "/v1/completions", {**BODY, "prompt": TEXT + "and once more"})
    usage = again["usage"]
    assert told["tokens"] == usage["prompt_tokens"]
    assert told["outcome"]["device"] == usage["prompt_tokens_details"]["cached_tokens"] == told["hit"] > 0
    assert told["starts"][0]["boundary"] == told["hit"] and told["rungs"]
    assert told["waits_for"] is None
    assert sum(told["outcome"]["lost_to"].values()) == told["outcome"]["recomputed"]


def test_body_is_that_of_the_call_that_is_meant(served: Running) -> None:
    messages = [{"role": "user", "content": TEXT}]
    (told,) = ask(served, "/cache/explain", {"messages": messages})["prompts"]
    assert (
        told["tokens"]
        == ask(served, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})["usage"]["prompt_tokens"]
    )
    assert len(ask(served, "/cache/explain", {"prompt": ["one", [5, 6]]})["prompts"]) == 2
    cold = ask(served, "/cache/explain", {"messages": messages, "read_cache": False})["prompts"][0]
    assert cold["outcome"]["boundary"] == 0


@pytest.mark.parametrize("body", [{}, {"prompt": "x", "messages": []}, {"prompt": ""}, {"messages": []}])
def test_a_question_about_nothing_is_refused(served: Running, body: dict[str, Any]) -> None:
    assert httpx.post(served.url + "/cache/explain", json=body, headers=MINE).status_code == 400


def test_a_key_sees_and_empties_its_own_cache_alone(served: Running) -> None:
    for headers in (MINE, THEIRS):
        ask(served, "/v1/completions", BODY, headers)
    freed = ask(served, "/cache/reset", {}, MINE)["freed_pages"]
    assert freed["device"] > 0
    mine, theirs = (ask(served, "/cache/explain", BODY, h)["prompts"][0]["kv_in_all_tiers"] for h in (MINE, THEIRS))
    assert mine == 0 < theirs


def test_emptying_under_load_breaks_no_answer(served: Running) -> None:
    cold = ask(served, "/v1/completions", {**BODY, "read_cache": False, "write_cache": False, "max_tokens": 40})
    body = {**BODY, "max_tokens": 40, "stream": True}
    with httpx.stream("POST", served.url + "/v1/completions", json=body, headers=MINE, timeout=20) as stream:
        lines = stream.iter_lines()
        next(lines)
        ask(served, "/cache/reset", {}, MINE)
        list(lines)
    again = ask(served, "/v1/completions", {**BODY, "max_tokens": 40})
    assert again["choices"][0]["text"] == cold["choices"][0]["text"]
    assert eventually(lambda: served.client.stats.gauges["leases"] == 0)


def test_nobody_may_empty_the_cache_unless_the_server_says_so(server: Running) -> None:
    answer = httpx.post(server.url + "/cache/reset", json={})
    assert answer.status_code == 403 and "--allow-cache-reset" in answer.json()["error"]["message"]
