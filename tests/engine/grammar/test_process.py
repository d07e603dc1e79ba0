"""Parsers in a process of their own: what they answer, what they forget, and how their failures are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher

from stepwell.engine.grammar.process import Follower
from stepwell.engine.grammar.vocabulary import read_vocabulary
from stepwell.engine.grammar.wire import Lost, Next, Told, digest
from tests.server.templates import talking_tokenizer

VOCAB = 320
EOS = 2


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = tmp_path_factory.mktemp("words")
    talking_tokenizer(path)
    return read_vocabulary(str(path), VOCAB, (EOS, 0))


def regex(text: str) -> bytes:
    return str(LLMatcher.grammar_from_regex(text)).encode()


def first(told: Told | Lost) -> int:
    assert isinstance(told, Told) and not told.fault
    return int(np.flatnonzero(np.unpackbits(np.frombuffer(told.bits, np.uint8), bitorder="little"))[0])


def test_each_parser_begins_afresh_and_goes_on_where_it_is(vocabulary: Any) -> None:
    follower = Follower(vocabulary, keep=4)
    text = regex("a+b")
    name = digest(text)
    assert follower.read(text).fault == ""
    begin = follower.next(Next(1, name, 0, []))
    token = first(begin)
    after = follower.next(Next(1, name, 0, [token]))
    assert isinstance(begin, Told) and isinstance(after, Told) and after.bits != begin.bits
    other = follower.next(Next(2, name, 0, []))
    assert isinstance(other, Told) and other.bits == begin.bits
    again = follower.next(Next(3, name, 0, [token]))
    assert isinstance(again, Told) and again.bits == after.bits and again.seconds > 0


def test_what_it_has_not_got_is_lost(vocabulary: Any) -> None:
    follower = Follower(vocabulary, keep=2)
    texts = [regex(text) for text in "xyz"]
    names = [digest(text) for text in texts]
    assert follower.next(Next(1, names[0], 0, [])) == Lost(), "no such grammar"
    for text in texts:
        follower.read(text)
    assert follower.next(Next(1, names[0], 0, [])) == Lost(), "the grammar read longest ago"
    token = first(follower.next(Next(1, names[1], 0, [])))
    assert follower.next(Next(2, names[1], 1, [token])) == Lost(), "no such parser"
    assert follower.next(Next(1, names[1], 1, [token])) == Lost(), "a parser that stands elsewhere"
    for parser in (1, 2, 3):
        follower.next(Next(parser, names[1], 0, [token]))
    assert follower.next(Next(1, names[1], 1, [])) == Lost(), "the parser asked for longest ago"
    assert isinstance(follower.next(Next(3, names[1], 1, [])), Told)


def test_faults_are_told(vocabulary: Any) -> None:
    follower = Follower(vocabulary, keep=2)
    assert "cannot be followed" in follower.read(b"start: (").fault
    assert "cannot be followed" in follower.read(b"\xed\xa0\x80").fault
    text = regex("a")
    follower.read(text)
    left = follower.next(Next(1, digest(text), 0, [90, 91]))
    assert isinstance(left, Told) and "left its grammar" in left.fault


class Panic(BaseException):
    """As one of Rust comes through to Python."""


class Parser:
    """Stands in for llguidance's."""

    def is_error(self) -> bool:
        return False

    def deep_copy(self) -> Parser:
        return Parser()

    def consume_tokens(self, tokens: list[int]) -> bool:
        return True

    def compute_bitmask(self) -> bytes:
        return bytes(VOCAB // 8)


@pytest.mark.parametrize("fault", [Panic("out of everything"), ValueError("no such token"), MemoryError()])
@pytest.mark.parametrize("method", ["deep_copy", "consume_tokens", "compute_bitmask"])
def test_however_a_parser_fails_it_is_its_requests_fault_alone(
    fault: BaseException, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    follower = Follower(None, keep=4)
    monkeypatch.setattr(Follower, "_matcher", lambda *_: Parser())
    follower.read(b"any")
    name = digest(b"any")

    def fails(*_: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(Parser, method, fails)
        told = follower.next(Next(1, name, 0, []))
    assert isinstance(told, Told) and "cannot be followed" in told.fault
    assert follower.next(Next(1, name, 1, [])) == Lost()
    good = follower.next(Next(2, name, 0, []))
    assert isinstance(good, Told) and not good.fault


def test_a_panic_while_a_grammar_is_read_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def panics(*_: object) -> Callable[[], None]:
        raise Panic("out of everything")

    monkeypatch.setattr(Follower, "_matcher", panics)
    assert "Panic: out of everything" in Follower(None, keep=1).read(b"any").fault
