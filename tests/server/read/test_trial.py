"""Grammars are read where one that takes for ever, or ends its reader, holds up nobody."""

from __future__ import annotations

import pytest
from llguidance import LLMatcher

from stepwell.server.read import trial
from stepwell.server.read.trial import Trials

GOOD = LLMatcher.grammar_from_regex("a+")
ENDLESS = LLMatcher.grammar_from_lark(
    "start: A\nA: " + " & ".join(f"/(.*[ab].{{{i}}}.*)/" for i in range(1, 900)) + "\n"
)


def test_a_process_answers_one_grammar_after_the_other() -> None:
    trials = Trials()
    assert trials.fault(GOOD) == ""
    (process,) = trials._idle
    assert trials.fault("start: start") == "no text follows it"
    assert "Expected token" in trials.fault(LLMatcher.grammar_from_lark("start: ("))
    assert trials._idle == [process]


def test_what_takes_too_long_is_told_and_its_process_ended() -> None:
    trials = Trials(seconds=0.05)
    assert trials.fault(ENDLESS) == (
        "it takes more than 0.05 s, or more memory than it is given, to read: make it simpler"
    )
    assert trials._idle == []


def test_a_process_that_has_ended_is_replaced() -> None:
    trials = Trials()
    assert trials.fault(GOOD) == ""
    (process,) = trials._idle
    process.kill()
    process.wait()
    assert trials.fault(GOOD) == ""
    assert trials._idle != [process]


def test_what_is_too_dear_to_follow_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar is read in no time, and then each mask of each answer takes a second: every stream would wait for it."""
    dear = LLMatcher.grammar_from_regex("(a{100}){10}")
    assert trial.fault_of(dear) == ""
    monkeypatch.setattr(trial, "FOLLOWING", 0.0)
    assert trial.fault_of(dear).startswith("following it for 1 tokens takes more than 0 s")
