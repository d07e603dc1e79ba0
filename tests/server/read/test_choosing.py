"""How tokens are chosen, and what is told of them: over HTTP, on a real model, against Transformers."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

import httpx
import numpy as np
import openai
import pydantic
import pytest

from stepwell.sched.request import SamplingParams
from tests.server.harness import MODEL, eventually
from tests.server.real import VOCAB, Real, real_server
from tests.server.routes.test_calls import TOOLS

PROMPT = [(7 * i) % 200 + 20 for i in range(150)]  # longer than two steps may be
CLOSE = 2e-4


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    pytest.importorskip("transformers")
    with real_server(tmp_path_factory.mktemp("real")) as made:
        yield made


def post(real: Real, path: str, **fields: Any) -> dict[str, Any]:
    body = {"temperature": 0, **fields}
    response = httpx.post(real.server.url + path, json=body, timeout=60)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def complete(real: Real, prompt: Any = PROMPT, **fields: Any) -> dict[str, Any]:
    choice: dict[str, Any] = post(real, "/v1/completions", prompt=prompt, **fields)["choices"][0]
    return choice


def chat(real: Real, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "tell me"}]
    choice: dict[str, Any] = post(real, "/v1/chat/completions", messages=messages, **fields)["choices"][0]
    return choice


def greedy(real: Real, prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(real.chances(tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def test_logprobs_are_the_models_own(real: Real) -> None:
    answer = greedy(real, PROMPT, 3)
    chances = real.chances([*PROMPT, *answer])[len(PROMPT) - 1 : -1]
    logprobs = complete(real, max_tokens=3, logprobs=2, ignore_eos=True)["logprobs"]
    assert logprobs["token_logprobs"] == pytest.approx([c[t] for c, t in zip(chances, answer, strict=True)], abs=CLOSE)
    for top, row in zip(logprobs["top_logprobs"], chances, strict=True):
        assert sorted(top.values(), reverse=True) == pytest.approx(np.sort(row)[::-1][:2], abs=CLOSE)
    assert logprobs["tokens"] == [real.tokenizer.token_bytes(t).decode() for t in answer]


def test_logprobs_are_from_before_penalties_bias_and_temperature(real: Real) -> None:
    token = 99
    forced = complete(
        real, max_tokens=2, logprobs=0, logit_bias={str(token): 100}, temperature=1.7, presence_penalty=1, seed=1
    )
    chances = real.chances([*PROMPT, token])[-2:, token]
    assert forced["logprobs"]["token_logprobs"] == pytest.approx(chances, abs=CLOSE)


def test_echo_scores_every_prompt_token_but_the_first(real: Real) -> None:
    chances = real.chances(PROMPT)
    for fields in ({"max_tokens": 1}, {"max_tokens": 0}):
        choice = complete(real, echo=True, logprobs=1, **fields)
        logprobs = choice["logprobs"]
        assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
        own = logprobs["token_logprobs"][1 : len(PROMPT)]
        assert own == pytest.approx([chances[i, t] for i, t in enumerate(PROMPT[1:])], abs=CLOSE)
        best = [max(top.values()) for top in logprobs["top_logprobs"][1 : len(PROMPT)]]
        assert best == pytest.approx(chances[:-1].max(-1), abs=CLOSE)
        assert len(logprobs["tokens"]) == len(PROMPT) + fields["max_tokens"]
        assert choice["text"].startswith(real.tokenizer.decode(PROMPT))
    assert choice["text"] == real.tokenizer.decode(PROMPT)
    assert choice["finish_reason"] == "length"


def test_scored_prompts_are_computed_even_where_they_are_cached(real: Real) -> None:
    complete(real, max_tokens=1)
    read = post(real, "/v1/completions", prompt=PROMPT, max_tokens=1)["usage"]
    scored = post(real, "/v1/completions", prompt=PROMPT, max_tokens=0, echo=True, logprobs=0)["usage"]
    unscored = post(real, "/v1/completions", prompt=PROMPT, max_tokens=0, echo=True)["usage"]
    assert read["prompt_tokens_details"]["cached_tokens"] > 0
    assert scored["prompt_tokens_details"]["cached_tokens"] == 0
    assert unscored["prompt_tokens_details"]["cached_tokens"] > 0
    assert scored["completion_tokens"] == unscored["completion_tokens"] == 0


def test_echo_repeats_text_as_it_was_written(real: Real) -> None:
    said = complete(real, "to <|im_end|> be ", max_tokens=2, echo=True)["text"]
    assert said.startswith("to <|im_end|> be ")


def test_prompt_logprobs_name_tokens_by_id(real: Real) -> None:
    chances = real.chances(PROMPT)
    scores = complete(real, max_tokens=1, prompt_logprobs=1)["prompt_logprobs"]
    assert scores[0] is None and len(scores) == len(PROMPT)
    for i, token in enumerate(PROMPT[1:]):
        assert scores[i + 1][str(token)]["logprob"] == pytest.approx(chances[i, token], abs=CLOSE)
        assert str(int(chances[i].argmax())) in scores[i + 1]
    answer = post(
        real, "/v1/chat/completions", messages=[{"role": "user", "content": "x"}], max_tokens=1, prompt_logprobs=0
    )
    assert len(answer["prompt_logprobs"]) == answer["usage"]["prompt_tokens"]
    assert all(len(score) == 1 for score in answer["prompt_logprobs"][1:])


def test_chat_logprobs_have_one_entry_a_token_with_its_bytes(real: Real) -> None:
    choice = chat(real, logprobs=True, top_logprobs=3, max_tokens=6)
    content = choice["logprobs"]["content"]
    text = b"".join(bytes(entry["bytes"]) for entry in content).decode(errors="replace")
    assert text.removesuffix("<|im_end|>") == choice["message"]["content"]
    for entry in content:
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]  # greedy
        assert len(entry["top_logprobs"]) == 3
    assert chat(real, logprobs=True, max_tokens=2)["logprobs"]["content"][0]["top_logprobs"] == []
    assert chat(real, max_tokens=2)["logprobs"] is None


@pytest.mark.parametrize("echo", [False, True])
def test_streamed_logprobs_join_to_the_whole_ones(real: Real, echo: bool) -> None:
    fields = {"prompt": PROMPT[:20], "max_tokens": 5, "logprobs": 2, "temperature": 0, "ignore_eos": True, "echo": echo}
    whole = post(real, "/v1/completions", **fields)["choices"][0]
    text = httpx.post(real.server.url + "/v1/completions", json={**fields, "stream": True}, timeout=60).text
    chunks = [json.loads(line.removeprefix("data: "))["choices"][0] for line in text.split("\n\n")[:-2]]
    joined: dict[str, list[Any]] = {name: [] for name in whole["logprobs"]}
    for chunk in chunks:
        for name, values in (chunk["logprobs"] or {}).items():
            joined[name] += values
    assert "".join(chunk["text"] for chunk in chunks) == whole["text"]
    assert joined["tokens"] == whole["logprobs"]["tokens"]
    assert joined["text_offset"] == whole["logprobs"]["text_offset"]
    assert len(joined["top_logprobs"]) == 5 + 20 * echo


def test_text_offsets_point_into_the_text(real: Real) -> None:
    choice = complete(real, "naïve façade ", max_tokens=3, echo=True, logprobs=0)
    for token, offset in zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert choice["text"][offset:].startswith(token)


def test_bias_forces_and_bans(real: Real) -> None:
    first = greedy(real, PROMPT, 1)[0]
    banned = complete(real, max_tokens=4, logit_bias={str(first): -100}, logprobs=0, ignore_eos=True)
    assert real.tokenizer.token_bytes(first).decode() not in banned["logprobs"]["tokens"]
    forced = complete(real, max_tokens=3, logit_bias={"50": 100}, ignore_eos=True)
    assert forced["text"] == real.tokenizer.decode([50, 50, 50])


def test_penalties_lower_what_has_been_said(real: Real) -> None:
    loud = {"50": 30}  # alone it would be said for ever
    assert complete(real, max_tokens=4, logit_bias=loud)["text"] == real.tokenizer.decode([50] * 4)
    tired = complete(real, max_tokens=30, logit_bias=loud, ignore_eos=True, frequency_penalty=2)["text"]
    assert tired.startswith(real.tokenizer.decode([50] * 4)) and tired != real.tokenizer.decode([50] * 30)
    first = greedy(real, PROMPT, 1)[0]
    chances = real.chances([*PROMPT, first])[-1]
    liked = {str(first): float(chances.max() - chances[first]) + 1}  # wins by one, unless it has been said
    twice = complete(real, max_tokens=2, logit_bias=liked, ignore_eos=True)["text"]
    assert twice == real.tokenizer.decode([first, first])
    assert complete(real, max_tokens=2, logit_bias=liked, ignore_eos=True, presence_penalty=2)["text"] != twice
    prompt = [50] * 20
    chances = real.chances(prompt)[-1]
    liked = {"50": float(chances.max() - chances[50]) + 0.01}
    assert complete(real, prompt, max_tokens=1, logit_bias=liked)["text"] == real.tokenizer.decode([50])
    other = complete(real, prompt, max_tokens=1, logit_bias=liked, repetition_penalty=10)["text"]
    assert other != real.tokenizer.decode([50])


def test_min_p_leaves_the_likeliest_alone(real: Real) -> None:
    cold = complete(real, max_tokens=6, ignore_eos=True)["text"]
    assert complete(real, max_tokens=6, temperature=2, min_p=1, seed=3, ignore_eos=True)["text"] == cold
    assert complete(real, max_tokens=6, temperature=2, seed=3, ignore_eos=True)["text"] != cold


def test_seeds_give_the_same_answer_in_any_company_and_choices_differ(real: Real) -> None:
    fields = {"max_tokens": 8, "temperature": 1.5, "seed": 11, "ignore_eos": True}
    alone = complete(real, **fields)["text"]
    choices = post(real, "/v1/completions", prompt=[PROMPT, PROMPT[:30]], n=2, **fields)["choices"]
    assert choices[0]["text"] == alone != choices[1]["text"]
    assert complete(real, **{**fields, "seed": 12})["text"] == choices[1]["text"]
    assert complete(real, read_cache=False, **fields)["text"] == alone  # what was cached draws no differently
    del fields["seed"]
    assert len({complete(real, **fields)["text"] for _ in range(3)}) > 1


SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["cat", "dog"]}, "old": {"type": "boolean"}, "tags": {"const": ["a", "b"]}},
    "required": ["kind", "old", "tags"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("seed", range(3))
def test_json_follows_its_schema(real: Real, seed: int) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA, "strict": True}}
    choice = chat(real, response_format=wanted, temperature=1.5, seed=seed, max_tokens=300, ignore_eos=True)
    assert choice["finish_reason"] == "stop"
    pet = json.loads(choice["message"]["content"])
    assert pet["kind"] in ("cat", "dog") and isinstance(pet["old"], bool) and pet["tags"] == ["a", "b"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_patterns_and_choices_hold_by_every_name(real: Real, path: str) -> None:
    prompt: dict[str, Any] = (
        {"prompt": PROMPT} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}
    )
    for fields, pattern in (
        ({"structured_outputs": {"regex": "[ab]{3}-[0-9]"}}, "[ab]{3}-[0-9]"),
        ({"guided_regex": r"x{2,4}"}, r"x{2,4}"),
        ({"guided_choice": ["naïve", "東京 \"'\\ 🙂"]}, "naïve|東京 \"'\\\\ 🙂"),
        ({"guided_json": {"const": [1, 2]}}, r"\[\s*1\s*,\s*2\s*\]"),
        ({"guided_grammar": 'start: "a" "b"?'}, "ab?"),
    ):
        choice = post(real, path, max_tokens=80, temperature=1, min_tokens=70, **prompt, **fields)["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"]
        assert re.fullmatch(pattern, text), (fields, text)
        assert choice["finish_reason"] == "stop"


def test_json_object_is_an_object_from_its_first_token(real: Real) -> None:
    text = chat(real, response_format={"type": "json_object"}, max_tokens=4, temperature=1)["message"]["content"]
    assert text.startswith("{")


def test_forced_call_is_a_call(real: Real) -> None:
    only = [{"type": "function", "function": {"name": "go", "parameters": {"properties": {"far": {"enum": ["ab"]}}}}}]
    only[0]["function"]["parameters"] |= {"required": ["far"], "additionalProperties": False}  # type: ignore[index]
    named = {"type": "function", "function": {"name": "go"}}
    choice = chat(real, tools=[*TOOLS, *only], tool_choice=named, max_tokens=200, temperature=1)
    call = choice["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("go", {"far": "ab"})
    assert choice["finish_reason"] == "tool_calls"


def test_format_and_tools_together_give_one_or_the_other(real: Real) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"const": 5}}}
    go = {"type": "function", "function": {"name": "go", "parameters": {"additionalProperties": False}}}
    for favoured, called in (("<tool_call>", True), ("5", False)):
        token = int(real.tokenizer.encode(favoured)[0])
        fields = {"tools": [go], "parallel_tool_calls": False, "response_format": wanted}
        choice = chat(real, max_tokens=200, logit_bias={str(token): 100}, **fields)
        message = choice["message"]
        if called:
            assert message["tool_calls"][0]["function"]["name"] == "go" and message["content"] is None
        else:
            assert message["content"].strip() == "5" and "tool_calls" not in message


def test_ends_are_not_sampled_before_min_tokens(real: Real) -> None:
    eager = {"2": 100}
    assert post(real, "/v1/completions", prompt=PROMPT, logit_bias=eager)["usage"]["completion_tokens"] == 1
    late = post(real, "/v1/completions", prompt=PROMPT, logit_bias=eager, min_tokens=5, max_tokens=9)
    assert late["usage"]["completion_tokens"] == 6


def test_wrong_fields_of_one_caller_do_not_touch_anothers_answer(real: Real) -> None:
    expected = complete(real, max_tokens=40, ignore_eos=True, read_cache=False)["text"]
    body = {
        "prompt": PROMPT,
        "max_tokens": 40,
        "ignore_eos": True,
        "temperature": 0,
        "stream": True,
        "read_cache": False,
    }
    wrong: list[dict[str, Any]] = [
        {"prompt": [VOCAB]},
        {"prompt": [-1]},
        {"prompt": "x", "logit_bias": {str(VOCAB): 100}},
        {"prompt": "x", "logit_bias": {"-1": 100}},
        {"prompt": "x", "stop_token_ids": [VOCAB + 10**6]},
        {"prompt": "x", "structured_outputs": {"grammar": "start: start"}},
        {
            "prompt": "x",
            "max_tokens": 2,
            "logit_bias": {str(VOCAB - 1): 100},
            "temperature": 2,
            "repetition_penalty": 0.01,
        },
    ]
    said = ""
    with httpx.stream("POST", real.server.url + "/v1/completions", json=body, timeout=60) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                said += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
                if wrong:
                    httpx.post(real.server.url + "/v1/completions", json=wrong.pop(), timeout=60)
    assert not wrong
    assert said == expected


class Pet(pydantic.BaseModel):
    kind: Literal["cat", "dog"]
    old: bool


def test_openai_client_parses_into_a_model_and_streams_beside_others(real: Real) -> None:
    api = openai.AsyncOpenAI(base_url=real.server.url + "/v1", api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "tell me"}]

    async def talk() -> None:
        parsed = await api.chat.completions.parse(
            model=MODEL, messages=messages, response_format=Pet, max_tokens=300, seed=5
        )
        assert isinstance(parsed.choices[0].message.parsed, Pet)
        whole = await asyncio.gather(
            *(api.chat.completions.create(model=MODEL, messages=messages, max_tokens=6, seed=i) for i in range(6))
        )
        assert len({answer.id for answer in whole}) == 6
        stream = await api.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=6, seed=0, stream=True, logprobs=True
        )
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == whole[0].choices[0].message.content
        scored = [c.choices[0].logprobs for c in chunks if c.choices[0].logprobs is not None]
        assert whole[0].usage is not None
        assert sum(len(s.content or []) for s in scored) == whole[0].usage.completion_tokens

    asyncio.run(talk())


def test_nothing_is_left_in_the_engine(real: Real) -> None:
    assert eventually(lambda: real.server.client.open == 0 and not real.server.loop.busy)
    assert real.server.loop.stats().leases == 0
    assert real.tokenizer.size - 1 < VOCAB and SamplingParams().grammar == ""
