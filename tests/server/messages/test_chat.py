"""What a call of the Messages API becomes as a chat, and which of its faults are named how."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from stepwell.base.errors import RequestError
from stepwell.server.messages.chat import chat_fields
from stepwell.server.messages.schema import MessagesCall
from stepwell.server.read import schema
from stepwell.server.read.hosted import LeftOut

USER = {"role": "user", "content": "hello"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def chat(**fields: Any) -> dict[str, Any]:
    call, _ = schema.parse(MessagesCall, {"max_tokens": 5, "messages": [USER], **fields})
    return chat_fields(call, LeftOut())


@pytest.mark.parametrize(
    ("thinking", "thinks"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "enabled", "budget_tokens": 2048}, True),
        ({"type": "adaptive"}, True),
    ],
)
def test_a_model_thinks_only_if_it_is_asked_to(thinking: Any, thinks: bool) -> None:
    assert chat(thinking=thinking)["chat_template_kwargs"] == {"enable_thinking": thinks}
    own = {"enable_thinking": not thinks, "x": 1}
    assert chat(thinking=thinking, chat_template_kwargs=own)["chat_template_kwargs"] == own


def test_instructions_are_one_message_in_front() -> None:
    system = [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]
    for given in ("be brief", system):
        assert chat(system=given)["messages"] == [{"role": "system", "content": "be brief"}, USER]
    later = {"role": "system", "content": "and kind"}
    assert chat(system="be brief", messages=[later, USER, later])["messages"] == [
        {"role": "system", "content": [{"type": "text", "text": "be brief\n\n"}, {"type": "text", "text": "and kind"}]},
        USER,
        later,
    ]
    assert chat()["messages"] == [USER]


def test_what_changes_with_every_call_does_not_stand_before_the_prompt() -> None:
    def messages(number: int) -> Any:
        billing = {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2; cch={number};"}
        return chat(system=[billing, {"type": "text", "text": "be brief"}])["messages"]

    assert messages(1) == messages(2) == [{"role": "system", "content": "be brief"}, USER]


def test_results_and_text_of_one_message_keep_their_order() -> None:
    content = [
        {"type": "tool_result", "tool_use_id": "a", "content": "1", "is_error": False},
        {"type": "tool_result", "tool_use_id": "b", "is_error": True},
        {"type": "text", "text": "go "},
        {"type": "text", "text": "on"},
    ]
    assert chat(messages=[{"role": "user", "content": content}])["messages"] == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "", "is_error": True},
        {"role": "user", "content": "go on"},
    ]


def test_the_answer_continues_text_alone() -> None:
    def continues(content: Any) -> bool:
        return bool(chat(messages=[USER, {"role": "assistant", "content": content}])["continue_final_message"])

    assert continues("one") and continues([{"type": "text", "text": "one"}])
    assert not continues("") and not continues([{"type": "tool_use", "id": "t", "name": "f", "input": {}}])
    assert not chat()["continue_final_message"]


def test_tools_of_the_provider_are_left_out_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    left_out = LeftOut()
    call, _ = schema.parse(
        MessagesCall,
        {"max_tokens": 5, "messages": [USER], "tools": [{"type": "web_search_20250305", "name": "web_search"}, TOOL]},
    )
    with caplog.at_level(logging.WARNING, "stepwell"):
        for _ in range(2):
            tools = chat_fields(call, left_out)["tools"]
    assert [tool["function"]["name"] for tool in tools] == ["f"]
    assert len([r for r in caplog.records if "web_search_20250305" in r.getMessage()]) == 1


WRONG: list[tuple[str, list[Any]]] = [
    ("max_tokens", [None, -1, "5", 1.5, 2**31, True, []]),
    ("messages", [None, [], "x", {}, [None], ["x"]]),
    ("messages.0.role", [[{"content": "x"}], [{"role": "tool", "content": "x"}], [{"role": 5, "content": "x"}]]),
    (
        "messages.0.content",
        [[{"role": role, "content": content}] for role in ("user", "assistant") for content in (None, [], 5, {})],
    ),
    (
        "messages.0.content.0",
        [
            [{"role": role, "content": [block]}]
            for role in ("user", "assistant")
            for block in (
                "x",
                None,
                {},
                {"text": "x"},
                {"type": [], "text": "x"},
            )
        ],
    ),
    (
        "messages.0.content.0.text",
        [[{"role": "user", "content": [{"type": "text", "text": text}]}] for text in (None, 5)],
    ),
    ("messages.0.content.0.thinking", [[{"role": "assistant", "content": [{"type": "thinking"}]}]]),
    ("messages.0.content.0.name", [[{"role": "assistant", "content": [{"type": "tool_use", "input": {}}]}]]),
    ("messages.0.content.0.tool_use_id", [[{"role": "user", "content": [{"type": "tool_result"}]}]]),
    (
        "messages.0.content.0.content.0",
        [[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": [{}]}]}]],
    ),
    (
        "messages.0.content.0.is_error",
        [[{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "is_error": 1}]}]],
    ),
    ("system", [5, {}]),
    ("system.0", [["x"], [{"type": "image"}]]),
    ("tools", [5, {}, ["x"]]),
    ("tools.0.input_schema", [[{"name": "f"}], [{"name": "f", "input_schema": []}], [{"type": "custom", "name": "f"}]]),
    (
        "tools.0.name",
        [[{"input_schema": {}}], [{"name": "a b", "input_schema": {}}], [{"name": 5, "input_schema": {}}]],
    ),
    ("tools.0.description", [[{"name": "f", "description": 5, "input_schema": {}}]]),
    ("tool_choice", [5, "auto"]),
    ("tool_choice.type", [{}, {"type": "required"}]),
    ("tool_choice.name", [{"type": "tool"}, {"type": "tool", "name": "g"}]),
    ("thinking", [5, True]),
    ("thinking.type", [{}, {"type": "on"}]),
    ("thinking.budget_tokens", [{"type": "enabled", "budget_tokens": 0}, {"type": "enabled", "budget_tokens": "1"}]),
    ("stop_sequences", ["x", ["x"] * 17]),
    ("stop_sequences.0", [[""], [5], ["x" * 2000]]),
    ("temperature", [-1, 3, "1"]),
    ("top_p", [0, 2]),
    ("top_k", [-2, 1.5]),
    ("metadata", [5]),
    ("metadata.user_id", [{"user_id": 5}]),
    ("stream", ["yes", 1]),
    ("output_config.format.type", [{"format": {"type": "xml", "schema": {}}}]),
    ("output_config.format.schema", [{"format": {"type": "json_schema"}}]),
]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "values"), WRONG, ids=[name for name, _ in WRONG])
def test_wrong_fields_are_named(name: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(RequestError) as fault:
            chat(**{name.partition(".")[0]: value})
        param = fault.value.param or ""
        assert param == name or (name == "messages" and param.startswith(name)) or param.startswith(f"{name}."), value
        assert name.partition(".")[0] in str(fault.value)
