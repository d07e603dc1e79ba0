"""What a call of the Responses API becomes as a chat, and which of its faults are named how."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from stepwell.base.errors import RequestError
from stepwell.server.read import schema
from stepwell.server.read.hosted import LeftOut
from stepwell.server.responses.chat import chat_fields
from stepwell.server.responses.schema import ResponsesCall
from stepwell.server.responses.tools import InputText, declarations, input_of
from stepwell.talk.items import chat_messages

USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}


def chat(**fields: Any) -> dict[str, Any]:
    call, _ = schema.parse(ResponsesCall, {"input": "hello", **fields})
    return chat_fields(call, [], chat_messages(call.input), declarations(call.tools or [], LeftOut()))


@pytest.mark.parametrize(
    ("reasoning", "effort"),
    [(None, None), ({"summary": "auto"}, None), ({"effort": "none"}, "none"), ({"effort": "high"}, "high")],
)
def test_effort_is_the_chat_s(reasoning: Any, effort: Any) -> None:
    assert chat(reasoning=reasoning)["reasoning_effort"] == effort


def test_instructions_and_what_developers_say_first_are_one_message() -> None:
    developer = {"role": "developer", "content": "and kind"}
    assert chat(input=[developer, USER, developer], instructions="be brief")["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "be brief\n\n"}, {"type": "text", "text": "and kind"}]},
        USER,
        developer,
    ]
    assert chat(input=[USER])["messages"] == [USER]


def test_what_the_model_wrote_in_one_go_is_one_message() -> None:
    def thought(text: str) -> dict[str, Any]:
        return {"type": "reasoning", "summary": [{"type": "summary_text", "text": text}]}

    def text(said: str) -> dict[str, Any]:
        return {"role": "assistant", "content": said}

    called = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    items = [
        thought("hm"),
        text("so"),
        CALL,
        CALL,
        text("then"),
        text("more"),
        thought("hm"),
        CALL,
        {"type": "reasoning"},
    ]
    assert chat(input=items)["messages"] == [
        {
            "role": "assistant",
            "content": "so\n\nthen\n\nmore",
            "reasoning_content": "hm",
            "tool_calls": [called, called],
        },
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [called]},
    ]


def test_tools_that_are_no_functions_are_left_out_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    left_out = LeftOut()
    call, _ = schema.parse(
        ResponsesCall, {"input": "x", "tools": [{"type": "web_search"}, TOOL, {"type": "web_search"}]}
    )
    with caplog.at_level(logging.WARNING, "stepwell"):
        tools = chat_fields(call, [], chat_messages("x"), declarations(call.tools or [], left_out))["tools"]
    assert tools == [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    assert len([r for r in caplog.records if "web_search" in r.getMessage()]) == 1


def one(**item: Any) -> list[Any]:
    return [item]


WRONG: list[tuple[str, list[Any]]] = [
    ("input", [None, 5, {}, []]),
    ("input.0", [["x"], [None]]),
    ("input.0.role", [[{}], one(role="tool", content="x"), one(type="message", content="x"), one(role=5, content="x")]),
    ("input.0.type", [one(type=kind) for kind in (5, None)]),
    ("input.0.content", [one(role="user"), one(role="user", content=5), one(role="assistant", content={})]),
    (
        "input.0.content.0",
        [one(role="user", content=[part]) for part in ("x", {}, {"type": {}})],
    ),
    ("input.0.content.0.text", [one(role="user", content=[{"type": "input_text"}])]),
    ("input.0.name", [one(type="function_call", call_id="c", arguments="{}")]),
    (
        "input.0.call_id",
        [one(type="function_call", name="f", arguments=""), one(type="function_call_output", output="")],
    ),
    (
        "input.0.output",
        [one(type="function_call_output", call_id="c"), one(type="function_call_output", call_id="c", output=5)],
    ),
    ("input.0.output.0", [one(type="function_call_output", call_id="c", output=[{}])]),
    ("input.0.content.0", [one(type="reasoning", content=[{"type": "output_text"}])]),
    ("input.0.summary", [one(type="reasoning", summary="x")]),
    ("instructions", [5, []]),
    ("previous_response_id", [5, "", "x" * 300]),
    ("store", ["yes", 1]),
    ("max_output_tokens", [0, -1, "5", 2**31]),
    ("temperature", [-1, 3]),
    ("top_p", [0, 2]),
    ("tools", [5, {}, ["x"]]),
    ("tools.0.type", [[{"name": "f"}], [{"type": 5}]]),
    ("tools.0.name", [[{"type": "function"}], [{"type": "function", "name": "a b"}]]),
    ("tools.0.parameters", [[{"type": "function", "name": "f", "parameters": []}]]),
    ("tool_choice", [5, [], {}, {"type": "web_search"}]),
    ("tool_choice.name", [{"type": "function"}, {"type": "function", "name": "g"}]),
    ("parallel_tool_calls", ["no", 1]),
    ("reasoning", [5]),
    ("reasoning.effort", [{"effort": "lots"}]),
    ("text.format", [{"format": 5}]),
    ("text.format.type", [{"format": {"type": "xml"}}, {"format": {}}]),
    ("text.format.schema", [{"format": {"type": "json_schema"}}, {"format": {"type": "json_schema", "schema": 5}}]),
    ("truncation", ["x"]),
    ("include", ["x", ["message.output_text.logprobs"]]),
    ("metadata", [5]),
    ("metadata.a", [{"a": 5}]),
    ("prompt_cache_key", [5]),
    ("background", [True]),
    ("conversation", ["conv_1"]),
    ("prompt", [{"id": "x"}]),
    ("top_logprobs", [3]),
    ("stream", ["yes", 1]),
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "values"), WRONG, ids=[name for name, _ in WRONG])
def test_wrong_fields_are_named(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(RequestError) as fault:
            chat(**{name.partition(".")[0]: value})
        param = fault.value.param or ""
        assert param == name or param.startswith(f"{name}."), (value, param)
        assert name.partition(".")[0] in str(fault.value)


NAMESPACE = {
    "type": "namespace",
    "name": "mcp__well",
    "description": "of wells",
    "tools": [{**TOOL, "name": "depth"}, {"type": "web_search"}],
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Changes files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: line+"},
}


def test_tools_in_namespaces_and_those_that_take_text_are_functions_to_the_model() -> None:
    functions = [tool["function"] for tool in chat(tools=[TOOL, NAMESPACE, PATCH])["tools"]]
    assert [function["name"] for function in functions] == ["f", "mcp__well__depth", "apply_patch"]
    assert functions[2]["parameters"]["required"] == ["input"] and "start: line+" in functions[2]["description"]
    for choice, name in (("depth", "mcp__well__depth"), ("mcp__well__depth", "mcp__well__depth"), ("f", "f")):
        chosen = chat(tools=[TOOL, NAMESPACE], tool_choice={"type": "function", "name": choice})["tool_choice"]
        assert chosen["function"]["name"] == name
    chosen = chat(tools=[PATCH], tool_choice={"type": "custom", "name": "apply_patch"})["tool_choice"]
    assert chosen["function"]["name"] == "apply_patch"
    for wrong in ({**NAMESPACE, "tools": None}, {**NAMESPACE, "tools": ["x"]}, {**PATCH, "name": "a b"}):
        with pytest.raises(RequestError):
            chat(tools=[wrong])


def test_the_text_for_a_tool_is_all_that_there_is_of_it() -> None:
    for arguments, text in (
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"input": "a\\u00e9', "aé"),
        ("{}", "{}"),
        ('{"input": 5}', '{"input": 5}'),
        ("", ""),
    ):
        assert input_of(arguments) == text


def test_the_text_for_a_tool_comes_whole_however_its_arguments_are_cut() -> None:
    arguments = '{"input": "a \\"b\\" \\\\ \\n \\u00e9 z"}'
    pieces = re.findall(r"\\u....|\\.|.", arguments)
    for size in (1, 2, 3, 100):
        text = InputText()
        parts = [text.push("".join(pieces[i : i + size])) for i in range(0, len(pieces), size)]
        assert "".join(parts) == 'a "b" \\ \n é z'
