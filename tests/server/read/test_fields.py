"""Fields of other engines' calls that change answers: they do what they say, or are refused by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import pydantic
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.messages.schema import CountCall, MessagesCall
from stepwell.server.read.schema import ChatCall, CompletionCall, TokenizeCall
from stepwell.server.responses.schema import ResponsesCall
from tests.server.harness import Running, running
from tests.server.read.test_choosing import complete
from tests.server.real import VOCAB, Real, real_server
from tests.server.templates import talking_tokenizer

CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    pytest.importorskip("transformers")
    with real_server(tmp_path_factory.mktemp("real")) as made:
        yield made


def tokens_of(real: Real, **fields: Any) -> list[int]:
    """The tokens of a completion, by their log-probabilities' names."""
    choice = complete(real, logprobs=0, ignore_eos=True, **fields)
    return [int(real.tokenizer.encode(text, special=False)[0]) for text in choice["logprobs"]["tokens"]]


@pytest.mark.parametrize("temperature", [0, 2])
def test_nothing_but_allowed_tokens_is_chosen(real: Real, temperature: float) -> None:
    allowed = [int(real.tokenizer.encode(char)[0]) for char in "xyz"]
    said = tokens_of(real, allowed_token_ids=allowed, max_tokens=24, temperature=temperature, seed=3)
    assert len(said) == 24 and set(said) <= set(allowed)


def test_bad_words_never_become_whole_whatever_they_are_made_of(real: Real) -> None:
    plain = complete(real, max_tokens=40, ignore_eos=True)["text"]
    letter, pair = plain[3], plain[10:13]
    assert pair in plain
    said = complete(real, max_tokens=40, ignore_eos=True, bad_words=[letter])["text"]
    single = int(real.tokenizer.encode(letter, special=False)[0])
    assert single not in tokens_of(real, max_tokens=40, bad_words=[letter]) and said[:3] == plain[:3]
    word = tuple(real.tokenizer.encode(pair, special=False).tolist())
    tokens = tokens_of(real, max_tokens=40, bad_words=[pair])
    assert word not in {tuple(tokens[i : i + len(word)]) for i in range(40)}
    assert tokens_of(real, max_tokens=40, bad_words=["never said in any answer"]) == tokens_of(real, max_tokens=40)


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"allowed_token_ids": [VOCAB]}, "allowed_token_ids"),
        ({"allowed_token_ids": ["a"]}, "allowed_token_ids.0"),
        ({"bad_words": [""]}, "bad_words.0"),
        ({"bad_words": ["x"] * 300}, "bad_words"),
        ({"best_of": 2}, "best_of"),
        ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens"),
        ({"documents": [{"text": "x"}]}, "documents"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"logits_processors": ["a"]}, "logits_processors"),
        ({"stop_regex": "a+"}, "stop_regex"),
        ({"regex": "a+"}, "regex"),
    ],
)
def test_what_is_not_done_is_refused_in_every_api(real: Real, fields: dict[str, Any], named: str) -> None:
    message = {"max_tokens": 4, **CHAT}
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", message),
        ("/v1/responses", {"input": "x"}),
    ):
        if path == "/v1/responses" and named == "best_of":
            continue
        answer = httpx.post(real.server.url + path, json={**body, **fields}, timeout=60)
        if path in ("/v1/completions", "/v1/chat/completions"):
            assert answer.status_code == 400 and answer.json()["error"]["param"] == named, answer.text
        elif named != "best_of":
            assert answer.status_code == 400 and named.partition(".")[0] in answer.text


def test_what_asks_for_nothing_is_no_fault(real: Real) -> None:
    nothing: dict[str, Any] = {"allowed_token_ids": None, "bad_words": [], "best_of": 1, "documents": [], "n": 1}
    nothing |= {"truncate_prompt_tokens": None, "chat_template": None, "use_beam_search": False, "length_penalty": 1}
    nothing |= {"include_stop_str_in_output": False, "skip_special_tokens": True, "vllm_xargs": {}}
    assert complete(real, max_tokens=4, **nothing)["text"] == complete(real, max_tokens=4)["text"]
    chat = {**CHAT, "max_tokens": 4}  # left open, the answer may fill the context
    for field in ({"add_special_tokens": False}, {"echo": False}):
        assert httpx.post(real.server.url + "/v1/chat/completions", json={**chat, **field}).status_code == 200
    for field in ({"add_special_tokens": True}, {"echo": True}):
        assert httpx.post(real.server.url + "/v1/chat/completions", json={**chat, **field}).status_code == 400


def said(server: Running, prompt: Any, **fields: Any) -> str:
    answer = httpx.post(server.url + "/v1/completions", json={"prompt": prompt, "max_tokens": 12, **fields}, timeout=60)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def test_stop_is_shown_where_that_is_asked_for(server: Running) -> None:
    fields: dict[str, Any] = {"prompt": "over there it is over", "stop": ["there", "er"], "max_tokens": 30}
    assert said(server, **fields) == "ov"
    assert said(server, **fields, include_stop_str_in_output=True) == "over"
    assert said(server, **{**fields, "stop": "never"}, include_stop_str_in_output=True).startswith(
        "over there it is over"
    )


def test_special_tokens_are_shown_where_that_is_asked_for(server: Running, tokenizer: Tokenizer) -> None:
    prompt = [1, *tokenizer.encode("a").tolist(), 0]
    assert said(server, prompt, max_tokens=3) == "a"
    assert said(server, prompt, max_tokens=3, skip_special_tokens=False) == "<|im_start|>a<|endoftext|>"


def test_first_and_last_tokens_of_the_model_are_left_out_where_that_is_asked_for(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = talking_tokenizer(tmp_path_factory.mktemp("bos"))
    tokenizer._backend.post_processor = TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    with running(tokenizer) as server:
        said(server, "ab")
        assert server.loop.seen[-1].prompt[0] == 0
        said(server, "ab", add_special_tokens=False)
        assert server.loop.seen[-1].prompt[0] != 0


@pytest.fixture(scope="module")
def talking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(talking_tokenizer(tmp_path_factory.mktemp("talker"))) as made:
        yield made


CALLS: list[tuple[str, type[pydantic.BaseModel], dict[str, Any]]] = [
    ("/v1/completions", CompletionCall, {"prompt": "x", "max_tokens": 3}),
    ("/v1/chat/completions", ChatCall, {**CHAT, "max_tokens": 3}),
    ("/v1/messages", MessagesCall, {**CHAT, "max_tokens": 3}),
    ("/v1/messages/count_tokens", CountCall, CHAT),
    ("/v1/responses", ResponsesCall, {"input": "x", "max_output_tokens": 3}),
    ("/tokenize", TokenizeCall, {"prompt": "x"}),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("path", "kind", "body"), CALLS, ids=[path for path, _, _ in CALLS])
def test_null_means_absent_wherever_a_field_may_be_left_out(
    talking: Running, path: str, kind: type[pydantic.BaseModel], body: dict[str, Any]
) -> None:
    names = {field.alias or name for name, field in kind.model_fields.items()} - body.keys() - {"prompt", "messages"}
    assert len(names) > 3 and ("tokenize" in path or names > {"model"})
    calls = [body | {name: None} for name in sorted(names)] + [body | dict.fromkeys(names)]
    if "tools" in names:
        tool: dict[str, Any] = {"name": "f", "description": None}
        shown = {
            "/v1/messages": {**tool, "input_schema": {"type": "object"}, "cache_control": None},
            "/v1/messages/count_tokens": {**tool, "input_schema": {"type": "object"}, "type": None},
            "/v1/responses": {**tool, "type": "function", "parameters": None, "strict": None},
        }
        function = {"type": "function", "function": {**tool, "parameters": None, "strict": None}}
        calls.append(body | {"tools": [shown.get(path, function)]})
    before = len(talking.loop.seen)
    for call in calls:
        answer = httpx.post(talking.url + path, json=call, timeout=60)
        assert answer.status_code == 200, (call, answer.text)
    plain = [asked for asked in talking.loop.seen[before:] if not path.endswith("tokenize")][: len(names) + 1]
    assert len({(tuple(asked.prompt), replace(asked.params, seed=0)) for asked in plain}) <= 1, "nothing has changed"
