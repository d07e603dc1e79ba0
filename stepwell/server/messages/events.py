"""The answer to a call of the Messages API: blocks, whole or as events."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import orjson
from pydantic_core import from_json

from stepwell.server.generation.choice import Choice
from stepwell.server.generation.generate import Generation, Piece
from stepwell.server.http.errors import Problem
from stepwell.server.write.items import Change, Closed, Grew, Item, Items, Opened
from stepwell.server.write.lines import line

_STOPS = {"length": "max_tokens", "tool_calls": "tool_use"}
_DELTAS = {
    "text": ("text_delta", "text"),
    "thought": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}


class MessagesForm:
    """The form of a message: message_start, ping, each block's start, deltas and stop, message_delta, message_stop."""

    def __init__(self, name: str, model: str) -> None:
        self._name = name
        self._model = model
        self._items = Items()
        self._begun = False

    def add(self, piece: Piece) -> None:
        self._items.take(piece.deltas)

    def whole(self, generation: Generation) -> bytes:
        choice = generation.choices[0]
        return orjson.dumps(self._message([_block(item) for item in self._items.all], choice, ended=True))

    def begin(self) -> list[bytes]:
        """Nothing: a message starts with what its prompt found in the cache, which is known once that was admitted."""
        return []

    def events(self, piece: Piece) -> list[bytes]:
        out: list[bytes] = []
        if piece.choice.outcome is None:
            return out  # it waits for copies from a lower tier
        if not self._begun:
            self._begun = True
            out.append(_event("message_start", {"message": self._message([], piece.choice, ended=False)}))
            out.append(_event("ping", {}))
        for change in self._items.take(piece.deltas):
            out += _changed(change)
        return out

    def end(self, generation: Generation) -> list[bytes]:
        choice = generation.choices[0]
        out = [event for change in self._items.close() for event in _changed(change)]
        out.append(_event("message_delta", {"delta": _stop(choice), "usage": _usage(choice)}))
        return [*out, _event("message_stop", {})]

    def beat(self) -> bytes:
        return _event("ping", {})

    def fail(self, problem: Problem) -> list[bytes]:
        return [_event("error", problem.messages_body)]

    def _message(self, content: list[dict[str, Any]], choice: Choice, ended: bool) -> dict[str, Any]:
        stop = _stop(choice) if ended else {"stop_reason": None, "stop_sequence": None}
        head = {"id": self._name, "type": "message", "role": "assistant", "model": self._model}
        return {**head, "content": content, **stop, "usage": _usage(choice)}


def _changed(change: Change) -> list[bytes]:
    item = change.item
    match change:
        case Opened():
            return [_event("content_block_start", {"index": item.index, "content_block": _empty(item)})]
        case Grew(_, text):
            kind, field = _DELTAS[item.kind]
            return [_event("content_block_delta", {"index": item.index, "delta": {"type": kind, field: text}})]
        case Closed():
            stop = _event("content_block_stop", {"index": item.index})
            if item.kind != "thought":
                return [stop]
            delta = {"type": "signature_delta", "signature": _signature(item.text)}
            return [_event("content_block_delta", {"index": item.index, "delta": delta}), stop]


def _empty(item: Item) -> dict[str, Any]:
    match item.kind:
        case "text":
            return {"type": "text", "text": ""}
        case "thought":
            return {"type": "thinking", "thinking": "", "signature": ""}
        case "call":
            return {"type": "tool_use", "id": item.id, "name": item.name, "input": {}}


def _block(item: Item) -> dict[str, Any]:
    match item.kind:
        case "text":
            return {"type": "text", "text": item.text}
        case "thought":
            return {"type": "thinking", "thinking": item.text, "signature": _signature(item.text)}
        case "call":
            return {**_empty(item), "input": _arguments(item.text)}


def _arguments(text: str) -> dict[str, Any]:
    """Arguments as an object that can be written: of a call that was cut off, what there is of it."""
    try:
        value = orjson.loads(text)
    except ValueError:
        value = _partial(text)
    return value if isinstance(value, dict) else {}


def _partial(text: str) -> object:
    try:
        return orjson.loads(orjson.dumps(from_json(text, allow_partial=True)))
    except (ValueError, TypeError):  # no JSON, or a number that cannot be written
        return None


def _signature(thought: str) -> str:
    """Clients drop thoughts without a signature. It is not checked when it comes back, since a caller may send any text anyway."""
    return base64.b64encode(hashlib.blake2b(thought.encode(), digest_size=24).digest()).decode()


def _stop(choice: Choice) -> dict[str, Any]:
    stop = choice.transcript.stop
    finish = choice.finish or "stop"
    reason = "stop_sequence" if finish == "stop" and stop is not None else _STOPS.get(finish, "end_turn")
    return {"stop_reason": reason, "stop_sequence": stop if reason == "stop_sequence" else None}


def _usage(choice: Choice) -> dict[str, Any]:
    """Tokens of the prompt that were cached and that were not add up to all of it; writing to the cache costs nothing."""
    cached = 0 if choice.outcome is None else choice.outcome.cached
    return {
        "input_tokens": choice.prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": choice.transcript.tokens,
        "output_tokens_details": {"thinking_tokens": choice.thoughts},
    }


def _event(kind: str, fields: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), line({"type": kind, **fields}))
