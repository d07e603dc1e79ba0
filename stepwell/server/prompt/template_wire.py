"""What the server and a template process say to each other: msgspec messages, each behind its length in four bytes."""

from __future__ import annotations

import json
from typing import Any, BinaryIO, TypeAlias

import msgspec

from stepwell.base.errors import RequestError, StepwellError
from stepwell.engine.text.chat_template import ChatTemplate, TakesTooMuch

HEAD = 4
"""Bytes of a length."""


class Start(msgspec.Struct, frozen=True, array_like=True):
    """The first message to a process: the template's sources and special tokens, and the processor time that one conversation may take."""

    sources: str | dict[str, str] | None
    special: dict[str, Any]
    seconds: float


class Job(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A conversation to be rendered; the arguments of `ChatTemplate.render`."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] = []
    variables: dict[str, Any] = {}
    open_answer: bool = True
    continue_last: bool = False

    def rendered(self, template: ChatTemplate) -> str:
        """What `template` makes of it, here and now. Raises RequestError."""
        return template.render(
            self.messages,
            open_answer=self.open_answer,
            continue_last=self.continue_last,
            variables=self.variables,
            tools=self.tools,
        )


class Written(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """A job as JSON: whole numbers beyond 64 bits, which a model may well have written, have no other form here."""

    fields: str


class Ready(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The process has read the template."""


class Text(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The conversation as the template writes it."""

    text: str


class Refused(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """Why there is no text. `too_much`: it would take, or hold, more than it may."""

    why: str
    param: str
    too_much: bool


Answer: TypeAlias = Ready | Text | Refused

_encoder = msgspec.msgpack.Encoder()
_answers = msgspec.msgpack.Decoder(Answer)
_jobs = msgspec.msgpack.Decoder(Job | Written)
_starts = msgspec.msgpack.Decoder(Start)


def framed(message: Start | Job | Answer) -> bytes:
    """A message as it is written. Raises RequestError where a conversation cannot be written down."""
    try:
        try:
            body = _encoder.encode(message)
        except OverflowError:
            body = _encoder.encode(Written(json.dumps(msgspec.to_builtins(message)[1:])))
    except (RecursionError, ValueError, OverflowError, TypeError) as error:
        raise RequestError(f"these messages cannot be rendered: {error}", "messages") from error
    return len(body).to_bytes(HEAD, "little") + body


def start(stream: BinaryIO) -> Start | None:
    """The first message; None at the end."""
    body = _body(stream)
    return None if body is None else _starts.decode(body)


def job(stream: BinaryIO) -> tuple[Job, int] | None:
    """The next conversation, waited for, and its bytes; None at the end."""
    body = _body(stream)
    if body is None:
        return None
    found = _jobs.decode(body)
    return (Job(*json.loads(found.fields)) if isinstance(found, Written) else found), len(body)


def text(body: bytes) -> str:
    """The text in an answer without its length. Raises RequestError where there is none."""
    match _answers.decode(body):
        case Text(found):
            return found
        case Refused(why, param, True):
            raise TakesTooMuch(why, param)
        case Refused(why, param, False):
            raise RequestError(why, param)
    raise StepwellError("a template process said what is no text")


def _body(stream: BinaryIO) -> bytes | None:
    size = int.from_bytes(stream.read(HEAD), "little")
    body = stream.read(size)
    return body if size and len(body) == size else None
