"""Keeps answers within a grammar: which tokens may come next.

A matcher is the memory of one request's answer. It can always be made again from the grammar and the answer so far, so the
few that are kept are a convenience: nobody has to say when a request has ended or has been preempted.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.base.errors import StepwellError
from stepwell.base.geometry import Ints
from stepwell.engine.tokenizer import byte_pieces
from stepwell.sched.request import SamplingParams

Allowed: TypeAlias = npt.NDArray[np.bool_]


class GuideError(StepwellError):
    """This request's grammar cannot be followed."""


@dataclass(slots=True, eq=False)
class _Matcher:
    """A grammar's parser, and how many tokens of the answer it has read."""

    grammar: str
    state: Any
    read: int


class Guides:
    """The matchers of the requests that run. `keep` is how many are remembered."""

    __slots__ = ("_directory", "_ends", "_keep", "_matchers", "_tokenizer", "_vocab")

    def __init__(self, directory: str, vocab: int, eos_token_ids: tuple[int, ...], keep: int) -> None:
        """`directory` holds tokenizer.json, which is read when the first grammar comes."""
        self._directory = directory
        self._vocab = vocab
        self._ends = list(eos_token_ids)
        self._keep = keep
        self._matchers: OrderedDict[str, _Matcher] = OrderedDict()
        self._tokenizer: Any = None

    def allowed(self, request_id: str, params: SamplingParams, answer: Ints) -> Allowed | None:
        """Which tokens may follow `answer`, bool [vocab]; None for all. Raises GuideError where none may."""
        tokens = answer.tolist()
        if params.grammar_after is not None:
            if params.grammar_after not in tokens:
                return None
            tokens = tokens[tokens.index(params.grammar_after) + 1 :]
        matcher = self._matcher(request_id, params.grammar, len(tokens))
        if not matcher.state.consume_tokens(tokens[matcher.read :]):
            raise GuideError(f"the answer left its grammar: {_first_line(matcher.state.get_error())}")
        matcher.read = len(tokens)
        bits = np.frombuffer(matcher.state.compute_bitmask(), np.uint8)
        if matcher.state.is_error():
            raise GuideError(f"the grammar cannot be followed: {_first_line(matcher.state.get_error())}")
        return np.unpackbits(bits, bitorder="little", count=self._vocab).astype(np.bool_)

    def _matcher(self, request_id: str, grammar: str, length: int) -> _Matcher:
        known = self._matchers.pop(request_id, None)
        if known is None or known.grammar != grammar or known.read > length:
            known = _Matcher(grammar, self._start(grammar), 0)
        self._matchers[request_id] = known
        while len(self._matchers) > self._keep:
            self._matchers.popitem(last=False)
        return known

    def _start(self, grammar: str) -> Any:
        from llguidance import LLMatcher

        if self._tokenizer is None:
            self._tokenizer = _read_tokenizer(Path(self._directory) / "tokenizer.json", self._vocab, self._ends)
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        if matcher.is_error():
            raise GuideError(f"the grammar is not valid: {_first_line(matcher.get_error())}")
        return matcher


class _Words:
    """A byte-level vocabulary as llguidance wants it. Its own reader takes every added token whose name is in angle brackets
    for a special one, so that text such as <tool_call> could be in no answer."""

    def __init__(self, backend: Any, pieces: list[bytes], vocab: int, ends: list[int]) -> None:
        special = {i: token.content for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self.tokens = [special[i].encode() if i in special else piece for i, piece in enumerate(pieces)]
        self.tokens += [b""] * (vocab - len(pieces))
        self.special_token_ids = sorted(special)
        self.eos_token_id = ends[0] if ends else (self.special_token_ids or [0])[0]
        self.bos_token_id = None
        self._backend = backend

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids


def _read_tokenizer(path: Path, vocab: int, ends: list[int]) -> Any:
    from llguidance import LLTokenizer, TokenizerWrapper
    from tokenizers import Tokenizer

    try:
        text = path.read_text("utf-8")
        backend = Tokenizer.from_str(text)
    except Exception as error:  # whatever the file and its reader think of
        raise GuideError(f"grammars need {path}: {error}") from error
    pieces = byte_pieces(backend)
    source = text if pieces is None else TokenizerWrapper(_Words(backend, pieces, vocab, ends))
    return LLTokenizer(source, n_vocab=vocab, eos_token=ends or None)


def _first_line(message: str) -> str:
    """What llguidance says, without the state of its parser."""
    return message.partition("\n")[0]
