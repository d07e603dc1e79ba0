"""The Messages API over real HTTP, by the client that is written for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import anthropic
import httpx
import pytest
from pydantic import BaseModel

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.generation.answers import Patience
from stepwell.server.http.keys import Keys
from tests.engine.scripted import CONTEXT
from tests.server.harness import MODEL, Running, eventually, running
from tests.server.templates import talking_tokenizer

TOOLS: list[Any] = [
    {
        "name": "weather",
        "description": "Tells the weather.",
        "input_schema": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>'
ARGUMENTS = {"city": "Zürich", "days": 2}
THINKING: Any = {"type": "enabled", "budget_tokens": 1024}


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return talking_tokenizer(tmp_path_factory.mktemp("talker"))


@pytest.fixture(scope="module")
def talking(talker: Tokenizer) -> Iterator[Running]:
    with running(talker) as server:
        yield server


@pytest.fixture(scope="module")
def api(talking: Running) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=talking.url, api_key="none", max_retries=0) as client:
        yield client


def said(text: Any) -> Any:
    return [{"role": "user", "content": text}]


def post(server: Running, path: str = "/v1/messages", **fields: Any) -> httpx.Response:
    body = {"max_tokens": 200, "messages": said("hello"), **fields}
    return httpx.post(server.url + path, json=body, timeout=20)


def prompt_of(server: Running, talker: Tokenizer) -> str:
    return talker.decode(server.loop.seen[-1].prompt.tolist())


def events_of(response: httpx.Response) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for event in response.text.split("\n\n")[:-1]:
        kind, data = event.split("\n")
        found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_an_answer_is_a_message_of_blocks_in_their_order(api: anthropic.Anthropic) -> None:
    message = api.messages.create(
        model=MODEL, max_tokens=400, messages=said(f"I look it up.\n{CALL}\n{CALL}"), tools=TOOLS
    )
    text, first, second = message.content
    assert text.type == "text" and text.text == "I look it up."
    assert first.type == second.type == "tool_use" and first.input == second.input == ARGUMENTS
    assert first.id != second.id and first.id.startswith("toolu_")
    assert (message.stop_reason, message.stop_sequence, message.role) == ("tool_use", None, "assistant")


def test_a_stream_adds_up_to_the_whole_answer(api: anthropic.Anthropic, talking: Running) -> None:
    asked: Any = {
        "model": MODEL,
        "max_tokens": 400,
        "messages": said(f"hm</think>I look it up.\n{CALL}\n{CALL}"),
        "tools": TOOLS,
        "extra_body": {"chat_template_kwargs": {"thinking": True}},
    }
    whole = api.messages.create(**asked)
    with api.messages.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        streamed = stream.get_final_message()
    assert [b.type for b in whole.content] == ["thinking", "text", "tool_use", "tool_use"]
    for one, other in zip(whole.content, streamed.content, strict=True):
        assert one.to_dict() | {"id": ""} == other.to_dict() | {"id": ""}
    assert streamed.stop_reason == whole.stop_reason == "tool_use"
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert eventually(lambda: talking.client.open == 0)


def test_events_come_in_the_order_that_clients_expect(talking: Running, talker: Tokenizer) -> None:
    asked = {"stream": True, "tools": TOOLS, "chat_template_kwargs": {"thinking": True}}
    events = events_of(post(talking, messages=said(f"so</think>yes {CALL}"), **asked))
    assert all(kind == data["type"] for kind, data in events)
    shape = [kind if kind != "content_block_delta" else data["delta"]["type"] for kind, data in events]
    runs = [kind for i, kind in enumerate(shape) if i == 0 or shape[i - 1] != kind]
    block = ["content_block_start", "", "content_block_stop"]
    assert runs == [
        *("message_start", "ping"),
        *("content_block_start", "thinking_delta", "signature_delta", "content_block_stop"),
        *(kind or "text_delta" for kind in block),
        *(kind or "input_json_delta" for kind in block),
        *("message_delta", "message_stop"),
    ]
    assert [data["index"] for kind, data in events if kind == "content_block_start"] == [0, 1, 2]
    start, delta = events[0][1]["message"], events[-2][1]
    assert start["content"] == [] and start["stop_reason"] is None
    assert start["usage"]["input_tokens"] == delta["usage"]["input_tokens"] > 0
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    thought = len(talker.encode("so</think>", special=False))
    assert delta["usage"]["output_tokens_details"] == {"thinking_tokens": thought}


def test_the_async_client_reads_many_answers_at_once(talking: Running) -> None:
    async def ask() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=talking.url, api_key="none", max_retries=0) as api:

            async def one(i: int) -> str:
                async with api.messages.stream(model=MODEL, max_tokens=50, messages=said(f"number {i}")) as stream:
                    return "".join([text async for text in stream.text_stream])

            return await asyncio.gather(*map(one, range(8)))

    assert asyncio.run(ask()) == [f"number {i}" for i in range(8)]


def test_every_reason_to_stop_has_its_name(talking: Running) -> None:
    def stop(**fields: Any) -> tuple[str, str | None]:
        body = post(talking, messages=said("one two three"), **fields).json()
        return body["stop_reason"], body["stop_sequence"]

    assert stop() == ("end_turn", None)
    assert stop(max_tokens=2) == ("max_tokens", None)
    assert stop(stop_sequences=["thr", "two"]) == ("stop_sequence", "two")
    assert stop(stop_sequences=["never"]) == ("end_turn", None)


def test_a_call_that_is_cut_off_has_the_arguments_that_were_written(talking: Running, talker: Tokenizer) -> None:
    cut = len(talker.encode(CALL.partition(', "days"')[0]))
    body = post(talking, messages=said(CALL), tools=TOOLS, max_tokens=cut).json()
    assert body["stop_reason"] == "max_tokens"
    assert body["content"][0]["input"] == {"city": "Zürich"}


def test_arguments_that_json_cannot_say_exactly_are_written_all_the_same(talking: Running) -> None:
    many = "1" * 30
    call = f'<tool_call>{{"name": "weather", "arguments": {{"city": "x", "days": {many}}}}}</tool_call>'
    assert post(talking, messages=said(call), tools=TOOLS).json()["content"][0]["input"]["days"] == float(many)
    odd = '<tool_call>{"name": "weather", "arguments": {"city": }}</tool_call>'
    assert post(talking, messages=said(odd), tools=TOOLS).json()["content"][0]["input"] == {}


def test_no_tokens_at_all_may_be_asked_for_so_that_a_prompt_is_cached(talking: Running) -> None:
    body = post(talking, messages=said("warm this up, it is long enough for a block"), max_tokens=0).json()
    assert (body["content"], body["usage"]["output_tokens"]) == ([], 0)
    again = post(talking, messages=said("warm this up, it is long enough for a block"), max_tokens=1).json()
    assert again["usage"]["cache_read_input_tokens"] > 0


def test_usage_tells_cached_tokens_apart_and_they_add_up(api: anthropic.Anthropic, talking: Running) -> None:
    text = "a conversation that nobody else has had before"
    first = api.messages.create(model=MODEL, max_tokens=4, messages=said(text)).usage
    second = api.messages.create(model=MODEL, max_tokens=4, messages=said(text)).usage
    assert (first.cache_read_input_tokens, first.cache_creation_input_tokens) == (0, 0)
    assert second.cache_read_input_tokens and second.cache_read_input_tokens % 16 == 0
    assert second.input_tokens + second.cache_read_input_tokens == first.input_tokens
    assert first.input_tokens == len(talking.loop.seen[-1].prompt)


def test_the_next_turn_finds_all_of_the_last_one_in_the_cache(talking: Running) -> None:
    """The answer goes back as it came, and what was rendered before is rendered so again."""
    system = [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}]
    messages = said("a first question that is as long as some blocks")
    prompts = []
    for _ in range(3):
        answer = post(talking, system=system, messages=messages, thinking=THINKING).json()
        prompts.append(talking.loop.seen[-1].prompt)
        usage = answer["usage"]
        assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(prompts[-1])
        if len(prompts) > 1:
            kept = len(prompts[-2]) - 2  # all but the marks of a thought, which open the answer
            assert usage["cache_read_input_tokens"] == kept // 16 * 16
        messages = [*messages, {"role": "assistant", "content": answer["content"]}, *said("and a next one, no shorter")]


def test_a_conversation_has_the_prompt_that_it_has_as_a_chat(talking: Running) -> None:
    thinking = {"chat_template_kwargs": {"thinking": True}}
    blocks: list[Any] = [
        *said("what is the weather?"),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "let me see", "signature": "s"},
                {"type": "redacted_thinking", "data": "xyz"},
                {"type": "text", "text": "I look it up."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": ARGUMENTS},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "sunny"}]},
                {"type": "text", "text": "and "},
                {"type": "text", "text": "tomorrow?", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            ],
        },
    ]
    function = {"name": "weather", "arguments": json.dumps(ARGUMENTS)}
    chat: list[Any] = [
        {"role": "system", "content": "be brief"},
        *said("what is the weather?"),
        {
            "role": "assistant",
            "content": "I look it up.",
            "reasoning_content": "let me see",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "sunny"},
        *said("and tomorrow?"),
    ]
    tool = TOOLS[0]
    tools = [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["input_schema"],
            },
        }
    ]
    assert post(talking, messages=blocks, system="be brief", tools=TOOLS, **thinking).status_code == 200
    assert post(talking, "/v1/chat/completions", messages=chat, tools=tools, **thinking).status_code == 200
    one, other = talking.loop.seen[-2:]
    assert one.prompt.tolist() == other.prompt.tolist()
    assert one.params.max_tokens == other.params.max_tokens


def test_an_answer_goes_on_with_a_last_message_that_is_its_own(talking: Running, talker: Tokenizer) -> None:
    messages = [*said("count"), {"role": "assistant", "content": "one, two"}]
    assert post(talking, messages=messages, max_tokens=1).status_code == 200
    assert prompt_of(talking, talker).endswith("one, two")


def test_prompts_can_be_counted(api: anthropic.Anthropic, talking: Running) -> None:
    asked: Any = {"messages": said("how long is this"), "system": "be brief", "tools": TOOLS}
    counted = api.messages.count_tokens(model=MODEL, **asked).input_tokens
    api.messages.create(model=MODEL, max_tokens=1, **asked)
    assert counted == len(talking.loop.seen[-1].prompt)
    assert api.messages.count_tokens(model=MODEL, messages=said("x " * CONTEXT)).input_tokens > CONTEXT


class Town(BaseModel):
    name: str


def test_answers_can_be_held_to_a_schema(api: anthropic.Anthropic, talking: Running) -> None:
    parsed = api.messages.parse(model=MODEL, max_tokens=40, messages=said('{"name": "Ulm"}'), output_format=Town)
    assert parsed.parsed_output == Town(name="Ulm")
    assert "name" in talking.loop.seen[-1].params.grammar


def test_forced_calls_are_a_grammar(talking: Running) -> None:
    assert post(talking, tools=TOOLS, tool_choice={"type": "any"}).status_code == 200
    assert "weather" in talking.loop.seen[-1].params.grammar
    assert post(talking, tools=TOOLS, tool_choice={"type": "tool", "name": "weather"}).status_code == 200
    assert "weather" in talking.loop.seen[-1].params.grammar
    assert post(talking, tools=TOOLS, tool_choice={"type": "none"}).status_code == 200
    assert talking.loop.seen[-1].params.grammar == "" and talking.loop.seen[-1].params.logit_bias
    body = post(
        talking,
        tools=TOOLS,
        messages=said(f"{CALL}\n{CALL}"),
        tool_choice={"type": "auto", "disable_parallel_tool_use": True},
    ).json()
    assert [block["type"] for block in body["content"]] == ["tool_use"]


def test_sampling_and_fields_of_chats_reach_the_engine(talking: Running) -> None:
    post(talking, temperature=0.5, top_p=0.9, top_k=7, seed=11, cache_salt="s", read_cache=False)
    request = talking.loop.seen[-1]
    assert (request.params.temperature, request.params.top_p, request.params.top_k) == (0.5, 0.9, 7)
    assert (request.params.seed, request.salt, request.read_cache) == (11, "s", False)


def test_whoever_asks_is_a_hint_unless_a_session_is_named(talking: Running) -> None:
    post(talking, metadata={"user_id": "u" * 300})
    assert talking.loop.seen[-1].session == "u" * 256
    body = {"max_tokens": 1, "messages": said("x"), "metadata": {"user_id": "u"}}
    httpx.post(talking.url + "/v1/messages", json=body, headers={"x-session-id": "mine"})
    assert talking.loop.seen[-1].session == "mine"


@pytest.mark.parametrize(
    "fields",
    [
        {"system": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        {"cache_control": {"type": "ephemeral", "ttl": "1h"}, "tools": [{**TOOLS[0], "cache_control": {}}]},
        {"messages": said([{"type": "text", "text": "x", "cache_control": {"ttl": "5m"}}])},
    ],
)
def test_marks_are_accepted_and_change_nothing(talking: Running, fields: dict[str, Any]) -> None:
    assert post(talking, **fields).status_code == 200
    marked = talking.loop.seen[-1]
    assert post(talking, **without_marks(fields)).status_code == 200
    plain = talking.loop.seen[-1]
    assert marked.prompt.tolist() == plain.prompt.tolist()
    for name in ("salt", "read_cache", "write_cache", "session", "priority", "places"):
        assert getattr(marked, name) == getattr(plain, name), name


def without_marks(value: Any) -> Any:
    """The same without any `cache_control`."""
    if isinstance(value, dict):
        return {name: without_marks(inner) for name, inner in value.items() if name != "cache_control"}
    return [without_marks(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("mark", [5, "x", {"ttl": "2h"}, {"ttl": 5}])
def test_marks_that_nobody_knows_are_refused(talking: Running, mark: Any) -> None:
    response = post(talking, messages=said([{"type": "text", "text": "x", "cache_control": mark}]))
    assert response.status_code == 400 and "messages.0.content.0.cache_control" in response.json()["error"]["message"]


def test_errors_have_the_shape_of_this_api(talking: Running, api: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
        api.messages.create(model=MODEL, max_tokens=-1, messages=said("x"))
    with pytest.raises(anthropic.NotFoundError):
        api.messages.create(model="other", max_tokens=1, messages=said("x"))
    for response, status, kind in (
        (post(talking, messages=[]), 400, "invalid_request_error"),
        (httpx.get(talking.url + "/v1/messages"), 405, "invalid_request_error"),
        (httpx.post(talking.url + "/v1/messages/nothing", json={}), 404, "not_found_error"),
    ):
        assert response.status_code == status
        assert response.json()["type"] == "error" and response.json()["error"]["type"] == kind
        assert set(response.json()["error"]) == {"type", "message"}


def test_a_fault_within_a_stream_is_its_last_event(talker: Tokenizer) -> None:
    with running(talker, patience=Patience(whole=0.3)) as server:
        server.loop.gate.clear()
        (event,) = events_of(post(server, stream=True))
        assert event[0] == "error" and event[1]["error"]["type"] == "timeout_error"
        api = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
        with (
            pytest.raises(anthropic.APIStatusError, match="request-timeout"),
            api.messages.stream(model=MODEL, max_tokens=1, messages=said("x")) as stream,
        ):
            stream.until_done()


def test_keys_come_in_either_header(talker: Tokenizer) -> None:
    with running(talker, keys=Keys(["key-number-1"])) as server:
        for client in (
            anthropic.Anthropic(base_url=server.url, api_key="key-number-1", max_retries=0),
            anthropic.Anthropic(base_url=server.url, auth_token="key-number-1", max_retries=0),
        ):
            assert client.messages.create(model=MODEL, max_tokens=1, messages=said("x")).role == "assistant"
        wrong = anthropic.Anthropic(base_url=server.url, api_key="key-number-2", max_retries=0)
        with pytest.raises(anthropic.AuthenticationError):
            wrong.messages.create(model=MODEL, max_tokens=1, messages=said("x"))


def test_the_answers_headers_say_how_it_was_resumed(talking: Running) -> None:
    response = post(talking, max_tokens=1)
    assert "x-stepwell-resume" in response.headers
    assert response.headers["request-id"] == response.headers["x-request-id"] == response.json()["id"]
