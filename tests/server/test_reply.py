"""Answers taken apart: the same parts however the text is cut, and never a call that is none."""

from __future__ import annotations

import json
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.server.calling import Signatures
from stepwell.server.deltas import CallGrew, CallOpened, Delta, Said, Thought
from stepwell.server.reply import Reading, ReplyReader, Start

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "put",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string"},
                    "count": {"type": "integer"},
                    "deep": {"type": "object"},
                    "sure": {"type": "boolean"},
                    "kind": {"enum": ["a", "b"]},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
JSON_CALL = '<tool_call>\n{"name": "put", "arguments": {"text": "a } </tool_call> \\" b", "count": 2}}\n</tool_call>'
TAGGED_CALL = (
    "<tool_call>\n<function=put>\n<parameter=text>\nline 1\n</tool_call>\n7\n</parameter>\n"
    '<parameter=count>\n7\n</parameter>\n<parameter=deep>\n{"x": [1]}\n</parameter>\n'
    "<parameter=sure>\nTrue\n</parameter>\n<parameter=kind>\na\n</parameter>\n</function>\n</tool_call>"
)
PUT = ("put", {"text": 'a } </tool_call> " b', "count": 2})
TAGGED = ("put", {"text": "line 1\n</tool_call>\n7", "count": 7, "deep": {"x": [1]}, "sure": True, "kind": "a"})


def read(
    pieces: list[str], start: Start = Start.SPEAKING, tools: bool = True, several: bool = True
) -> tuple[str, str, list[tuple[str, str]]]:
    """Thoughts, text, and calls as (name, arguments as they came)."""
    numbers = count()
    signatures = Signatures.of(TOOLS) if tools else None
    reader = ReplyReader(Reading(start, signatures, several, lambda: f"id{next(numbers)}"))
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += reader.push(piece)
    deltas += reader.flush()
    calls: list[list[str]] = []
    for delta in deltas:
        match delta:
            case CallOpened(index, id_, name):
                assert (index, id_) == (len(calls), f"id{len(calls)}")
                calls.append([name, ""])
            case CallGrew(index, text):
                assert index == len(calls) - 1
                calls[index][1] += text
    thought = "".join(d.text for d in deltas if isinstance(d, Thought))
    said = "".join(d.text for d in deltas if isinstance(d, Said))
    assert reader.calls == len(calls)
    return thought, said, [(name, text) for name, text in calls]


CASES: list[tuple[str, Start, str, str, list[tuple[str, object]]]] = [
    ("no marks, <but> signs", Start.OPEN, "", "no marks, <but> signs", []),
    ("  leading space stays", Start.OPEN, "", "  leading space stays", []),
    ("<think>\nwhy\n\nnot\n</think>\n\nyes ", Start.OPEN, "why\n\nnot", "yes ", []),
    ("so\n</think>\n\nyes", Start.THINKING, "so", "yes", []),
    ("never ends\n", Start.THINKING, "never ends", "", []),
    ("\n</think>\n\n", Start.THINKING, "", "", []),
    ("<think>x</think>", Start.SPEAKING, "", "<think>x</think>", []),
    (JSON_CALL, Start.SPEAKING, "", "", [PUT]),
    (TAGGED_CALL, Start.SPEAKING, "", "", [TAGGED]),
    (f"hm\n</think>\n\nI call.\n\n{JSON_CALL}\n{TAGGED_CALL}\n", Start.THINKING, "hm", "I call.", [PUT, TAGGED]),
    ('<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>', Start.SPEAKING, "", "", [("now", {"a": 1})]),
    ('<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', Start.SPEAKING, "", "", [("now", {})]),
    ('<tool_call>{"name": "now", "arguments": {}, "id": 4}</tool_call>.', Start.SPEAKING, "", ".", [("now", {})]),
    ('<tool_call>{"name": "now"}</tool_call> after', Start.SPEAKING, "", "after", [("now", {})]),
    ('<tool_call>{"name": "now", "arguments": {}}', Start.SPEAKING, "", "", [("now", {})]),
    ("<tool_call><function=now></function></tool_call>", Start.SPEAKING, "", "", [("now", {})]),
    ('<tool_call>{"name": 3}</tool_call>', Start.SPEAKING, "", '<tool_call>{"name": 3}</tool_call>', []),
    ("the mark <tool_call> alone", Start.SPEAKING, "", "the mark<tool_call> alone", []),
    ("<tool_call>{broken</tool_call>", Start.SPEAKING, "", "<tool_call>{broken</tool_call>", []),
    ("<tool_call>", Start.SPEAKING, "", "<tool_call>", []),
    ("ends with <tool", Start.SPEAKING, "", "ends with <tool", []),
]


@pytest.mark.parametrize(("text", "start", "thought", "said", "calls"), CASES, ids=lambda v: repr(v)[:24])
def test_parts_do_not_depend_on_where_the_text_is_cut(
    text: str, start: Start, thought: str, said: str, calls: list[tuple[str, object]]
) -> None:
    for pieces in ([text], list(text), [text[i : i + 3] for i in range(0, len(text), 3)]):
        got = read(pieces, start)
        assert (got[0], got[1]) == (thought, said)
        assert [(name, json.loads(arguments)) for name, arguments in got[2]] == calls


def test_without_tools_calls_are_text() -> None:
    assert read([JSON_CALL], tools=False) == ("", JSON_CALL, [])


def test_one_call_ends_the_answer_where_one_is_allowed() -> None:
    assert read([JSON_CALL, "\n", JSON_CALL, " more"], several=False)[1:] == ("", [("put", json.dumps(PUT[1]))])


def test_arguments_are_passed_on_while_they_are_written() -> None:
    reader = ReplyReader(Reading(signatures=Signatures.of(TOOLS)))
    assert isinstance(reader.push('<tool_call>{"name": "put", "arguments": {"te')[0], CallOpened)
    assert reader.push('xt": "half') == [CallGrew(0, 'xt": "half')]


def test_call_cut_off_in_its_arguments_stays_a_call() -> None:
    assert read(['<tool_call>{"name": "put", "arguments": {"text": "ha']) == ("", "", [("put", '{"text": "ha')])


@given(
    st.lists(
        st.sampled_from([*"<>/{}\"' \n\\x", "<think>", "</think>", "<tool_call>", "</tool_call>", '{"name": "f"}'])
    )
)
def test_any_text_is_read_the_same_in_one_piece_and_by_characters(parts: list[str]) -> None:
    text = "".join(parts)
    for start in Start:
        whole = read([text], start)
        assert read(list(text), start) == whole
