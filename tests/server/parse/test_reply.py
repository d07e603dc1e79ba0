"""Answers taken apart: the same parts however the text is cut, and never a call that is none."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.server.parse.feed import Feed
from stepwell.server.parse.reply import Reading, ReplyReader, ReplyStart
from stepwell.server.parse.signatures import Signatures
from stepwell.server.write.deltas import CallClosed, CallGrew, CallOpened, Delta, Said, Thought

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


@dataclass
class Answer:
    """What was read: thoughts, text, calls as (name, arguments as they came), how many of them are finished, and whether it is cut."""

    thought: str
    said: str
    calls: list[tuple[str, str]]
    finished: int
    cut: bool


def take(
    pieces: list[str],
    start: ReplyStart = ReplyStart.SPEAKING,
    tools: list[Any] | None = None,
    several: bool = True,
    cut: bool = False,
) -> Answer:
    numbers = count()
    signatures = None if tools == [] else Signatures.of(TOOLS if tools is None else tools)
    reader = ReplyReader(Reading(start, signatures, several, lambda: f"id{next(numbers)}"))
    deltas: list[Delta] = []
    for piece in pieces:
        deltas += reader.push(piece)
    over = reader.over
    deltas += reader.flush(cut)
    calls: list[list[str]] = []
    closed: list[int] = []
    for delta in deltas:
        match delta:
            case CallOpened(index, id_, name):
                assert (index, id_) == (len(calls), f"id{len(calls)}")
                calls.append([name, ""])
            case CallGrew(index, text):
                assert index == len(calls) - 1 and index not in closed
                calls[index][1] += text
            case CallClosed(index):
                assert index == len(calls) - 1 and index not in closed
                closed.append(index)
    assert reader.calls == len(calls) and (not reader.over or over)
    assert len(closed) == len(calls) - reader.cut
    thought = "".join(d.text for d in deltas if isinstance(d, Thought))
    said = "".join(d.text for d in deltas if isinstance(d, Said))
    return Answer(thought, said, [(name, text) for name, text in calls], len(closed), reader.cut)


def read(
    pieces: list[str], start: ReplyStart = ReplyStart.SPEAKING, tools: bool = True, several: bool = True
) -> tuple[str, str, list[tuple[str, str]]]:
    answer = take(pieces, start, None if tools else [], several)
    return answer.thought, answer.said, answer.calls


CASES: list[tuple[str, ReplyStart, str, str, list[tuple[str, object]]]] = [
    ("no marks, <but> signs", ReplyStart.OPEN, "", "no marks, <but> signs", []),
    ("  leading space stays", ReplyStart.OPEN, "", "  leading space stays", []),
    ("<think>\nwhy\n\nnot\n</think>\n\nyes ", ReplyStart.OPEN, "why\n\nnot", "yes ", []),
    ("so\n</think>\n\nyes", ReplyStart.THINKING, "so", "yes", []),
    ("never ends\n", ReplyStart.THINKING, "never ends", "", []),
    ("\n</think>\n\n", ReplyStart.THINKING, "", "", []),
    ("<think>x</think>", ReplyStart.SPEAKING, "", "<think>x</think>", []),
    (JSON_CALL, ReplyStart.SPEAKING, "", "", [PUT]),
    (TAGGED_CALL, ReplyStart.SPEAKING, "", "", [TAGGED]),
    (f"hm\n</think>\n\nI call.\n\n{JSON_CALL}\n{TAGGED_CALL}\n", ReplyStart.THINKING, "hm", "I call.", [PUT, TAGGED]),
    ('<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>', ReplyStart.SPEAKING, "", "", [("now", {"a": 1})]),
    ('<tool_call>{"name": "now", "arguments": "{}"}</tool_call>', ReplyStart.SPEAKING, "", "", [("now", {})]),
    ('<tool_call>{"name": "now", "arguments": {}, "id": 4}</tool_call>.', ReplyStart.SPEAKING, "", ".", [("now", {})]),
    ('<tool_call>{"name": "now"}</tool_call> after', ReplyStart.SPEAKING, "", "after", [("now", {})]),
    ('<tool_call>{"name": "now", "arguments": {}}', ReplyStart.SPEAKING, "", "", [("now", {})]),
    ("<tool_call><function=now></function></tool_call>", ReplyStart.SPEAKING, "", "", [("now", {})]),
    ('<tool_call>{"name": 3}</tool_call>', ReplyStart.SPEAKING, "", '<tool_call>{"name": 3}</tool_call>', []),
    ("the mark <tool_call> alone", ReplyStart.SPEAKING, "", "the mark <tool_call> alone", []),
    ("<tool_call>{broken</tool_call>", ReplyStart.SPEAKING, "", "<tool_call>{broken</tool_call>", []),
    ("<tool_call>", ReplyStart.SPEAKING, "", "<tool_call>", []),
    ("ends with <tool", ReplyStart.SPEAKING, "", "ends with <tool", []),
]


@pytest.mark.parametrize(("text", "start", "thought", "said", "calls"), CASES, ids=lambda v: repr(v)[:24])
def test_parts_do_not_depend_on_where_the_text_is_cut(
    text: str, start: ReplyStart, thought: str, said: str, calls: list[tuple[str, object]]
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


def refuse(name: str) -> None:
    raise ValueError(name)


def strict(text: str) -> Any:
    """`text` as JSON that every reader takes."""
    orjson.dumps(text)
    orjson.loads(text)
    return json.loads(text, parse_constant=refuse)


FRAGMENTS = [
    *"<>/{}[]\"',: \n\\x1-",
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=put>", "<function=now>", "<function=other>"),
    *("</function>", "<parameter=text>", "<parameter=count>", "<parameter=deep>", "<parameter=new>", "</parameter>\n"),
    *(
        '{"name": "put", "arguments": {',
        '{"arguments": {',
        '"text": "',
        '"name": "now"',
        "null",
        "true",
        "NaN",
        "1e999",
    ),
    *("\\ud83d", "\\ude00", "\\u00e9", "\\q", "\u2028", "é", "}}", "]]", " " * 300, "[" * 250),
]


def texts() -> st.SearchStrategy[str]:
    parts = st.one_of(st.sampled_from(FRAGMENTS), st.text(max_size=4))
    return st.lists(parts, max_size=40).map("".join)


@settings(max_examples=400, deadline=None)
@given(
    text=texts(),
    cuts=st.lists(st.integers(0, 400)),
    start=st.sampled_from(ReplyStart),
    several=st.booleans(),
    cut=st.booleans(),
)
def test_any_text_is_read_the_same_however_it_comes_and_a_finished_call_is_strict(
    text: str, cuts: list[int], start: ReplyStart, several: bool, cut: bool
) -> None:
    whole = take([text], start, several=several, cut=cut)
    places = sorted({0, *(c for c in cuts if c < len(text)), len(text)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    assert take(pieces, start, several=several, cut=cut) == whole
    assert take(list(text), start, several=several, cut=cut) == whole
    for _, arguments in whole.calls[: whole.finished]:
        assert isinstance(strict(arguments), dict)


BROKEN = [
    '<tool_call>{"name": "put", "arguments": {"text": hello}}</tool_call> more',
    '<tool_call>{"name": "put", "arguments": {"deep": ' + "[" * 1500 + "]" * 1500 + "}}</tool_call>",
    '<tool_call>{"name": "put", "arguments": {"text": "no end',
    '<tool_call>{"name": "put", "arguments": {"text" "x"}}</tool_call>',
    "<tool_call><function=put><parameter=text>no end",
    "<tool_call><function=put>words<parameter=text>x</parameter></function></tool_call>",
    '<tool_call>{"name": "put", "arguments": {}, oops}</tool_call>',
]


@pytest.mark.parametrize("text", BROKEN, ids=lambda text: text[-32:])
def test_a_call_that_is_no_call_to_its_end_is_said_to_be_cut_and_ends_the_answer(text: str) -> None:
    answer = take([text])
    assert answer.cut and answer.finished == 0 and [name for name, _ in answer.calls] == ["put"]
    assert "more" not in answer.said
    ahead = take([f"{JSON_CALL}{text}"])
    assert ahead.cut and ahead.finished == 1 and ahead.calls[0] == (PUT[0], json.dumps(PUT[1]))


def test_marks_that_a_model_forgets_are_made_up_for() -> None:
    full = "<tool_call>\n<function=put>\n<parameter=text>\na\n</parameter>\n<parameter=count>\n3\n</parameter>\n</function>\n</tool_call>"
    for without in (
        full.removesuffix("\n</tool_call>"),
        full.removesuffix("\n</function>\n</tool_call>"),
        full.replace("\n</function>", ""),
        full.replace("\n</parameter>\n<parameter=count>", "\n<parameter=count>"),
        full.replace("3\n</parameter>", "3"),
        full.replace("3\n</parameter>\n</function>", "3"),
        full.removeprefix("<tool_call>\n"),
    ):
        answer = take([without])
        assert not answer.cut and not answer.said, without
        assert [(name, strict(arguments)) for name, arguments in answer.calls] == [("put", {"text": "a", "count": 3})]


def test_an_answer_that_had_no_room_for_its_marks_is_not_taken_for_one_that_forgot_them() -> None:
    for text in (
        "<tool_call><function=put><parameter=text>a</parameter>",
        "<tool_call><function=put><parameter=text>a</parameter>\n<parameter=cou",
        "<tool_call><function=put><parameter=text>\na\n</function>",
    ):
        assert take([text], cut=True).cut and take([text], cut=True).finished == 0
    for text in ("<tool_call><function=now></function>", '<tool_call>{"name": "now", "arguments": {}}'):
        assert take([text], cut=True).finished == 1


VALUES = [
    "a </parameter> b",
    "<parameter=text>\n</parameter> b",
    "x\n</function>\ny",
    "x\n</tool_call>\ny",
    "<tool_call>\n<function=put>",
    "\n\nlines\n\n",
    "</parameter>\n<parameter=text>\ny",
    "if a < b and c > d: e()",
    '\\ "quotes" \\n',
    "\u2028 \x00 \U0001f600",
    "</param",
]


@pytest.mark.parametrize("value", VALUES)
def test_a_value_may_hold_marks(value: str) -> None:
    head, tail = "<tool_call>\n<function=put>\n<parameter=text>\n", "\n</parameter>\n</function>\n</tool_call>"
    call = f"{head}{value}\n</parameter>\n<parameter=count>\n1{tail}"
    for pieces in ([call], list(call)):
        answer = take(pieces)
        assert strict(answer.calls[0][1]) == {"text": value, "count": 1} and answer.finished == 1


def test_text_values_are_passed_on_while_they_are_written() -> None:
    reader = ReplyReader(Reading(signatures=Signatures.of(TOOLS)))
    reader.push("<tool_call><function=put><parameter=text>\n")
    for word in ("some ", 'quoted "', "words"):
        grown = "".join(d.text for d in reader.push(word) if isinstance(d, CallGrew))
        assert json.dumps(word)[1:-1] in grown


def test_a_call_is_closed_as_soon_as_its_arguments_are_whole() -> None:
    for call in (JSON_CALL, TAGGED_CALL):
        reader = ReplyReader(Reading(signatures=Signatures.of(TOOLS)))
        assert CallClosed(0) in reader.push(call.removesuffix("\n</tool_call>"))


BARE = "<function=put>\n<parameter=text>\na\n</parameter>\n</function>"


def test_calls_without_their_opening_mark_are_calls_where_the_tool_is_known() -> None:
    answer = take([f"I do it.\n\n{BARE}\n</tool_call>"])
    assert (answer.said, answer.finished, strict(answer.calls[0][1])) == ("I do it.", 1, {"text": "a"})
    for said in (BARE.replace("put", "other"), "the form is <function=put> and so on", "<function=put", "<function="):
        for pieces in ([said], list(said)):
            assert (take(pieces).said, take(pieces).calls) == (said, [])


def test_several_calls_in_one_block_are_several_calls() -> None:
    second = BARE.replace(">\na\n<", ">\nb\n<")
    answer = take([f"<tool_call>\n{BARE}\n{second}\n</tool_call>\n"])
    assert [strict(a) for _, a in answer.calls] == [{"text": "a"}, {"text": "b"}] and answer.said == ""
    one = '{"name": "now", "arguments": {}}'
    answer = take([f"<tool_call>\n{one}\n{one}\n</tool_call>"])
    assert answer.calls == [("now", "{}")] * 2 and answer.said == ""


def test_arguments_in_one_object_within_a_tagged_call_are_arguments() -> None:
    answer = take(['<tool_call>\n<function=put>\n{"text": "a", "count": 2}\n</function>\n</tool_call>'])
    assert [strict(a) for _, a in answer.calls] == [{"text": "a", "count": 2}] and answer.said == ""


def test_text_around_calls_stays_apart() -> None:
    assert take([f"one\n\n{JSON_CALL}\n\ntwo"]).said == "one\n\ntwo"
    assert take([f"one {JSON_CALL}two"]).said == "one two"
    assert take([f"one{JSON_CALL}two"]).said == "one\ntwo"
    assert take([f"{JSON_CALL}\n\ntwo"]).said == "two"
    assert take([f"one\n{JSON_CALL}\n{JSON_CALL}\n"]).said == "one"


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        ('<tool_call>{"arguments": {"x": "', "abcd"),
        ('<tool_call>{"arguments": {"x": [', "1, "),
        ("<tool_call>\n<function=put>\n<parameter=text>\n", "abcd"),
        ("<tool_call>\n<function=put>\n<parameter=text>\n", "\n\n\n\n"),
        ("<tool_call>\n<function=put>\n<parameter=text>\n", "</parameter>  "),
        ("<tool_call>\n<function=put>\n<parameter=deep>\n", '{"a": 1}'),
        (JSON_CALL, " \n  "),
        ("", " \n  "),
        ("", "<function=put>  "),
        ("", "<tool_call>{"),
    ],
    ids=lambda v: repr(v)[-16:],
)
def test_what_is_looked_at_twice_is_bounded(first: str, piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long an answer is, only a short piece of it is kept to be looked at again."""
    longest = 0
    push = Feed.push

    def watched(feed: Feed, text: str) -> None:
        nonlocal longest
        push(feed, text)
        longest = max(longest, len(feed.text))

    monkeypatch.setattr(Feed, "push", watched)
    take([first, *[piece] * 3000])
    assert longest <= len(first) + 700
