"""The answer to a call of the Responses API: items, whole or as events."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import orjson

from stepwell.server.generation.generate import Generation, Piece
from stepwell.server.http.errors import Problem
from stepwell.server.responses.kept import KeptResponses, Message, Stored, Turn
from stepwell.server.responses.tools import Declarations, InputText, input_of
from stepwell.server.write.items import Change, Closed, Grew, Item, Items, Opened
from stepwell.server.write.lines import line
from stepwell.talk.items import read_items

Status: TypeAlias = Literal["in_progress", "completed", "incomplete", "failed"]

_PREFIXES = {"text": "msg", "thought": "rs", "call": "fc"}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a response is to be kept: whose it is, and what came before its answer. `turns` are those of the one it continues."""

    kept: KeptResponses
    owner: str
    turns: tuple[Turn, ...]
    added: tuple[Message, ...]

    def keep(self, name: str, body: bytes, output: list[dict[str, Any]]) -> None:
        turn = Turn.of([*self.added, *read_items(output)])
        self.kept.keep(self.owner, name, Stored(body, (*self.turns, turn)))


@dataclass(frozen=True, slots=True)
class _Words:
    """How the events of one kind of item are called: of its text, of the part that the text is in, and of that part's index."""

    text: str
    part: str
    index: str
    type: str


_TEXT = _Words("output_text", "content_part", "content_index", "output_text")
_THOUGHT = _Words("reasoning_text", "content_part", "content_index", "reasoning_text")
_SUMMARY = _Words("reasoning_summary_text", "reasoning_summary_part", "summary_index", "summary_text")


class ResponsesForm:
    """The form of a response. `echo` is what it repeats of its call; `place` None: it is not kept; `declared`: its call's tools."""

    def __init__(self, name: str, echo: dict[str, Any], place: Place | None, declared: Declarations) -> None:
        self._declared = declared
        self._inputs: dict[int, InputText] = {}
        self._name = name
        self._echo = echo
        self._place = place
        self._thought = _THOUGHT if echo["reasoning"]["summary"] is None else _SUMMARY
        self._items = Items()
        self._ids: dict[int, str] = {}
        self._sent = 0

    def add(self, piece: Piece) -> None:
        self._items.take(piece.deltas)

    def whole(self, generation: Generation) -> bytes:
        return self._kept(self._ended(generation))

    def begin(self) -> list[bytes]:
        response = self._response("in_progress", [])
        return [self._event(f"response.{kind}", {"response": response}) for kind in ("created", "in_progress")]

    def events(self, piece: Piece) -> list[bytes]:
        return [event for change in self._items.take(piece.deltas) for event in self._changed(change, "completed")]

    def end(self, generation: Generation) -> list[bytes]:
        response = self._ended(generation)
        status = response["status"]
        out = [event for change in self._items.close() for event in self._changed(change, status)]
        self._kept(response)
        return [*out, self._event(f"response.{status}", {"response": response})]

    def beat(self) -> bytes:
        return self._event("response.in_progress", {"response": self._response("in_progress", [])})

    def fail(self, problem: Problem) -> list[bytes]:
        code = "rate_limit_exceeded" if problem.status in (429, 503) else "server_error"
        output = [self._item(item, "incomplete") for item in self._items.all]
        response = self._response("failed", output) | {"error": {"code": code, "message": problem.message}}
        return [self._event("response.failed", {"response": response})]

    def _ended(self, generation: Generation) -> dict[str, Any]:
        """The response in full."""
        cut = generation.choices[0].finish == "length"
        status: Status = "incomplete" if cut else "completed"
        items = self._items.all
        output = [self._item(item, "completed" if item.closed else status) for item in items]
        response = self._response(status, output) | {"usage": _usage(generation.usage())}
        return response | ({"incomplete_details": {"reason": "max_output_tokens"}} if cut else {})

    def _kept(self, response: dict[str, Any]) -> bytes:
        body = orjson.dumps(response)
        if self._place is not None:
            self._place.keep(self._name, body, response["output"])
        return body

    def _response(self, status: Status, output: list[dict[str, Any]]) -> dict[str, Any]:
        head = {"id": self._name, "object": "response", "status": status, "error": None, "incomplete_details": None}
        return {**head, **self._echo, "output": output, "usage": None}

    def _changed(self, change: Change, status: Status) -> list[bytes]:
        match change:
            case Opened(item):
                return self._opened(item)
            case Grew(item, text) if self._is_custom(item):
                new = self._inputs.setdefault(item.index, InputText()).push(text)
                delta = {**self._where(item), "delta": new}
                return [self._event("response.custom_tool_call_input.delta", delta)] if new else []
            case Grew(item, text):
                name = "function_call_arguments" if item.kind == "call" else self._words(item).text
                return [self._event(f"response.{name}.delta", {**self._where(item), **_scored(item), "delta": text})]
            case Closed(item):
                return self._closed(item, status)

    def _opened(self, item: Item) -> list[bytes]:
        empty = self._item(Item(item.index, item.kind, item.id, item.name), "in_progress")
        if item.kind != "call":
            empty |= {"content": []} if item.kind == "text" else {"content": [], "summary": []}
        added = {"output_index": item.index, "item": empty}
        out = [self._event("response.output_item.added", added)]
        if item.kind != "call":
            words = self._words(item)
            part = {**self._where(item), "part": _part(words, "")}
            out.append(self._event(f"response.{words.part}.added", part))
        return out

    def _closed(self, item: Item, status: Status) -> list[bytes]:
        where, text = self._where(item), item.text
        if self._is_custom(item):
            done = {**where, "input": input_of(text)}
            out = [self._event("response.custom_tool_call_input.done", done)]
        elif item.kind == "call":
            done = {**where, "name": self._declared.of(item.name).name, "arguments": text}
            out = [self._event("response.function_call_arguments.done", done)]
        else:
            words = self._words(item)
            out = [
                self._event(f"response.{words.text}.done", {**where, **_scored(item), "text": text}),
                self._event(f"response.{words.part}.done", {**where, "part": _part(words, text)}),
            ]
        done = {"output_index": item.index, "item": self._item(item, status)}
        return [*out, self._event("response.output_item.done", done)]

    def _is_custom(self, item: Item) -> bool:
        return item.kind == "call" and self._declared.of(item.name).custom

    def _words(self, item: Item) -> _Words:
        return _TEXT if item.kind == "text" else self._thought

    def _where(self, item: Item) -> dict[str, Any]:
        where = {"item_id": self._id(item), "output_index": item.index}
        return where if item.kind == "call" else {**where, self._words(item).index: 0}

    def _id(self, item: Item) -> str:
        if item.index not in self._ids:
            self._ids[item.index] = (
                f"{'ctc' if self._is_custom(item) else _PREFIXES[item.kind]}_{secrets.token_hex(12)}"
            )
        return self._ids[item.index]

    def _item(self, item: Item, status: Status) -> dict[str, Any]:
        head = {"id": self._id(item), "status": status}
        match item.kind:
            case "text":
                return {**head, "type": "message", "role": "assistant", "content": [_part(_TEXT, item.text)]}
            case "call":
                return {**head, **self._declared.of(item.name).item(item.id, item.text)}
            case "thought":
                parts = [_part(self._thought, item.text)]
                if self._thought is _SUMMARY:
                    return {**head, "type": "reasoning", "summary": parts}
                return {**head, "type": "reasoning", "summary": [], "content": parts}

    def _event(self, kind: str, fields: dict[str, Any]) -> bytes:
        data = line({"type": kind, "sequence_number": self._sent, **fields})
        self._sent += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), data)


def _part(words: _Words, text: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": words.type, "text": text}
    return part | ({"annotations": [], "logprobs": []} if words is _TEXT else {})


def _scored(item: Item) -> dict[str, Any]:
    return {"logprobs": []} if item.kind == "text" else {}


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """The usage of a chat in the words of this API; writing to the cache costs nothing."""
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": usage["completion_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
