"""A model's vocabulary as llguidance reads it, from tokenizer.json alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.base.errors import StepwellError
from stepwell.engine.text.tokenizer import byte_pieces


class GuideError(StepwellError):
    """This request's grammar cannot be followed."""


def first_line(message: str) -> str:
    """What llguidance says, without the state of its parser."""
    return message.partition("\n")[0]


def refusal(why: str) -> str:
    """What is said of a grammar that is too dear."""
    return f"the grammar cannot be followed: {why}: make it simpler"


def read_vocabulary(directory: str, size: int, ends: tuple[int, ...]) -> Any:
    """An `LLTokenizer` of `size` tokens, of which `ends` end an answer. Takes seconds where it is large. Raises GuideError."""
    from llguidance import LLTokenizer, TokenizerWrapper
    from tokenizers import Tokenizer

    path = Path(directory) / "tokenizer.json"
    try:
        text = path.read_text("utf-8")
        backend = Tokenizer.from_str(text)
    except Exception as error:  # whatever the file and its reader think of
        raise GuideError(f"grammars need {path}: {error}") from error
    pieces = byte_pieces(backend)
    source = text if pieces is None else TokenizerWrapper(_Words(backend, pieces, size, ends))
    try:
        return LLTokenizer(source, n_vocab=size, eos_token=list(ends) or None)
    except Exception as error:  # llguidance reads byte-level and byte-fallback vocabularies, and raises several types
        raise GuideError(f"llguidance cannot read the vocabulary in {path}: {first_line(str(error))}") from error


class _Words:
    """A byte-level vocabulary as llguidance wants it. Its own reader takes every added token whose name is in angle brackets
    for a special one, so that text such as <tool_call> could be in no answer."""

    def __init__(self, backend: Any, pieces: list[bytes], size: int, ends: tuple[int, ...]) -> None:
        special = {i: token.content for i, token in backend.get_added_tokens_decoder().items() if token.special}
        self.tokens = [special[i].encode() if i in special else piece for i, piece in enumerate(pieces)]
        self.tokens += [b""] * (size - len(pieces))
        self.special_token_ids = sorted(special)
        self.eos_token_id = ends[0] if ends else (self.special_token_ids or [0])[0]
        self.bos_token_id = None
        self._backend = backend

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids
