"""Chats with tools and thoughts over real HTTP, as clients see them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from stepwell.engine.text.tokenizer import Tokenizer
from tests.server.harness import MODEL, Running, eventually, running
from tests.server.templates import talking_tokenizer

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Tells the weather.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich", "days": 2}}\n</tool_call>'
TAGGED = (
    "<tool_call>\n<function=weather>\n<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>"
)
ARGUMENTS = {"city": "Zürich", "days": 2}


@pytest.fixture(scope="module")
def talker(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return talking_tokenizer(tmp_path_factory.mktemp("talker"))


@pytest.fixture(scope="module")
def talking(talker: Tokenizer) -> Iterator[Running]:
    with running(talker) as server:
        yield server


def ask(server: Running, say: str, **fields: Any) -> dict[str, Any]:
    """The first choice of an answer that says `say`."""
    body = {"messages": [{"role": "user", "content": say}], **fields}
    response = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=20)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


def ask_in_pieces(server: Running, say: str, **fields: Any) -> dict[str, Any]:
    """The same, put together from a stream by the rules that OpenAI's API gives for it."""
    body = {"messages": [{"role": "user", "content": say}], "stream": True, **fields}
    text = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=20).text
    chunks = [json.loads(line.removeprefix("data: ")) for line in text.split("\n\n")[:-2]]
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "reasoning": ""}
    calls: list[dict[str, Any]] = []
    for chunk in chunks:
        delta = chunk["choices"][0]["delta"]
        for name in message:
            message[name] += delta.get(name, "")
        for part in delta.get("tool_calls", []):
            if part["index"] == len(calls):
                calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
    if calls:
        message["tool_calls"] = calls
    return {"message": message, "finish_reason": chunks[-1]["choices"][0]["finish_reason"]}


def calls_of(choice: dict[str, Any]) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in choice["message"].get("tool_calls", [])
    ]


@pytest.mark.parametrize("asked", [ask, ask_in_pieces])
def test_calls_come_as_calls_with_ids_of_their_own(talking: Running, asked: Any) -> None:
    choice = asked(talking, f"I look it up.\n{CALL}\n{CALL}", tools=TOOLS)
    assert choice["message"]["content"] == "I look it up."
    assert calls_of(choice) == [("weather", ARGUMENTS)] * 2
    assert len({call["id"] for call in choice["message"]["tool_calls"]}) == 2
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize("asked", [ask, ask_in_pieces])
def test_one_call_is_the_end_where_parallel_calls_are_not_wanted(talking: Running, asked: Any) -> None:
    choice = asked(talking, f"{CALL}\n{CALL} and more", tools=TOOLS, parallel_tool_calls=False)
    assert calls_of(choice) == [("weather", ARGUMENTS)]
    assert choice["finish_reason"] == "tool_calls"
    assert eventually(lambda: talking.client.open == 0 and not talking.loop.busy)


def test_message_with_calls_alone_has_no_content(talking: Running) -> None:
    assert ask(talking, CALL, tools=TOOLS)["message"]["content"] is None


def test_answer_without_a_call_does_not_end_with_calls(talking: Running) -> None:
    for say in ("plain words", "<tool_call>{not one</tool_call>", "<tool_call>"):
        choice = ask(talking, say, tools=TOOLS)
        assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
        assert choice["message"]["content"] == say


def test_answer_cut_within_a_call_ends_by_length(talking: Running, talker: Tokenizer) -> None:
    choice = ask(talking, CALL, tools=TOOLS, max_tokens=len(talker.encode(CALL)) - 12)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "weather"


def test_calls_are_text_where_no_tools_are_given_or_none_is_to_be_called(talking: Running, talker: Tokenizer) -> None:
    assert ask(talking, CALL)["message"]["content"] == CALL
    assert talking.loop.seen[-1].params.logit_bias == ()
    assert ask(talking, CALL, tools=TOOLS, tool_choice="none")["message"]["content"] == CALL
    banned = dict(talking.loop.seen[-1].params.logit_bias)
    assert banned == {talker.token_id("<tool_call>"): float("-inf")}


def test_tools_are_shown_by_the_template_whatever_the_choice(talking: Running, talker: Tokenizer) -> None:
    for choice in ("auto", "none", "required"):
        ask(talking, "x", tools=TOOLS, tool_choice=choice)
        assert "Tells the weather." in talker.decode(talking.loop.seen[-1].prompt.tolist())
    body = {"messages": [{"role": "user", "content": "x"}], "tools": TOOLS}
    counted = httpx.post(talking.url + "/tokenize", json=body).json()["tokens"]
    assert counted == talking.loop.seen[-1].prompt.tolist()


def test_forced_calls_are_a_grammar_and_a_named_tool_is_the_only_one(talking: Running) -> None:
    other = {"type": "function", "function": {"name": "other"}}
    ask(talking, "x", tools=[*TOOLS, other], tool_choice="required")
    assert "weather" in talking.loop.seen[-1].params.grammar and "other" in talking.loop.seen[-1].params.grammar
    ask(talking, "x", tools=[*TOOLS, other], tool_choice={"type": "function", "function": {"name": "other"}})
    assert "weather" not in talking.loop.seen[-1].params.grammar
    ask(talking, "x", tools=TOOLS)
    assert talking.loop.seen[-1].params.grammar == ""


@pytest.mark.parametrize("asked", [ask, ask_in_pieces])
def test_thoughts_come_apart_from_the_answer(talking: Running, asked: Any) -> None:
    thinking = {"chat_template_kwargs": {"thinking": True}}
    choice = asked(talking, f"so\nit is\n</think>\n\nyes.\n\n{CALL}", tools=TOOLS, **thinking)
    assert choice["message"]["reasoning_content"] == choice["message"]["reasoning"] == "so\nit is"
    assert choice["message"]["content"] == "yes."
    assert calls_of(choice) == [("weather", ARGUMENTS)]
    choice = asked(talking, "no end to it", **thinking)
    assert (choice["message"]["reasoning_content"], choice["message"]["content"]) == ("no end to it", "")
    assert choice["finish_reason"] == "stop"


def test_answer_that_is_all_thought_is_counted_as_empty(talking: Running) -> None:
    def empty() -> float:
        lines = httpx.get(talking.url + "/metrics").text.splitlines()
        return float(next(line for line in lines if line.startswith("stepwell_empty_completions_total ")).split()[1])

    before = empty()
    ask(talking, "only thoughts", chat_template_kwargs={"thinking": True})
    assert empty() == before + 1
    ask(talking, CALL, tools=TOOLS)
    assert empty() == before + 1


def test_grammar_begins_behind_the_thought_that_the_prompt_opens(talking: Running, talker: Tokenizer) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
    ask(talking, "x", response_format=schema, chat_template_kwargs={"thinking": True})
    assert talking.loop.seen[-1].params.grammar_after == talker.token_id("</think>")
    ask(talking, "x", response_format=schema)
    assert talking.loop.seen[-1].params.grammar_after is None


def test_earlier_calls_results_and_thoughts_reach_the_template(talking: Running) -> None:
    messages = [
        {"role": "developer", "content": "be brief"},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}],
        },
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "sunny"}]},
        {"role": "assistant", "content": "x", "tool_calls": [{"function": {"name": "g", "arguments": ""}}]},
        {"role": "assistant", "content": "y", "tool_calls": [{"function": {"name": "h", "arguments": "{broken"}}]},
    ]
    tokens = httpx.post(talking.url + "/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    text = httpx.post(talking.url + "/detokenize", json={"tokens": tokens["tokens"]}).json()["prompt"]
    assert text == 'be briefsystem[hm](f{"a": [1]})assistantsunnytoolx(g{})assistanty(h{"input": "{broken"})assistant'


def test_tagged_calls_take_their_types_from_the_tools(tmp_path_factory: pytest.TempPathFactory) -> None:
    with running(talking_tokenizer(tmp_path_factory.mktemp("tagged"), tagged=True)) as server:
        for asked in (ask, ask_in_pieces):
            choice = asked(server, f"{TAGGED}\n{TAGGED}", tools=TOOLS)
            assert calls_of(choice) == [("weather", ARGUMENTS)] * 2
        ask(server, "x", tools=TOOLS, tool_choice="required")
        assert "<function=weather>" in server.loop.seen[-1].params.grammar


def test_openai_client_reads_calls_whole_and_streamed(talking: Running) -> None:
    api = openai.OpenAI(base_url=talking.url + "/v1", api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": f"Well.\n{CALL}"}]
    whole = api.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content == "Well."
    call = whole.message.tool_calls[0] if whole.message.tool_calls else None
    assert call is not None and call.type == "function" and json.loads(call.function.arguments) == ARGUMENTS
    with api.chat.completions.stream(model=MODEL, messages=messages, tools=TOOLS) as stream:
        final = stream.get_final_completion().choices[0]
    assert final.message.tool_calls is not None and len(final.message.tool_calls) == 1
    assert json.loads(final.message.tool_calls[0].function.arguments) == ARGUMENTS
    assert final.message.content == "Well." and final.finish_reason == "tool_calls"
