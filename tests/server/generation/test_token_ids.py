"""`return_token_ids`: an answer's own tokens, whole and in a stream, also where they have no text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.real import Real, real_server

PROMPT = list(range(30, 60))
CHAT = {"messages": [{"role": "user", "content": "tell me"}]}
FIELDS = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    pytest.importorskip("transformers")
    with real_server(tmp_path_factory.mktemp("real")) as made:
        yield made


def post(real: Real, path: str, **fields: Any) -> httpx.Response:
    response = httpx.post(real.server.url + path, json={**FIELDS, **fields}, timeout=60)
    assert response.status_code == 200, response.text
    return response


def chunks(real: Real, path: str, **fields: Any) -> list[dict[str, Any]]:
    lines = post(real, path, stream=True, return_token_ids=True, **fields).text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


def test_a_completion_names_its_tokens(real: Real) -> None:
    whole = post(real, "/v1/completions", prompt=PROMPT, return_token_ids=True).json()["choices"][0]
    assert len(whole["token_ids"]) == 6 and whole["prompt_token_ids"] == PROMPT
    assert "".join(real.tokenizer.token_bytes(t).decode() for t in whole["token_ids"]) == whole["text"]
    streamed = [chunk["choices"][0] for chunk in chunks(real, "/v1/completions", prompt=PROMPT)]
    assert [t for choice in streamed for t in choice.get("token_ids", ())] == whole["token_ids"]
    assert [choice["prompt_token_ids"] for choice in streamed if "prompt_token_ids" in choice] == [PROMPT]


def test_a_chat_names_its_tokens(real: Real) -> None:
    whole = post(real, "/v1/chat/completions", **CHAT, return_token_ids=True).json()
    prompt, answer = whole["prompt_token_ids"], whole["choices"][0]["token_ids"]
    assert len(answer) == 6 and len(prompt) == whole["usage"]["prompt_tokens"]
    streamed = chunks(real, "/v1/chat/completions", **CHAT)
    assert [t for chunk in streamed for c in chunk["choices"] for t in c.get("token_ids", ())] == answer
    assert [chunk["prompt_token_ids"] for chunk in streamed if "prompt_token_ids" in chunk] == [prompt]


def test_a_token_without_text_still_comes_at_once(real: Real) -> None:
    silent = real.tokenizer.token_id("<|im_end|>")
    assert silent is not None and not real.tokenizer.decode([silent])
    forced = {"logit_bias": {str(silent): 100}, "max_tokens": 3}
    streamed = [chunk["choices"][0] for chunk in chunks(real, "/v1/completions", prompt=PROMPT, **forced)]
    assert [t for choice in streamed for t in choice.get("token_ids", ())] == [silent] * 3
    assert "".join(choice["text"] for choice in streamed) == ""


def test_what_a_stop_cuts_off_is_no_part_of_the_answer(real: Real) -> None:
    free = post(real, "/v1/completions", prompt=PROMPT, return_token_ids=True).json()["choices"][0]
    stop = real.tokenizer.token_bytes(free["token_ids"][2]).decode()
    cut = post(real, "/v1/completions", prompt=PROMPT, return_token_ids=True, stop=stop).json()
    ids = cut["choices"][0]["token_ids"]
    assert ids == free["token_ids"][: len(ids)] and len(ids) == cut["usage"]["completion_tokens"] < 6


def test_nobody_who_does_not_ask_gets_them(real: Real) -> None:
    for path, fields in (("/v1/completions", {"prompt": PROMPT}), ("/v1/chat/completions", CHAT)):
        for stream in (False, True):
            assert "token_ids" not in post(real, path, stream=stream, **fields).text
