"""Grammars on token masks: what may come next, after any history, and what cannot be followed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher

from stepwell.engine.grammar import wire
from stepwell.engine.grammar.desk import Desk, Order
from stepwell.engine.grammar.grammars import Grammars
from stepwell.engine.grammar.guide import QUICK, Guides
from stepwell.engine.grammar.vocabulary import GuideError
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.request import SamplingParams
from tests.server.harness import eventually
from tests.server.templates import talking_tokenizer

VOCAB = 320
EOS = 2


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words")
    talking_tokenizer(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer.load(str(directory))


@pytest.fixture
def guides(directory: Path) -> Iterator[Guides]:
    grammars = Grammars(str(directory), VOCAB, (EOS, 0), keep=2)
    made = Guides(grammars, VOCAB, keep=2)
    yield made
    grammars.close()
    made.close()


def pattern(text: str, after: int | None = None) -> SamplingParams:
    return SamplingParams(grammar=LLMatcher.grammar_from_regex(text), grammar_after=after)


def allowed(guides: Guides, name: str, params: SamplingParams, answer: list[int]) -> set[int]:
    mask = guides.allowed(name, params, np.array(answer, np.int32))
    assert mask is not None and mask.shape == (VOCAB,)
    return set(np.flatnonzero(mask).tolist())


def test_only_what_the_pattern_allows_may_come_and_at_its_end_only_ends(guides: Guides, tokenizer: Tokenizer) -> None:
    a, b = (tokenizer.encode(text).tolist()[0] for text in "ab")
    assert allowed(guides, "r", pattern("ab"), []) >= {a}
    assert b not in allowed(guides, "r", pattern("ab"), [])
    assert allowed(guides, "r", pattern("ab"), [a]) == {b}
    assert allowed(guides, "r", pattern("ab"), [a, b]) == {EOS, 0}


def test_forgotten_matchers_are_made_again_from_the_answer(guides: Guides, tokenizer: Tokenizer) -> None:
    text = tokenizer.encode("cab").tolist()
    first = [allowed(guides, "kept", pattern("c(a|b)+"), text[:i]) for i in range(len(text) + 1)]
    for i in range(len(text), -1, -1):  # backwards, and others in between: nothing of the last call is of use
        assert allowed(guides, "kept", pattern("c(a|b)+"), text[:i]) == first[i]
        for other in "xyz":
            allowed(guides, other, pattern("x*"), [])


def test_grammar_that_begins_later_leaves_what_comes_before_alone(guides: Guides, tokenizer: Tokenizer) -> None:
    mark = tokenizer.token_id("</think>")
    assert mark is not None
    params = pattern("b", after=mark)
    b = tokenizer.encode("b").tolist()
    assert guides.allowed("r", params, np.array([5, 6], np.int32)) is None
    assert allowed(guides, "r", params, [5, 6, mark]) == set(b)
    assert allowed(guides, "r", params, [5, 6, mark, *b]) == {EOS, 0}


def test_marks_that_are_tokens_of_their_own_count_as_their_text(guides: Guides, tokenizer: Tokenizer) -> None:
    mark = tokenizer.token_id("<tool_call>")
    params = pattern("<tool_call>x")
    assert mark is not None and mark in allowed(guides, "r", params, [])
    assert allowed(guides, "r", params, [mark]) == set(tokenizer.encode("x").tolist())
    assert 1 not in allowed(guides, "free", pattern("(?s:.*)"), [])  # a special token stands for no text


def test_what_cannot_be_followed_is_that_requests_error(guides: Guides) -> None:
    with pytest.raises(GuideError, match="cannot be followed"):
        guides.allowed("r", SamplingParams(grammar="start: ("), np.array([], np.int32))
    with pytest.raises(GuideError, match="left its grammar"):
        guides.allowed("s", pattern("a"), np.array([90, 91, 92], np.int32))
    with pytest.raises(GuideError, match="cannot be followed"):
        guides.allowed("t", SamplingParams(grammar=LLMatcher.grammar_from_lark("start: start")), np.array([], np.int32))
    assert guides.allowed("u", pattern("a"), np.array([], np.int32)) is not None


def test_missing_tokenizer_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(GuideError, match=r"tokenizer\.json"):
        Guides(Grammars(str(tmp_path), VOCAB, (EOS,), 2), VOCAB, 2).allowed("r", pattern("a"), np.array([], np.int32))


class Gated:
    """Stands in for the processes: a mask takes until the gate opens, and what is to be read is noted."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.consumed: list[list[int]] = []
        self.seconds = 0.0

    def follow(self, desk: Desk, orders: Sequence[Order]) -> Iterator[wire.Told]:
        for order in orders:
            self.consumed.append(order.on.tokens)
            assert self.gate.wait(20)
            yield wire.Told("", self.seconds, bytes([255] * (VOCAB // 8)))


@pytest.fixture
def gated(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Guides, Gated]]:
    gated = Gated()
    monkeypatch.setattr(Desk, "follow", lambda desk, orders: gated.follow(desk, orders))
    grammars = Grammars(str(directory), VOCAB, (EOS,), keep=2)
    made = Guides(grammars, VOCAB, keep=2)
    yield made, gated
    gated.gate.set()
    grammars.close()
    made.close()


def test_a_mask_that_takes_long_is_not_waited_for(gated: tuple[Guides, Gated]) -> None:
    guides, processes = gated
    dear, nothing = pattern("dear"), np.array([], np.int32)
    for _ in range(3):
        assert not guides.ready("r", dear, nothing)
    assert guides.wait(0.001), "something is being worked out"
    processes.gate.set()
    assert eventually(lambda: guides.ready("r", dear, nothing))
    assert guides.wait(5) is False, "nothing is left to wait for"
    assert allowed(guides, "r", dear, []) == set(range(VOCAB))


@pytest.mark.parametrize("last, waits", [(QUICK / 2, True), (2 * QUICK, False)])
def test_a_step_waits_for_no_mask_behind_a_dear_one(
    gated: tuple[Guides, Gated], last: float, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 31 dear answers each would have every step wait for it, though its mask takes a hundred times as long."""
    guides, processes = gated
    monkeypatch.setattr(guides, "_grace", 30.0)
    processes.seconds = last
    params = pattern("any")
    processes.gate.set()
    assert eventually(lambda: guides.ready("r", params, np.array([], np.int32)))
    processes.gate.clear()
    threading.Timer(0.2, processes.gate.set).start()
    assert guides.ready("r", params, np.array([20], np.int32)) is waits


def test_each_token_is_read_once(gated: tuple[Guides, Gated]) -> None:
    guides, processes = gated
    processes.gate.set()
    params = pattern("once", after=9)
    answer = [1, 2, 9, *range(20, 60)]
    for length in range(len(answer) + 1):
        now = np.array(answer[:length], np.int32)
        guides.begin("r", params, now)
        guides.begin("r", params, now)
        assert eventually(lambda now=now: guides.ready("r", params, now))  # type: ignore[misc]
        guides.allowed("r", params, now)
    assert processes.consumed == [[], *([token] for token in range(20, 60))]


def test_patient_guides_wait_for_every_mask(directory: Path, gated: tuple[Guides, Gated]) -> None:
    gate = gated[1].gate
    grammars = Grammars(str(directory), VOCAB, (EOS,), keep=2)
    patient = Guides(grammars, VOCAB, keep=2, patient=True)
    params, nothing = pattern("patient"), np.array([], np.int32)
    assert eventually(lambda: grammars.prepare("r", params))
    threading.Timer(0.05, gate.set).start()
    assert patient.ready("r", params, nothing)
    grammars.close()
    patient.close()


def test_a_wrong_grammar_and_a_wrong_answer_are_ready_to_be_refused(guides: Guides) -> None:
    wrong, answer = SamplingParams(grammar="start: ("), np.array([], np.int32)
    assert eventually(lambda: guides.ready("r", wrong, answer))
    left = np.array([90, 91], np.int32)
    assert eventually(lambda: guides.ready("s", pattern("a"), left))
    with pytest.raises(GuideError, match="left its grammar"):
        guides.allowed("s", pattern("a"), left)


def test_a_closed_guide_refuses(directory: Path) -> None:
    grammars = Grammars(str(directory), VOCAB, (EOS,), keep=2)
    closed = Guides(grammars, VOCAB, keep=2)
    closed.close()
    nothing = np.array([], np.int32)
    assert eventually(lambda: closed.ready("r", pattern("a"), nothing))
    with pytest.raises(GuideError, match="closing"):
        closed.allowed("r", pattern("a"), nothing)
    grammars.close()
