"""The API over real HTTP: answers, usage, streams, and what callers may choose."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stepwell.cache.reuse.outcome import Reason
from stepwell.engine.text.tokenizer import Tokenizer
from tests.engine.scripted import CONTEXT, EOS, FAILS, REFUSED, TOO_LARGE
from tests.server.harness import MODEL, Running, eventually

TEXT = "the water, and the land: naïve façade 東京 🙂. "


def post(server: Running, path: str, **body: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=20)


def events(server: Running, path: str, **body: Any) -> list[dict[str, Any]]:
    """Data of a stream's events, without the closing mark, which must be there."""
    text = post(server, path, stream=True, **body).text
    lines = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def client(server: Running) -> openai.OpenAI:
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)


def test_completion_continues_a_text_and_a_list_of_ids_alike(server: Running, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT).tolist()
    by_text = post(server, "/v1/completions", model=MODEL, prompt=TEXT, max_tokens=len(ids)).json()
    by_ids = post(server, "/v1/completions", model=MODEL, prompt=ids, max_tokens=len(ids)).json()
    assert by_text["choices"][0]["text"] == by_ids["choices"][0]["text"] == TEXT
    assert by_text["choices"][0]["finish_reason"] == "length"
    assert by_text["usage"]["completion_tokens"] == len(ids)
    assert by_text["object"] == "text_completion"


def test_list_of_prompts_and_n_give_one_choice_each_in_order(server: Running) -> None:
    answer = post(server, "/v1/completions", prompt=["one ", [5, 6], "two "], n=2, max_tokens=3).json()
    choices = answer["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    assert choices[0]["text"] == choices[1]["text"] != choices[4]["text"]


def test_choice_i_draws_from_seed_plus_i_and_seeds_vary_when_none_is_given(server: Running) -> None:
    post(server, "/v1/completions", prompt="seeded", n=3, seed=2**63 - 2, max_tokens=1)
    assert [r.params.seed for r in server.loop.seen[-3:]] == [2**63 - 2, 2**63 - 1, 0]
    for _ in range(2):
        post(server, "/v1/completions", prompt="unseeded", max_tokens=1)
    assert server.loop.seen[-1].params.seed != server.loop.seen[-2].params.seed


def test_sampling_fields_reach_the_engine(server: Running) -> None:
    fields = {"temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_tokens": 2, "stop_token_ids": [9], "ignore_eos": True}
    post(server, "/v1/completions", prompt="x", max_tokens=4, seed=1, **fields)
    params = server.loop.seen[-1].params
    assert (params.temperature, params.top_p, params.top_k, params.min_tokens) == (0.5, 0.25, 7, 2)
    assert (params.max_tokens, params.seed, params.stop_token_ids, params.ignore_eos) == (4, 1, (9,), True)
    post(server, "/v1/completions", prompt="x", max_tokens=1, temperature=1e-9, top_k=-1)
    assert (server.loop.seen[-1].params.temperature, server.loop.seen[-1].params.top_k) == (0.0, 0)


def test_max_tokens_defaults_to_the_room_left_and_is_cut_to_it(server: Running) -> None:
    prompt = [5] * (CONTEXT - 3)
    for body in ({}, {"max_tokens": 100_000_000}):
        answer = post(server, "/v1/completions", prompt=prompt, **body).json()
        assert answer["usage"]["completion_tokens"] == 3
    longest = post(server, "/v1/completions", prompt=[5] * (CONTEXT - 1)).json()
    assert longest["usage"]["completion_tokens"] == 1


def test_cache_fields_and_session_reach_the_engine(server: Running) -> None:
    body = {"prompt": "x", "max_tokens": 1, "cache_salt": "tenant", "read_cache": False, "write_cache": False}
    post(server, "/v1/completions", **body, session_id="s1")
    request = server.loop.seen[-1]
    assert (request.salt, request.read_cache, request.write_cache, request.session) == ("tenant", False, False, "s1")
    for header in ("x-session-id", "x-session-affinity"):
        httpx.post(server.url + "/v1/completions", json=body, headers={header: "s2"})
        assert server.loop.seen[-1].session == "s2"


def test_stop_token_is_counted_and_not_shown(server: Running, tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("hello").tolist(), EOS, 9]
    answer = post(server, "/v1/completions", prompt=ids).json()
    assert answer["choices"][0]["text"] == "hello"
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == len(ids) - 1


@pytest.mark.parametrize("stream", [False, True])
def test_stop_string_ends_the_answer_and_aborts_the_sequence(server: Running, stream: bool) -> None:
    prompt = "alpha beta <END> gamma "
    body = {"prompt": prompt, "stop": ["<END>", "<END> g"], "max_tokens": 4000}
    if stream:
        got = events(server, "/v1/completions", **body)
        text = "".join(e["choices"][0]["text"] for e in got)
        reason = got[-1]["choices"][0]["finish_reason"]
    else:
        choice = post(server, "/v1/completions", **body).json()["choices"][0]
        text, reason = choice["text"], choice["finish_reason"]
    assert (text, reason) == ("alpha beta ", "stop")
    assert eventually(lambda: server.client.open == 0 and not server.loop.busy)


@pytest.mark.parametrize(
    "stops",
    [
        ["naïve"],
        ["façade 東京"],
        ["the", "the water, and"],
        ["ater, and the la"],
        ["🙂. the"],
        ["🙂"],
        ["e", "ater"],
        ["no such"],
    ],
    ids=repr,
)
def test_stops_end_a_stream_where_they_end_a_whole_answer(server: Running, stops: list[str]) -> None:
    body = {"prompt": TEXT, "stop": stops, "max_tokens": 60}
    whole = post(server, "/v1/completions", **body).json()["choices"][0]
    got = events(server, "/v1/completions", **body)
    assert "".join(e["choices"][0]["text"] for e in got) == whole["text"]
    assert got[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]
    ends = [(TEXT.index(stop) + len(stop), stop) for stop in stops if stop in TEXT * 2 and stop in TEXT]
    if ends:
        end, stop = min(ends)
        assert whole["text"] == TEXT[: end - max(len(s) for e, s in ends if e == end)]
        assert whole["finish_reason"] == "stop" and stop


def test_stops_are_not_looked_for_in_the_prompt_or_across_its_end(server: Running) -> None:
    echoed = post(server, "/v1/completions", prompt="ab", stop=["ab"], echo=True, max_tokens=6).json()["choices"][0]
    assert echoed["text"] == "ab" and echoed["finish_reason"] == "stop"
    across = post(server, "/v1/completions", prompt="ab", stop=["ba"], max_tokens=1).json()["choices"][0]
    assert across["finish_reason"] == "length"


def test_stream_says_in_its_header_how_it_was_resumed(server: Running) -> None:
    response = post(server, "/v1/completions", prompt="x", max_tokens=2, stream=True)
    assert response.headers["x-stepwell-resume"].startswith("resumed ")
    assert response.headers["x-request-id"].startswith("cmpl-")


@pytest.mark.parametrize("route", ["chat", "text"])
@pytest.mark.parametrize("stream", [False, True])
def test_usage_names_cached_tokens_by_tier_on_a_miss_and_on_a_hit(server: Running, route: str, stream: bool) -> None:
    text = f"{route} {stream} " + TEXT * 3
    seen = []
    for _ in range(2):
        body: dict[str, Any] = {"max_tokens": 2, "model": MODEL}
        path = "/v1/completions" if route == "text" else "/v1/chat/completions"
        body |= {"prompt": text} if route == "text" else {"messages": [{"role": "user", "content": text}]}
        if stream:
            got = events(server, path, stream_options={"include_usage": True}, **body)
            assert got[-1]["choices"] == []
            assert all(e["usage"] is None for e in got[:-1])
            seen.append(got[-1]["usage"])
        else:
            response = post(server, path, **body)
            assert response.headers["x-stepwell-resume"].startswith("resumed ")
            seen.append(response.json()["usage"])
    miss, hit = (usage["prompt_tokens_details"] for usage in seen)
    assert set(miss) == {"cached_tokens", "device_tokens", "host_tokens", "disk_tokens", "saved_ms"}
    assert all(type(value) is int for value in [*miss.values(), *hit.values()])
    assert miss["device_tokens"] == miss["cached_tokens"] < 16  # the template's opening may have been seen before
    assert hit["cached_tokens"] == (seen[1]["prompt_tokens"] - 1) // 16 * 16 == hit["device_tokens"]
    assert seen[0]["total_tokens"] == seen[0]["prompt_tokens"] + 2


def test_stream_without_usage_has_no_usage(server: Running) -> None:
    assert all("usage" not in e for e in events(server, "/v1/completions", prompt="x", max_tokens=2))


def test_chat_stream_opens_with_the_role_and_joins_to_the_whole_answer(server: Running) -> None:
    body = {"messages": [{"role": "user", "content": TEXT}], "max_tokens": 60}
    whole = post(server, "/v1/chat/completions", **body).json()
    got = events(server, "/v1/chat/completions", **body)
    assert got[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    joined = "".join(e["choices"][0]["delta"].get("content", "") for e in got)
    assert joined == whole["choices"][0]["message"]["content"]
    assert got[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert whole["object"] == "chat.completion" and got[0]["object"] == "chat.completion.chunk"


def test_openai_client_reads_answers_streams_and_errors(server: Running) -> None:
    api = client(server)
    assert [model.id for model in api.models.list()] == [MODEL]
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    whole = api.chat.completions.create(model=MODEL, messages=messages, max_completion_tokens=6, temperature=0)
    assert whole.usage is not None and whole.usage.completion_tokens == 6
    assert whole.usage.prompt_tokens_details is not None
    assert isinstance(whole.usage.prompt_tokens_details.cached_tokens, int)
    stream = api.chat.completions.create(
        model=MODEL, messages=messages, max_tokens=6, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 6
    texts = api.completions.create(model=MODEL, prompt=["a", "b"], max_tokens=2, stream=True)
    assert {c.choices[0].index for c in texts} == {0, 1}
    with pytest.raises(openai.NotFoundError, match="no model"):
        api.chat.completions.create(model="other", messages=messages)
    with pytest.raises(openai.APIError, match="numbers of this request"):
        list(api.completions.create(model=MODEL, prompt=[5, FAILS], stream=True))


def test_messages_may_repeat_roles_hold_parts_and_lack_content(server: Running) -> None:
    parts = [{"type": "text", "text": "to"}, {"type": "text", "text": "day"}]
    messages = [
        {"role": "system", "content": ""},
        {"role": "assistant", "content": None},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": parts},
    ]
    whole = post(server, "/tokenize", messages=messages).json()
    messages[3] = {"role": "user", "content": "today"}
    assert post(server, "/tokenize", messages=messages).json() == whole
    assert post(server, "/v1/chat/completions", messages=messages, max_tokens=1).status_code == 200


def test_last_message_can_be_continued(server: Running) -> None:
    messages = [{"role": "user", "content": "count"}, {"role": "assistant", "content": "one two"}]
    post(server, "/v1/chat/completions", messages=messages, continue_final_message=True, max_tokens=1)
    text = post(server, "/detokenize", tokens=server.loop.seen[-1].prompt.tolist()).json()["prompt"]
    assert text.endswith("assistant\none two")


def test_tokenize_and_detokenize_are_inverse(server: Running) -> None:
    answer = post(server, "/tokenize", prompt=TEXT).json()
    assert answer["count"] == len(answer["tokens"]) and answer["max_model_len"] == CONTEXT
    assert post(server, "/detokenize", tokens=answer["tokens"]).json() == {"prompt": TEXT}
    assert post(server, "/tokenize", prompt="").json()["tokens"] == []


def test_request_that_fails_alone_is_a_500_and_leaves_the_engine_alive(server: Running) -> None:
    response = post(server, "/v1/completions", prompt=[5, FAILS])
    assert response.status_code == 500
    assert "went wrong" in response.json()["error"]["message"]
    got = events(server, "/v1/completions", prompt=[5, FAILS])
    assert "went wrong" in got[-1]["error"]["message"]
    assert httpx.get(server.url + "/health").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_a_400_even_for_a_stream(server: Running, stream: bool) -> None:
    response = post(server, "/v1/completions", prompt=[[5, 6], [REFUSED]], stream=stream)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"
    response = post(server, "/v1/completions", prompt=[TOO_LARGE], stream=stream)
    assert response.status_code == 400
    assert "900" in response.json()["error"]["message"] and "100" in response.json()["error"]["message"]
    assert eventually(lambda: server.client.open == 0 and not server.loop.busy)


def metric(server: Running, name: str, **labels: str) -> float:
    text = httpx.get(server.url + "/metrics").text
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    raise AssertionError(f"no {name} {labels}")


def test_metrics_exist_at_zero_and_follow_the_answers(server: Running) -> None:
    for reason in Reason:
        assert metric(server, "stepwell_admissions_total", reason=reason) >= 0
    for source in ("device", "host", "disk", "recomputed"):
        assert metric(server, "stepwell_prompt_tokens_total", source=source) >= 0
    assert metric(server, "stepwell_http_errors_total", status="413") == 0
    assert metric(server, "stepwell_pages", tier="disk", state="leased") == 0
    assert metric(server, "stepwell_pages", tier="device", state="free") == 7
    before = {
        name: metric(server, name)
        for name in ("stepwell_generation_tokens_total", "stepwell_time_to_first_token_seconds_count")
    }
    cold = metric(server, "stepwell_prompt_tokens_total", source="recomputed")
    post(server, "/v1/completions", prompt=[250, 251, 252], max_tokens=5)
    assert metric(server, "stepwell_generation_tokens_total") == before["stepwell_generation_tokens_total"] + 5
    assert (
        metric(server, "stepwell_time_to_first_token_seconds_count")
        == 1 + (before["stepwell_time_to_first_token_seconds_count"])
    )
    assert metric(server, "stepwell_prompt_tokens_total", source="recomputed") == cold + 3


def test_metrics_and_errors_hold_no_prompt_text(server: Running) -> None:
    post(server, "/v1/completions", prompt="sesame " * 50, max_tokens=1, cache_salt="hidden-tenant")
    text = httpx.get(server.url + "/metrics").text
    assert "sesame" not in text and "hidden-tenant" not in text


def test_api_description_lists_the_fields(server: Running) -> None:
    paths = httpx.get(server.url + "/openapi.json").json()["paths"]
    body = paths["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert "cache_salt" in body["properties"]
