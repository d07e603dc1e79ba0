"""The two shapes in which OpenAI's API gives answers: text completions and chat completions, whole or in chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.generation.choice import Choice
from stepwell.server.generation.generate import Generation, Piece
from stepwell.server.http.errors import Problem
from stepwell.server.write.deltas import CallClosed, CallGrew, CallOpened, Said, Thought
from stepwell.server.write.lines import line
from stepwell.server.write.scores import ChatScores, Entry, Scores, TextScores, prompt_scores

_DONE = b"data: [DONE]\n\n"
_OPENING = b'"delta":{"role":"assistant","content":""}'
_EMPTY_DELTA = b'"delta":{}'
_EMPTY_TEXT = b'"text":""'
_NULL = b"null"


class Collected:
    """One choice of a whole answer as it comes together."""

    __slots__ = ("_calls", "_entries", "_said", "_thought", "_tokens")

    def __init__(self) -> None:
        self._said: list[str] = []
        self._thought: list[str] = []
        self._calls: list[tuple[CallOpened, list[str]]] = []
        self._entries: list[Entry] = []
        self._tokens: list[int] = []

    def add(self, piece: Piece) -> None:
        self._entries += piece.scores
        self._tokens += piece.tokens
        for delta in piece.deltas:
            match delta:
                case Said(text):
                    self._said.append(text)
                case Thought(text):
                    self._thought.append(text)
                case CallOpened():
                    self._calls.append((delta, []))
                case CallGrew(index, text):
                    self._calls[index][1].append(text)

    @property
    def token_ids(self) -> list[int]:
        """The answer's tokens."""
        return self._tokens

    def text(self) -> dict[str, Any]:
        return {"text": "".join(self._said)}

    def message(self) -> dict[str, Any]:
        """The message of a chat; one that only calls tools has no content."""
        said = "".join(self._said)
        message: dict[str, Any] = {"role": "assistant", "content": said, "refusal": None}
        if self._thought:
            message |= _thought("".join(self._thought))
        if self._calls:
            message["content"] = said or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(grown)}}
                for call, grown in self._calls
            ]
        return message

    def logprobs(self, scores: Scores | None) -> dict[str, Any] | None:
        return None if scores is None else scores.write(self._entries)


@dataclass(frozen=True, slots=True)
class Shape:
    """Writes the answers to one call. `scored`: with log-probabilities; `prompt_scored`: with those of prompts, too.

    with_ids  with the ids of each answer's tokens, and of its prompt's: in the answer's choice, or beside the choices of a chat
    """

    id: str
    model: str
    created: int
    chat: bool
    tokenizer: Tokenizer
    scored: bool = False
    prompt_scored: bool = False
    with_ids: bool = False

    def whole(self, choices: Sequence[Choice], collected: Sequence[Collected], usage: dict[str, Any]) -> bytes:
        """The answer to a call that does not stream."""
        kind = "chat.completion" if self.chat else "text_completion"
        written = [self._choice(choice, parts) for choice, parts in zip(choices, collected, strict=True)]
        body = {**self._head(kind), "choices": written, "usage": usage}
        if self.chat and self.prompt_scored:
            body["prompt_logprobs"] = prompt_scores(self.tokenizer, choices[0].prompt_entries())
        if self.chat and self.with_ids:
            body["prompt_token_ids"] = choices[0].prompt_ids
        return orjson.dumps(body)

    def chunks(self, with_usage: bool) -> Chunks:
        """A writer of chunks; `with_usage` adds the field that announces usage at the end."""
        head = line(self._head("chat.completion.chunk" if self.chat else "text_completion"))[:-1]
        return Chunks(head, self, b',"usage":null' if with_usage else b"")

    def scores(self) -> Scores | None:
        """A fresh writer of one choice's log-probabilities, if they are wanted."""
        if not self.scored:
            return None
        return ChatScores(self.tokenizer) if self.chat else TextScores(self.tokenizer)

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, choice: Choice, parts: Collected) -> dict[str, Any]:
        answer: dict[str, Any] = {"message": parts.message()} if self.chat else parts.text()
        logprobs = parts.logprobs(self.scores())
        written = {"index": choice.index, **answer, "logprobs": logprobs, "finish_reason": choice.finish}
        if self.prompt_scored and not self.chat:
            written["prompt_logprobs"] = prompt_scores(self.tokenizer, choice.prompt_entries())
        if self.with_ids:
            written["token_ids"] = parts.token_ids
            if not self.chat:
                written["prompt_token_ids"] = choice.prompt_ids
        return written


class Chunks:
    """Server-sent events of one stream. Chunks differ only in their new part, so only that is encoded for each."""

    __slots__ = ("_head", "_plain", "_scores", "_shape", "_start", "_tail")

    def __init__(self, head: bytes, shape: Shape, tail: bytes) -> None:
        self._head = head
        self._start = b"data: " + head + b',"choices":[{"index":'
        self._plain = not (shape.scored or shape.with_ids)
        self._shape = shape
        self._tail = tail
        self._scores: dict[int, Scores] = {}

    def piece(self, piece: Piece) -> list[bytes]:
        """The chunks of one piece: one a delta; scores and token ids come with the first, the end with the last."""
        index, chat = piece.choice.index, self._shape.chat
        if self._plain and not piece.first and piece.end is None and len(piece.deltas) == 1:
            delta = piece.deltas[0]
            if isinstance(delta, Said):  # nearly all pieces are such
                return [self._chunk(index, self._body(delta), _NULL, _NULL)]
        out = [self._opening(piece)] if piece.first and chat else []
        bodies = [self._body(delta) for delta in piece.deltas if not isinstance(delta, CallClosed)]
        scores = self._logprobs(index, piece.scores)
        ids = self._ids(piece)
        if not bodies and (piece.end is not None or scores is not _NULL or ids):
            bodies = [_EMPTY_DELTA if chat else _EMPTY_TEXT]
        for i, body in enumerate(bodies):
            end = orjson.dumps(piece.end) if i == len(bodies) - 1 else _NULL
            out.append(self._chunk(index, body + ids, scores, end) if i == 0 else self._chunk(index, body, _NULL, end))
        return out

    def empty(self) -> bytes:
        """A chunk that adds nothing."""
        return self._chunk(0, _EMPTY_DELTA if self._shape.chat else _EMPTY_TEXT, _NULL, _NULL)

    def usage(self, usage: dict[str, Any]) -> bytes:
        """The last chunk where usage was asked for."""
        return b"data: " + self._head + b',"choices":[],"usage":' + line(usage) + b"}\n\n"

    def _opening(self, piece: Piece) -> bytes:
        """The first chunk of a chat, which has no text."""
        tail = b',"prompt_token_ids":' + orjson.dumps(piece.choice.prompt_ids) if self._shape.with_ids else b""
        return self._chunk(piece.choice.index, _OPENING, _NULL, _NULL, tail)

    def _ids(self, piece: Piece) -> bytes:
        """Fields of a choice with the ids of its new tokens, and of the prompt beside the first; empty where none are due."""
        if not self._shape.with_ids or not piece.tokens:
            return b""
        prompt = b""
        if piece.first and not self._shape.chat:
            prompt = b',"prompt_token_ids":' + orjson.dumps(piece.choice.prompt_ids)
        return b',"token_ids":' + orjson.dumps(piece.tokens) + prompt

    def _body(self, delta: Said | Thought | CallOpened | CallGrew) -> bytes:
        match delta:
            case Said(text):
                said = line(text)
                return b'"delta":{"content":' + said + b"}" if self._shape.chat else b'"text":' + said
            case Thought(text):
                return _delta(_thought(text))
            case CallOpened(index, id_, name):
                function = {"name": name, "arguments": ""}
                return _delta({"tool_calls": [{"index": index, "id": id_, "type": "function", "function": function}]})
            case CallGrew(index, text):
                return _delta({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def _logprobs(self, index: int, entries: Sequence[Entry]) -> bytes:
        if not entries:
            return _NULL
        writer = self._scores.get(index) or self._shape.scores()
        if writer is None:
            return _NULL
        self._scores[index] = writer
        return line(writer.write(entries))

    def _chunk(self, index: int, body: bytes, scores: bytes, end: bytes, more: bytes = b"") -> bytes:
        """One event; `more` are further fields beside its choices."""
        fields = (self._start, index, body, scores, end, more, self._tail)
        return b'%b%d,%b,"logprobs":%b,"finish_reason":%b}]%b%b}\n\n' % fields


class ChoicesForm:
    """The form of completions and chats: a list of choices. `with_usage`: a stream ends with what the call took."""

    def __init__(self, shape: Shape, sequences: int, with_usage: bool) -> None:
        self._shape = shape
        self._with_usage = with_usage
        self._chunks = shape.chunks(with_usage)
        self._collected = [Collected() for _ in range(sequences)]

    def add(self, piece: Piece) -> None:
        self._collected[piece.choice.index].add(piece)

    def whole(self, generation: Generation) -> bytes:
        return self._shape.whole(generation.choices, self._collected, generation.usage())

    def begin(self) -> list[bytes]:
        return []

    def events(self, piece: Piece) -> list[bytes]:
        return self._chunks.piece(piece)

    def end(self, generation: Generation) -> list[bytes]:
        return [self._chunks.usage(generation.usage()), _DONE] if self._with_usage else [_DONE]

    def beat(self) -> bytes:
        return self._chunks.empty()

    def fail(self, problem: Problem) -> list[bytes]:
        return [b"data: " + line(problem.body) + b"\n\n", _DONE]


def _thought(text: str) -> dict[str, Any]:
    """Under both names that clients read it by."""
    return {"reasoning_content": text, "reasoning": text}


def _delta(value: dict[str, Any]) -> bytes:
    return b'"delta":' + line(value)
