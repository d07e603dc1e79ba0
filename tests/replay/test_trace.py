"""Conversations: spans, orders, and turns left out."""

from __future__ import annotations

from stepwell.replay.trace import Conversation, Stream, Turn


def turn(time: float, prompt: int) -> Turn:
    return Turn(time, prompt, 5, 1.0, ((1, prompt // 64),))


ROOT = Stream(0.0, (turn(0.0, 100), turn(10.0, 300), turn(20.0, 200)))
AGENT = Stream(12.0, (turn(0.0, 90), turn(15.0, 500)), parent=0)
CONVERSATION = Conversation("a", 64, (ROOT, AGENT))


def test_the_span_ends_with_the_last_request_of_any_stream() -> None:
    assert CONVERSATION.span == 27.0
    assert Conversation("a", 64, (Stream(0.0, ()),)).span == 0.0


def test_requests_interleave_as_they_were_sent() -> None:
    assert CONVERSATION.in_time_order() == [(0, 0), (0, 1), (1, 0), (0, 2), (1, 1)]


def test_turns_sent_by_a_moment_include_that_moment() -> None:
    assert [ROOT.sent_by(when) for when in (-1.0, 0.0, 9.9, 10.0, 99.0)] == [0, 1, 1, 2, 3]
    assert [AGENT.sent_by(when) for when in (11.0, 12.0, 27.0)] == [0, 1, 2]


def test_long_prompts_are_left_out_one_by_one() -> None:
    kept = CONVERSATION.without_longer_than(250)
    assert [[t.prompt for t in s.turns] for s in kept.streams] == [[100, 200], [90]]
    assert kept.streams[1].parent == 0
    assert CONVERSATION.without_longer_than(1).requests == 0
