"""Grammars are read once, beside the loop, and only so many are kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from llguidance import LLMatcher

from stepwell.engine.grammar import wire
from stepwell.engine.grammar.desk import Desk
from stepwell.engine.grammar.grammars import Grammars, expect_read
from stepwell.engine.grammar.vocabulary import GuideError
from stepwell.sched.request import SamplingParams
from tests.server.harness import eventually
from tests.server.templates import talking_tokenizer, word_tokenizer

VOCAB = 320
EOS = 2


@pytest.fixture
def grammars(tmp_path: Path) -> Iterator[Grammars]:
    talking_tokenizer(tmp_path)
    made = Grammars(str(tmp_path), VOCAB, (EOS,), keep=2)
    yield made
    made.close()


def regex(text: str) -> str:
    return str(LLMatcher.grammar_from_regex(text))


def by(grammar: str, caller: str = "") -> SamplingParams:
    return SamplingParams(grammar=grammar, grammar_for=caller)


def start(grammars: Grammars, grammar: str) -> None:
    """Wait until it has been read."""
    expect_read(grammars.reading(by(grammar)))


def test_a_grammar_is_ready_after_a_while(grammars: Grammars) -> None:
    assert not grammars.prepare("r", by(regex("a+b")))
    assert eventually(lambda: grammars.prepare("r", by(regex("a+b"))))
    start(grammars, regex("a+b"))


def test_what_cannot_be_followed_is_ready_to_be_refused(grammars: Grammars) -> None:
    for wrong in ("start: (", LLMatcher.grammar_from_lark("start: start"), "lone \ud800"):
        assert eventually(lambda wrong=wrong: grammars.prepare("r", by(wrong)))  # type: ignore[misc]
        with pytest.raises(GuideError, match="cannot be followed"):
            start(grammars, wrong)


def test_without_a_vocabulary_a_request_is_refused_at_once(tmp_path: Path) -> None:
    grammars = Grammars(str(tmp_path), VOCAB, (EOS,), keep=2)
    assert grammars.prepare("r", by(regex("a")))
    with pytest.raises(GuideError, match=r"tokenizer\.json"):
        start(grammars, regex("a"))


def test_the_oldest_are_forgotten_and_read_again(grammars: Grammars) -> None:
    for text in "abc":
        start(grammars, regex(text))
    assert grammars.prepare("r", by(regex("b"))) and grammars.prepare("r", by(regex("c")))
    assert grammars.kept == 2
    start(grammars, regex("a"))
    assert grammars.kept == 2
    start(grammars, "start: " + " | ".join(f'"{i:090d}"' for i in range(30_000)) + "\n")
    assert grammars.kept == 1  # the characters of all of them are bounded, too


def test_what_is_being_read_is_not_begun_again_however_much_waits(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun = threading.Event(), []

    def read(desk: Desk, text: bytes) -> wire.Told:
        begun.append(text)
        assert gate.wait(20)
        return wire.Told("", 0.0)

    monkeypatch.setattr(Desk, "read", read)
    waiting = [regex(text) for text in "abcde"]
    for _ in range(3):
        assert [grammar for grammar in waiting if grammars.prepare(grammar, by(grammar))] == []
    gate.set()
    while waiting:
        waiting = [grammar for grammar in waiting if not grammars.prepare(grammar, by(grammar))]
    assert len(begun) == 5
    assert grammars.kept == 2


def test_a_request_that_has_gone_keeps_nothing(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def read(desk: Desk, text: bytes) -> wire.Told:
        assert gate.wait(20)
        return wire.Told("", 0.0)

    monkeypatch.setattr(Desk, "read", read)
    for text in "abcde":
        grammars.prepare(text, by(regex(text)))
        grammars.drop(text)
    assert grammars.awaited == []
    gate.set()
    assert eventually(lambda: grammars.prepare("f", by(regex("e"))))
    assert grammars.kept == 2


def test_rules_that_lead_to_rules_without_end_are_read(grammars: Grammars) -> None:
    rules = "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(7500)) + 'r7500: "x"\n'
    start(grammars, LLMatcher.grammar_from_lark(rules))


def test_a_vocabulary_that_cannot_be_read_is_read_once_and_refuses_every_grammar(tmp_path: Path) -> None:
    word_tokenizer(tmp_path)
    grammars = Grammars(str(tmp_path), VOCAB, (EOS,), keep=2)
    assert grammars.fault is None
    for _ in range(2):
        with pytest.raises(GuideError, match=r"llguidance cannot read the vocabulary in .*tokenizer\.json"):
            grammars.warm()
        (tmp_path / "tokenizer.json").unlink(missing_ok=True)
    assert grammars.fault is not None and grammars.prepare("r", by(regex("a")))
    grammars.close()


def test_callers_have_their_grammars_read_by_turns(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, read = threading.Event(), []

    def slowly(desk: Desk, text: bytes) -> wire.Told:
        assert gate.wait(20)
        read.append(text.decode())
        return wire.Told("", 5.0)

    monkeypatch.setattr(Desk, "read", slowly)
    many = [grammars.reading(by(f"many {i}", "many")) for i in range(8)]
    other = grammars.reading(by("other", "other"))
    gate.set()
    for one in [*many, other]:
        one.result(20)
    assert "other" in read[:5], "behind what two threads had begun, and one more each"
