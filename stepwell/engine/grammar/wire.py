"""What the engine and a grammar process say to each other: msgspec messages, each behind its length in four bytes."""

from __future__ import annotations

import hashlib
from typing import BinaryIO, TypeAlias

import msgspec

from stepwell.base.errors import StepwellError

_LONGEST = 64 * 2**20
"""Bytes of a message, many times what the longest grammar with the longest answer takes."""


class Start(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The first message to a process.

    directory  holds tokenizer.json        size  tokens of the vocabulary        ends  those that end an answer
    keep       grammars, and parsers, that the process remembers                 nice  how far it gives way to other processes
    """

    directory: str
    size: int
    ends: tuple[int, ...]
    keep: int
    nice: int = 0


class Read(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Read this grammar, in UTF-8. Answered by Told, without bits."""

    grammar: bytes


class Next(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Have parser number `parser`, which has read `given` tokens of its answer, read `tokens`. Answered by Told or Lost.

    grammar  `digest` of the one that the parser follows
    """

    parser: int
    grammar: bytes
    given: int
    tokens: list[int]


class Told(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """`bits` of the tokens that may follow, lowest first; a `fault` instead where none may. `seconds` of processor time."""

    fault: str
    seconds: float
    bits: bytes = b""


class Lost(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The process has no such grammar, or no such parser at that place. Read the grammar again, then say the whole answer."""


Question: TypeAlias = Read | Next
Answer: TypeAlias = Told | Lost

_encoder = msgspec.msgpack.Encoder()
_starts = msgspec.msgpack.Decoder(Start)
_questions = msgspec.msgpack.Decoder(tuple[int, Question])
_answers = msgspec.msgpack.Decoder(tuple[int, Answer])


def digest(grammar: bytes) -> bytes:
    """Names a grammar. O(its length)."""
    return hashlib.blake2b(grammar, digest_size=16).digest()


def framed(message: Start | tuple[int, Question | Answer]) -> bytes:
    """A message as it is written. Questions and answers carry the question's number."""
    body = _encoder.encode(message)
    return len(body).to_bytes(4, "little") + body


def start(stream: BinaryIO) -> Start | None:
    """The first message; None at the end."""
    body = _body(stream)
    return None if body is None else _starts.decode(body)


def question(stream: BinaryIO) -> tuple[int, Question] | None:
    """The next question, waited for; None at the end."""
    body = _body(stream)
    return None if body is None else _questions.decode(body)


def answer(stream: BinaryIO) -> tuple[int, Answer] | None:
    """The next answer, waited for; None at the end."""
    body = _body(stream)
    return None if body is None else _answers.decode(body)


def _body(stream: BinaryIO) -> bytes | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    size = int.from_bytes(head, "little")
    if size > _LONGEST:
        raise StepwellError(f"a message of {size:,} bytes: at most {_LONGEST:,} are read")
    body = stream.read(size)
    return body if len(body) == size else None
