"""The two shapes in which OpenAI's API gives answers: text completions and chat completions, whole or in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from stepwell.sched.request import FinishReason


@dataclass(frozen=True, slots=True)
class Finished:
    """One choice of a whole answer."""

    text: str
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class Shape:
    """Writes the answers to one call."""

    id: str
    model: str
    created: int
    chat: bool

    def whole(self, choices: Sequence[Finished], usage: dict[str, Any]) -> bytes:
        """The answer to a call that does not stream."""
        kind = "chat.completion" if self.chat else "text_completion"
        written = [self._choice(i, choice) for i, choice in enumerate(choices)]
        return orjson.dumps({**self._head(kind), "choices": written, "usage": usage})

    def chunks(self, with_usage: bool) -> Chunks:
        """A writer of chunks; `with_usage` adds the field that announces usage at the end."""
        head = orjson.dumps(self._head("chat.completion.chunk" if self.chat else "text_completion"))[:-1]
        return Chunks(head, self.chat, b',"usage":null' if with_usage else b"")

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, index: int, choice: Finished) -> dict[str, Any]:
        message = {"role": "assistant", "content": choice.text, "refusal": None}
        answer = {"message": message} if self.chat else {"text": choice.text}
        return {"index": index, **answer, "logprobs": None, "finish_reason": choice.reason}


@dataclass(frozen=True, slots=True)
class Chunks:
    """Server-sent events of one stream. Only the text differs from chunk to chunk, so only the text is encoded anew."""

    head: bytes
    chat: bool
    tail: bytes

    def opening(self, index: int) -> bytes:
        """The chunk that comes with a choice's first token; empty where the shape has none."""
        return self._chunk(index, b'"delta":{"role":"assistant","content":""}', None) if self.chat else b""

    def text(self, index: int, text: str, reason: FinishReason | None) -> bytes:
        """New text, or the end of a choice, or both."""
        if not self.chat:
            return self._chunk(index, b'"text":' + orjson.dumps(text), reason)
        delta = b'"delta":{"content":' + orjson.dumps(text) + b"}" if text else b'"delta":{}'
        return self._chunk(index, delta, reason)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The last chunk where usage was asked for."""
        return b"data: " + self.head + b',"choices":[],"usage":' + orjson.dumps(usage) + b"}\n\n"

    def _chunk(self, index: int, body: bytes, reason: FinishReason | None) -> bytes:
        end = b"null" if reason is None else b'"' + reason.encode() + b'"'
        choice = b'{"index":%d,%b,"logprobs":null,"finish_reason":%b}' % (index, body, end)
        return b"data: " + self.head + b',"choices":[' + choice + b"]" + self.tail + b"}\n\n"


DONE = b"data: [DONE]\n\n"


def error_event(body: dict[str, Any]) -> bytes:
    """An error in the middle of a stream."""
    return b"data: " + orjson.dumps(body) + b"\n\n"
