"""Whatever clients may legally send, and whatever has once been accepted, is rendered by a template that refuses much."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.base.errors import RequestError
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.prompt.dialect import Dialect
from stepwell.talk import blocks, items
from stepwell.talk.conversation import conversation
from stepwell.talk.order import Manners, led_by
from stepwell.testing.agents import write_agent_tokenizer

STRICT, LENIENT = Manners(), Manners(anywhere=True, without_user=True)
USER = {"role": "user", "content": "go"}
REMINDER = "<system-reminder>\nmind the gap\n</system-reminder>"
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
LEFT_OUT = "[image left out: this model reads text alone]"


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def called(*ids: str, arguments: Any = "{}", **more: Any) -> dict[str, Any]:
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": arguments}} for i in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls, **more}


def result(name: str, content: Any = "done") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": name, "content": content}


def shape(messages: Any, manners: Manners = STRICT) -> list[tuple[str, str]]:
    return [(m["role"], m["content"]) for m in conversation(messages, manners).messages]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    path: Path = tmp_path_factory.mktemp("strict")
    write_agent_tokenizer(path, 300, 4096)
    return Tokenizer.load(str(path))


def test_what_leads_is_one_message_and_what_comes_later_goes_into_its_neighbour() -> None:
    late = [
        system("a"),
        {"role": "developer", "content": "b"},
        USER,
        system("c"),
        called("1"),
        result("1"),
        system("d"),
    ]
    assert shape(late) == [
        ("system", "a\n\nb"),
        ("user", "go\n\n<system-reminder>\nc\n</system-reminder>"),
        ("assistant", ""),
        ("tool", "done\n\n<system-reminder>\nd\n</system-reminder>"),
    ]
    assert [role for role, _ in shape(late, LENIENT)] == [
        "system",
        "system",
        "user",
        "system",
        "assistant",
        "tool",
        "system",
    ]


def test_what_comes_behind_an_answer_goes_before_what_follows() -> None:
    said = {"role": "assistant", "content": "well"}
    tagged = "<system-reminder>\nx\n</system-reminder>"
    assert shape([USER, said, system("x"), USER])[2] == ("user", f"{tagged}\n\ngo")
    assert shape([USER, said, system("x")])[2] == ("user", tagged)
    assert shape([USER, called("1"), system("x"), result("1")])[2] == ("tool", f"{tagged}\n\ndone")
    assert shape([USER, said, system(REMINDER), said])[2] == ("user", REMINDER)


def test_a_reminder_behind_a_result_goes_inside_it_and_a_users_words_do_not() -> None:
    for behind in (REMINDER, f"{REMINDER}\n{REMINDER}\n", "<environment_details>\nx\n</environment_details>"):
        assert shape([USER, called("1"), result("1"), {"role": "user", "content": behind}])[2:] == [
            ("tool", f"done\n\n{behind}")
        ]
    for behind in ("stop", f"{REMINDER} now stop", f"look: {REMINDER}"):
        assert shape([USER, called("1"), result("1"), {"role": "user", "content": behind}])[3] == ("user", behind)


def test_a_conversation_stays_the_beginning_of_the_one_that_goes_on_from_it() -> None:
    whole = [
        system("s"),
        USER,
        system("late"),
        called("1"),
        result("1"),
        {"role": "user", "content": REMINDER},
        called("2"),
        result("2"),
        system("x"),
    ]
    last = conversation(whole, STRICT).messages
    for end in (3, 6, 9):
        assert conversation(whole[:end], STRICT).messages == last[: len(conversation(whole[:end], STRICT).messages)]


def test_there_is_always_a_user() -> None:
    assert shape([system("name this")]) == [("user", "name this")]
    assert shape([system("s"), {"role": "assistant", "content": "hi"}]) == [
        ("system", "s"),
        ("user", ""),
        ("assistant", "hi"),
    ]
    assert shape([system("s")], LENIENT) == [("system", "s")]


def test_results_stand_in_the_order_of_their_calls() -> None:
    messages = [USER, called("a", "b", "c"), result("c", "3"), result("a", "1"), USER]
    assert shape(messages)[2:] == [("tool", "1"), ("tool", "[no result]"), ("tool", "3"), ("user", "go")]
    unknown = [USER, called("a"), result("z", "?"), result("a", "1")]
    assert shape(unknown)[2:] == [("tool", "1"), ("tool", "?")]
    odd = [USER, called("a"), result({"no": "name"}), result(["x"])]  # type: ignore[arg-type]
    assert len(shape(odd)) == 4
    for unclear in ([result("x"), result("y")], [result("a", "1"), result("a", "2")]):
        assert [content for _, content in shape([USER, called("a"), *unclear])[2:]] == [m["content"] for m in unclear]


def test_calls_and_results_as_they_were_once_written_are_known() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": '{"a": 1}'}}
    messages = conversation([USER, old, {"role": "function", "name": "f", "content": "7"}], STRICT).messages
    assert messages[1]["tool_calls"][0]["function"] == {"name": "f", "arguments": {"a": 1}}
    assert messages[2]["role"] == "tool" and "function_call" not in messages[1]


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ('{"a": [1, "x"]}', {"a": [1, "x"]}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ('{"path": "/a", "text": "ha', {"path": "/a", "text": "ha"}),
        ('{"path": "/a", "text": ', {"path": "/a", "text": None}),
        ('{"path": "/a", "te', {"path": "/a", "te": None}),
        ('{"a": [1, {"b": tr', {"a": [1, {"b": None}]}),
        ('{"a": NaN, }', {"a": "NaN"}),
        ("{broken", {"input": "{broken"}),
        ("plain words", {"input": "plain words"}),
        ("[1, 2]", {"input": "[1, 2]"}),
        ([1, 2], {"input": [1, 2]}),
        ("{", {"input": "{"}),
        ("[" * 3000, {"input": "[" * 3000}),
        ('{"a": "\\ud800"}', {"a": "\ufffd"}),
    ],
    ids=lambda value: str(value)[:24],
)
def test_arguments_are_an_object_whatever_comes_back(strict: Tokenizer, arguments: Any, value: Any) -> None:
    (_, message) = conversation([USER, called("1", arguments=arguments)], STRICT).messages
    assert message["tool_calls"][0]["function"]["arguments"] == value
    assert "<function=f>" in strict.render(
        conversation([USER, called("1", arguments=arguments), result("1")], STRICT).messages
    )


BLOCKS: list[tuple[dict[str, Any], str]] = [
    (IMAGE, LEFT_OUT),
    ({"type": "image_url", "image_url": {"url": "data:"}}, LEFT_OUT),
    ({"type": "input_image", "image_url": "data:"}, LEFT_OUT),
    ({"type": "input_audio", "input_audio": {}}, "[audio left out: this model reads text alone]"),
    ({"type": "input_file", "file_data": "x"}, "[file left out: this model reads text alone]"),
    (
        {"type": "document", "source": {"type": "base64", "data": "AAAA"}},
        "[file left out: this model reads text alone]",
    ),
    ({"type": "document", "title": "T", "source": {"type": "text", "data": "words"}}, "T\nwords"),
    ({"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "words"}]}}, "words"),
    (
        {"type": "search_result", "title": "T", "source": "http://x", "content": [{"type": "text", "text": "found"}]},
        "T\nhttp://x\nfound",
    ),
    (
        {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
        'web_search {"query": "q"}',
    ),
    (
        {
            "type": "web_search_tool_result",
            "tool_use_id": "s",
            "content": [{"type": "web_search_result", "title": "T", "url": "http://x", "encrypted_content": "zz"}],
        },
        "T\nhttp://x",
    ),
    ({"type": "web_search_tool_result", "content": {"type": "error", "error_code": "unavailable"}}, "unavailable"),
    ({"type": "bash_code_execution_tool_result", "content": {"type": "r", "stdout": "ok", "stderr": ""}}, "ok"),
    ({"type": "refusal", "refusal": "no"}, "no"),
    ({"type": "hologram"}, "[hologram left out: this model reads text alone]"),
]


@pytest.mark.parametrize(("block", "shown"), BLOCKS, ids=[b["type"] for b, _ in BLOCKS])
def test_what_is_no_text_is_shown_as_the_text_in_it_or_as_a_placeholder(block: Any, shown: str) -> None:
    text = {"type": "text", "text": "see"}
    said = conversation([{"role": "user", "content": [text, block, text]}], STRICT).messages[0]["content"]
    assert said.replace("\n", "") == f"see{shown}see".replace("\n", "")
    assert shape([USER, {"role": "assistant", "content": [block]}, USER])[1] == ("assistant", shown)
    given = [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}]
    given.append({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [block]}]})
    assert shape(blocks.chat_messages(None, [USER, *given]))[2] == ("tool", shown)
    output = [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]
    output.append({"type": "function_call_output", "call_id": "c", "output": [block]})
    assert shape(items.read_items([USER, *output]))[2] == ("tool", shown)


def test_placeholders_are_counted_and_the_latest_wish_must_hold_some_text() -> None:
    picture = {"role": "user", "content": [IMAGE, IMAGE]}
    assert conversation([picture, called("1"), USER], STRICT).left_out == {"image": 2}
    with pytest.raises(RequestError, match="reads text alone") as fault:
        conversation([USER, picture], STRICT)
    assert fault.value.param == "messages.1.content"
    assert shape([USER, called("1"), result("1"), picture])[2:] == [("tool", f"done\n\n{LEFT_OUT}\n{LEFT_OUT}")]


def test_what_an_agent_cannot_say_otherwise_renders_too(strict: Tokenizer) -> None:
    """An undeclared tool, an input that was no JSON, an image alone as a result, a system message behind it, no result at all."""
    manners = Dialect.of(strict).manners
    assert manners == STRICT
    unparsed = {"__unparsedToolInput": {"raw": '{"a', "len": 3}}
    given = [
        USER,
        system("late"),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "invalid", "input": unparsed}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t", "content": [IMAGE], "is_error": True}],
        },
        {"role": "system", "content": [{"type": "text", "text": "later"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "u", "name": "f", "input": "{broken"}]},
        USER,
    ]
    chat = blocks.chat_messages([{"type": "text", "text": "be brief"}], given)
    text = strict.render(conversation(chat, manners).messages)
    assert text.count("<|im_start|>system") == 1 and LEFT_OUT in text and "later" in text and "{broken" in text


def test_items_that_nobody_knows_are_skipped_or_shown(strict: Tokenizer) -> None:
    given: list[Any] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
        {"type": "message", "role": "user", "content": "go"},
        {"type": "web_search_call", "id": "w", "status": "completed"},
        {"type": "item_reference", "id": "x"},
        {"type": "custom_tool_call", "call_id": "c", "name": "apply_patch", "input": "*** Begin"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        {"type": "function_call", "call_id": "d", "name": "depth", "namespace": "mcp__well", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "7"}]},
        {"type": "local_shell_call", "call_id": "e", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "call_id": "e", "output": "x"},
        {"type": "message", "role": "developer", "content": "permissions have changed"},
        {"type": "oracle", "text": "so be it"},
    ]
    text = strict.render(conversation(items.chat_messages(given), STRICT).messages)
    for said in (
        "<function=apply_patch>",
        "*** Begin",
        "<function=mcp__well__depth>",
        "permissions",
        "so be it",
        '["ls"]',
    ):
        assert said in text
    assert json.dumps("w") not in text


@pytest.mark.parametrize("role", ["user", "system"])
def test_any_number_of_reminders_before_other_text_is_read_at_once(role: str) -> None:
    many = "<system-reminder>a</system-reminder>\n" * 2000
    talk = conversation([USER, called("c"), result("c"), {"role": role, "content": many + "and go on"}], STRICT)
    assert any("and go on" in str(message["content"]) for message in talk.messages)


@pytest.mark.parametrize(
    ("given", "leading"),
    [
        ([{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}], ("a", "b")),
        (
            [{"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}]}],
            ("a", "b"),
        ),
        ([{"role": "system", "content": [{"type": "image_url"}, {"type": "refusal", "refusal": "c"}]}], ("c",)),
        ([], ()),
    ],
)
def test_the_texts_that_lead_are_known_one_by_one(given: list[Any], leading: tuple[str, ...]) -> None:
    messages = [*given, {"role": "user", "content": "x"}, {"role": "system", "content": "later"}]
    assert conversation(messages, Manners()).leading == leading


def test_instructions_and_what_leads_are_one_message_of_several_texts() -> None:
    led = led_by("first", [{"role": "developer", "content": "second"}, {"role": "user", "content": "x"}])
    talk = conversation(led, Manners())
    assert talk.messages[0] == {"role": "system", "content": "first\n\nsecond"}
    assert [text.strip() for text in talk.leading] == ["first", "second"]
    assert led_by("", [{"role": "user", "content": "x"}]) == [{"role": "user", "content": "x"}]
