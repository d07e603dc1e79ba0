"""The Responses API over real HTTP, by the client that is written for it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.http.keys import Keys
from stepwell.server.http.parts import Limits
from tests.engine.scripted import CONTEXT
from tests.server.harness import MODEL, Running, eventually, running
from tests.server.templates import talking_tokenizer

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
TOOLS: list[Any] = [
    {
        "type": "function",
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": PARAMETERS,
        "strict": False,
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>'
ARGUMENTS = {"city": "Zürich", "days": 2}
THINKS: Any = {"chat_template_kwargs": {"thinking": True}}


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return talking_tokenizer(tmp_path_factory.mktemp("talker"))


@pytest.fixture(scope="module")
def talking(talker: Tokenizer) -> Iterator[Running]:
    with running(talker) as server:
        yield server


@pytest.fixture(scope="module")
def api(talking: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=talking.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def post(server: Running, path: str = "/v1/responses", **fields: Any) -> httpx.Response:
    return httpx.post(server.url + path, json={"input": "hello", **fields}, timeout=20)


def prompt_of(server: Running, talker: Tokenizer) -> str:
    return talker.decode(server.loop.seen[-1].prompt.tolist())


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    found = []
    for event in response.text.split("\n\n")[:-1]:
        kind, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert kind == f"event: {found[-1]['type']}"
    return found


def without_names(value: Any) -> Any:
    """A value without ids, and without what the client adds when it parses."""
    if isinstance(value, list):
        return [without_names(item) for item in value]
    if not isinstance(value, dict):
        return value
    added = ("id", "call_id", "parsed", "parsed_arguments")
    return {name: without_names(item) for name, item in value.items() if name not in added}


def test_an_answer_is_a_row_of_items(api: openai.OpenAI) -> None:
    response = api.responses.create(
        model=MODEL, input=f"hm</think>I look it up.\n{CALL}\n{CALL}", tools=TOOLS, extra_body=THINKS
    )
    thought, text, first, second = response.output
    assert thought.type == "reasoning" and thought.content is not None and thought.content[0].text == "hm"
    assert text.type == "message" and response.output_text == "I look it up."
    assert first.type == second.type == "function_call"
    assert json.loads(first.arguments) == json.loads(second.arguments) == ARGUMENTS
    assert first.name == "weather" and first.call_id != second.call_id
    assert (response.status, response.error, response.incomplete_details) == ("completed", None, None)
    assert len({item.id for item in response.output}) == 4
    assert response.tools[0].to_dict() == TOOLS[0] and response.tool_choice == "auto"


def test_a_stream_adds_up_to_the_whole_answer(api: openai.OpenAI, talking: Running) -> None:
    asked: Any = {
        "model": MODEL,
        "input": f"hm</think>I look it up.\n{CALL}\n{CALL}",
        "tools": TOOLS,
        "extra_body": THINKS,
    }
    whole = api.responses.create(**asked)
    with api.responses.stream(**asked) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_response()
    assert [without_names(item.to_dict()) for item in streamed.output] == [
        without_names(item.to_dict()) for item in whole.output
    ]
    assert streamed.usage is not None and whole.usage is not None
    assert streamed.usage.output_tokens == whole.usage.output_tokens
    assert eventually(lambda: talking.client.open == 0)


def test_events_come_in_the_order_that_clients_expect(talking: Running) -> None:
    events = events_of(post(talking, input=f"so</think>yes {CALL}", stream=True, tools=TOOLS, **THINKS))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind] == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta"),
        *("reasoning_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done"),
        "completed",
    ]
    first, last = events[0]["response"], events[-1]["response"]
    assert (first["status"], first["output"], first["usage"]) == ("in_progress", [], None)
    assert (last["status"], last["id"]) == ("completed", first["id"])
    assert [event["item"] for event in events if event["type"] == "response.output_item.done"] == last["output"]
    ids = [item["id"] for item in last["output"]]
    for event in events:
        if "item_id" in event:
            assert event["item_id"] == ids[event["output_index"]]
    used = last["usage"]
    assert 0 < used["output_tokens_details"]["reasoning_tokens"] < used["output_tokens"]


def test_thoughts_are_the_summary_where_one_is_asked_for(talking: Running) -> None:
    asked: Any = {"input": "so it is</think>yes", "reasoning": {"summary": "auto"}, **THINKS}
    thought = post(talking, **asked).json()["output"][0]
    assert thought["summary"] == [{"type": "summary_text", "text": "so it is"}] and "content" not in thought
    kinds = {event["type"] for event in events_of(post(talking, stream=True, **asked))}
    part = "response.reasoning_summary_part"
    assert {f"{part}.added", "response.reasoning_summary_text.delta", f"{part}.done"} <= kinds
    assert not {"response.reasoning_text.delta"} & kinds


def test_the_async_client_reads_many_answers_at_once(talking: Running) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=talking.url + "/v1", api_key="none", max_retries=0) as api:

            async def one(i: int) -> str:
                async with api.responses.stream(model=MODEL, input=f"number {i}") as stream:
                    return (await stream.get_final_response()).output_text

            return await asyncio.gather(*map(one, range(8)))

    assert asyncio.run(ask()) == [f"number {i}" for i in range(8)]


class Town(BaseModel):
    name: str


def test_answers_can_be_held_to_a_schema(api: openai.OpenAI, talking: Running) -> None:
    parsed = api.responses.parse(model=MODEL, input='{"name": "Ulm"}', text_format=Town)
    assert parsed.output_parsed == Town(name="Ulm")
    assert "name" in talking.loop.seen[-1].params.grammar
    for given, grammar in (({"type": "json_object"}, True), ({"type": "text"}, False)):
        assert post(talking, text={"format": given}).json()["text"] == {"format": given}
        assert bool(talking.loop.seen[-1].params.grammar) == grammar


def test_forced_calls_are_a_grammar(talking: Running) -> None:
    for choice in ("required", {"type": "function", "name": "weather"}):
        assert post(talking, tools=TOOLS, tool_choice=choice).status_code == 200
        assert "weather" in talking.loop.seen[-1].params.grammar
    output = post(talking, tools=TOOLS, input=f"{CALL}\n{CALL}", parallel_tool_calls=False).json()["output"]
    assert [item["type"] for item in output] == ["function_call"]


def test_an_answer_that_is_cut_off_is_incomplete(talking: Running, talker: Tokenizer) -> None:
    cut = len(talker.encode(CALL)) - 12
    asked: Any = {"input": CALL, "tools": TOOLS, "max_output_tokens": cut}
    whole, last = post(talking, **asked).json(), events_of(post(talking, stream=True, **asked))[-1]
    assert last["type"] == "response.incomplete"
    for response in (whole, last["response"]):
        assert response["status"] == response["output"][-1]["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        assert response["usage"]["output_tokens"] == cut


def test_usage_has_the_cached_tokens_and_where_they_lay(talking: Running) -> None:
    text = "a conversation that nobody else has had before"
    first, second = (post(talking, input=text).json()["usage"] for _ in range(2))
    details = second["input_tokens_details"]
    assert first["input_tokens_details"]["cached_tokens"] == 0 < details["cached_tokens"]
    assert details["cached_tokens"] == details["device_tokens"] + details["host_tokens"] + details["disk_tokens"]
    assert first["input_tokens"] == second["input_tokens"] == len(talking.loop.seen[-1].prompt)
    assert second["total_tokens"] == second["input_tokens"] + second["output_tokens"]


def test_a_conversation_has_the_prompt_that_it_has_as_a_chat(talking: Running) -> None:
    items: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "and kind"}]},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "what is "}, {"type": "input_text", "text": "it?"}],
        },
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "let me see"}],
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I look it up.", "annotations": []}],
        },
        {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": json.dumps(ARGUMENTS)},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        {"type": "message", "role": "user", "content": "and tomorrow?"},
    ]
    function = {"name": "weather", "arguments": json.dumps(ARGUMENTS)}
    chat: list[Any] = [
        {"role": "system", "content": "be brief\n\nand kind"},
        {"role": "user", "content": "what is it?"},
        {
            "role": "assistant",
            "content": "I look it up.",
            "reasoning_content": "let me see",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "user", "content": "and tomorrow?"},
    ]
    tool = {name: TOOLS[0][name] for name in ("name", "description", "parameters")}
    assert post(talking, input=items, instructions="be brief", tools=TOOLS).status_code == 200
    body = {"messages": chat, "tools": [{"type": "function", "function": tool}]}
    assert httpx.post(talking.url + "/v1/chat/completions", json=body).status_code == 200
    one, other = talking.loop.seen[-2:]
    assert one.prompt.tolist() == other.prompt.tolist()


def test_a_response_can_be_continued_as_if_all_of_it_were_sent_again(
    api: openai.OpenAI, talking: Running, talker: Tokenizer
) -> None:
    asked: Any = {"model": MODEL, "instructions": "be brief", "extra_body": THINKS}
    first = api.responses.create(input="hm, a question</think>a reply to it", **asked)
    prompt = talking.loop.seen[-1].prompt
    second = api.responses.create(input="and a next one", previous_response_id=first.id, **asked)
    continued = talking.loop.seen[-1].prompt
    items: Any = [
        {"role": "user", "content": "hm, a question</think>a reply to it"},
        *[item.to_dict() for item in first.output],
        {"role": "user", "content": "and a next one"},
    ]
    api.responses.create(input=items, **asked)
    assert continued.tolist() == talking.loop.seen[-1].prompt.tolist()
    assert second.previous_response_id == first.id and second.usage is not None
    kept = len(prompt) - 2  # all but the marks of a thought, which open the answer
    assert second.usage.input_tokens_details.cached_tokens == kept // 16 * 16
    third = api.responses.create(input="x", previous_response_id=second.id, model=MODEL)
    assert prompt_of(talking, talker).startswith("hm, a question"), "instructions are not carried over"
    assert third.instructions is None


def test_responses_can_be_looked_at_and_deleted(api: openai.OpenAI) -> None:
    made = api.responses.create(model=MODEL, input="keep this", metadata={"a": "b"})
    assert api.responses.retrieve(made.id).to_dict() == made.to_dict()
    assert api.responses.retrieve(made.id).metadata == {"a": "b"}
    api.responses.delete(made.id)
    for call in (api.responses.retrieve, api.responses.delete):
        with pytest.raises(openai.NotFoundError, match="response-store"):
            call(made.id)
    with pytest.raises(openai.NotFoundError, match="whole conversation") as fault:
        api.responses.create(model=MODEL, input="go on", previous_response_id=made.id)
    assert (fault.value.param, fault.value.code) == ("previous_response_id", "previous_response_not_found")


def test_streamed_responses_are_kept_too_and_others_only_if_they_may(api: openai.OpenAI, talking: Running) -> None:
    last = events_of(post(talking, stream=True))[-1]["response"]
    assert api.responses.retrieve(last["id"]).to_dict() == last
    for stream in (False, True):
        answer = post(talking, store=False, stream=stream)
        name = events_of(answer)[-1]["response"]["id"] if stream else answer.json()["id"]
        with pytest.raises(openai.NotFoundError):
            api.responses.retrieve(name)


def test_each_key_has_its_own_responses_and_the_store_has_a_bound(talker: Tokenizer) -> None:
    limits = Limits(response_bytes=2_500)
    with running(talker, limits, keys=Keys(["key-number-1", "key-number-2"])) as server:
        mine, theirs = (
            openai.OpenAI(base_url=server.url + "/v1", api_key=key, max_retries=0)
            for key in ("key-number-1", "key-number-2")
        )
        first = mine.responses.create(model=MODEL, input="x")
        with pytest.raises(openai.NotFoundError):
            theirs.responses.retrieve(first.id)
        for _ in range(4):
            last = mine.responses.create(model=MODEL, input="x")
        assert mine.responses.retrieve(last.id).id == last.id
        with pytest.raises(openai.NotFoundError):
            mine.responses.retrieve(first.id)


def test_sampling_sessions_and_fields_of_chats_reach_the_engine(talking: Running) -> None:
    post(talking, temperature=0.5, top_p=0.9, top_k=7, seed=11, stop="x", cache_salt="s", prompt_cache_key="k" * 300)
    request = talking.loop.seen[-1]
    assert (request.params.temperature, request.params.top_p, request.params.top_k) == (0.5, 0.9, 7)
    assert (request.params.seed, request.salt, request.session) == (11, "s", "k" * 256)
    post(talking, prompt_cache_key="k", session_id="mine")
    assert talking.loop.seen[-1].session == "mine"


def test_what_cannot_be_repeated_is_refused_before_there_is_an_answer(talking: Running) -> None:
    deep: Any = {}
    for _ in range(140):
        deep = {"properties": {"x": deep}}
    before = len(talking.loop.seen)
    response = post(talking, tools=[{"type": "function", "name": "f", "parameters": deep}])
    assert response.status_code == 400 and response.json()["error"]["param"] == "tools"
    assert len(talking.loop.seen) == before


def test_faults_of_the_chat_have_the_names_of_this_api(talking: Running) -> None:
    long = post(talking, input="x " * CONTEXT).json()["error"]
    assert long["param"] == "input" and "your input resulted in" in long["message"]
    assert long["code"] == "context_length_exceeded"
    form = {"type": "json_schema", "name": "n", "schema": {"type": "thing"}}
    wrong = post(talking, text={"format": form}).json()["error"]
    assert wrong["param"].startswith("text.format")


def test_a_day_in_the_cache_may_be_asked_for(talking: Running) -> None:
    """It is accepted and changes nothing: everything is cached for as long as it is used."""
    for retention in (None, "in_memory", "24h"):
        assert post(talking, prompt_cache_retention=retention).status_code == 200
