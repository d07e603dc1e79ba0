"""A call with the header of a router is not made: it tells how soon it would be answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.keys import Keys
from stepwell.server.routes.outlook import HEADER
from tests.server.harness import Running, running
from tests.server.http.test_gate import KEY, MINE, OTHER, THEIRS
from tests.server.routes.test_conversation import real_loop

TEXT = "a long and winding road that leads to the same door every time it is walked "
MESSAGES = [{"role": "user", "content": TEXT}]


@pytest.fixture(scope="module")
def served(tokenizer: Tokenizer) -> Iterator[Running]:
    with running(tokenizer, loop=real_loop(), keys=Keys([KEY, OTHER], salt_per_key=True)) as server:
        yield server


def post(server: Running, path: str, body: dict[str, Any], headers: dict[str, str]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers=headers, timeout=20)


def outlook(server: Running, path: str, body: dict[str, Any], headers: dict[str, str], how: str = "1") -> Any:
    answer = post(server, path, body, {**headers, HEADER: how})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_it_tells_what_the_call_then_finds_under_the_key_that_asks(served: Running) -> None:
    body = {"prompt": TEXT, "max_tokens": 2}
    (cold,) = outlook(served, "/v1/completions", body, MINE)["outlooks"]
    assert post(served, "/v1/completions", body, MINE).status_code == 200
    more = {"prompt": TEXT + "and once more", "max_tokens": 2}
    (warm,) = outlook(served, "/v1/completions", more, MINE)["outlooks"]
    usage = post(served, "/v1/completions", more, MINE).json()["usage"]
    assert warm["boundary"] == usage["prompt_tokens_details"]["cached_tokens"] > 0 == cold["boundary"]
    assert warm["tokens"] == usage["prompt_tokens"]
    assert warm["first_token_s"] == warm["queue_s"] + warm["load_s"] + warm["prefill_s"]
    assert outlook(served, "/v1/completions", body, THEIRS)["outlooks"][0]["boundary"] == 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": MESSAGES}),
        ("/v1/chat/completions", {"messages": MESSAGES, "stream": True}),
        ("/v1/messages", {"messages": MESSAGES, "max_tokens": 3}),
        ("/v1/responses", {"input": MESSAGES}),
    ],
)
def test_any_api_may_be_asked_and_its_tokens_asked_about_elsewhere(
    served: Running, path: str, body: dict[str, Any]
) -> None:
    told = outlook(served, path, body, MINE, "tokens")
    (ids,) = told["prompt_token_ids"]
    assert len(ids) == told["outlooks"][0]["tokens"]
    again = outlook(served, "/v1/completions", {"prompt": ids}, MINE)
    assert again["outlooks"][0]["tokens"] == len(ids) and "prompt_token_ids" not in again


def test_it_is_guarded_as_the_call_is(served: Running) -> None:
    assert post(served, "/v1/completions", {"prompt": "x"}, {HEADER: "1"}).status_code == 401
    assert post(served, "/v1/completions", {"prompt": ""}, {**MINE, HEADER: "1"}).status_code == 400
