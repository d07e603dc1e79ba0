"""Grammars are read once, beside the loop, and only so many are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher

from stepwell.engine.grammars import Grammars, GuideError
from tests.server.harness import eventually
from tests.server.templates import talking_tokenizer

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


def test_a_grammar_is_ready_after_a_while_and_each_start_is_fresh(grammars: Grammars) -> None:
    assert eventually(lambda: grammars.prepare(regex("a+b")))
    first, second = grammars.start(regex("a+b")), grammars.start(regex("a+b"))
    before = bytes(second.compute_bitmask())
    token = int(np.flatnonzero(np.unpackbits(np.frombuffer(before, np.uint8), bitorder="little"))[0])
    assert first.consume_token(token)
    assert bytes(second.compute_bitmask()) == before


def test_what_cannot_be_followed_is_ready_to_be_refused(grammars: Grammars) -> None:
    for wrong in ("start: (", LLMatcher.grammar_from_lark("start: start")):
        assert eventually(lambda wrong=wrong: grammars.prepare(wrong))  # type: ignore[misc]
        with pytest.raises(GuideError, match="cannot be followed"):
            grammars.start(wrong)


def test_without_a_vocabulary_a_request_is_refused_at_once(tmp_path: Path) -> None:
    grammars = Grammars(str(tmp_path), VOCAB, (EOS,), keep=2)
    assert grammars.prepare(regex("a"))
    with pytest.raises(GuideError, match=r"tokenizer\.json"):
        grammars.start(regex("a"))


def test_the_oldest_are_forgotten_and_read_again(grammars: Grammars) -> None:
    for text in "abc":
        grammars.start(regex(text))
    assert grammars.prepare(regex("b")) and grammars.prepare(regex("c"))
    assert grammars.kept == 2
    grammars.start(regex("a"))
    assert grammars.kept == 2
    grammars.start("start: " + " | ".join(f'"{i:090d}"' for i in range(30_000)) + "\n")
    assert grammars.kept == 1  # the characters of all of them are bounded, too
