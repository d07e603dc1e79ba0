"""Conversations in every API on a real, very small model: each turn finds the one before it in the cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.real import Real, real_server

GRID = 64  # tokens between the places where a prompt can be resumed
FIRST = "tell me about the wells of Rajasthan, and spare no detail " * 3


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    with real_server(tmp_path_factory.mktemp("real")) as made:
        yield made


def post(real: Real, path: str, **fields: Any) -> dict[str, Any]:
    answer = httpx.post(real.server.url + path, json={"temperature": 0, **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def by_messages(real: Real, salt: str) -> list[tuple[int, int]]:
    """(tokens of the prompt, cached ones) of two turns over /v1/messages."""
    messages: list[Any] = [{"role": "user", "content": FIRST}]
    found = []
    for _ in range(2):
        answer = post(real, "/v1/messages", messages=messages, system="be brief", max_tokens=8, cache_salt=salt)
        usage = answer["usage"]
        found.append((usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]))
        messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "and then?"}]
    return found


def by_responses(real: Real, salt: str) -> list[tuple[int, int]]:
    """The same over /v1/responses, the second turn by the name of the first."""
    asked: dict[str, Any] = {"instructions": "be brief", "max_output_tokens": 8, "cache_salt": salt}
    first = post(real, "/v1/responses", input=FIRST, **asked)
    second = post(real, "/v1/responses", input="and then?", previous_response_id=first["id"], **asked)
    return [
        (answer["usage"]["input_tokens"], answer["usage"]["input_tokens_details"]["cached_tokens"])
        for answer in (first, second)
    ]


@pytest.mark.parametrize("talk", [by_messages, by_responses])
def test_the_second_turn_resumes_at_the_end_of_the_first_prompt(real: Real, talk: Any) -> None:
    (first, none), (second, cached) = talk(real, talk.__name__)
    assert none == 0 and second > first > 2 * GRID
    assert cached >= (first - 1) // GRID * GRID


def test_a_conversation_can_change_from_one_api_to_another(real: Real) -> None:
    """One prompt, whoever renders it: what one API has cached, the others find."""
    messages: list[Any] = [{"role": "user", "content": FIRST}]
    salt, most = "both", {"max_tokens": 4}
    post(real, "/v1/messages", messages=messages, system="be brief", cache_salt=salt, **most)
    chat = [{"role": "system", "content": "be brief"}, *messages]
    usage = post(real, "/v1/chat/completions", messages=chat, cache_salt=salt, **most)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] >= (usage["prompt_tokens"] - 1) // GRID * GRID
    answer = post(real, "/v1/responses", input=chat, cache_salt=salt, max_output_tokens=4)["usage"]
    assert answer["input_tokens_details"]["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
