"""Logs of requests as clients of three APIs send them, turned into prompts told as block ids.

A line is a request's body (`messages`, `input` or `prompt`), or the batch form with the body under `body`. Beside the body's fields
a line may give `timestamp` (ms), `session_id` (or `prompt_cache_key`, `user`), `output_tokens` and `think_time` (s).

There is no tokenizer here: a token stands for four bytes of text, and for itself where a prompt is given as token ids.
Two prompts share blocks exactly as far as their text is the same. Bodies are kept, so that a live replay can send them as
they are; the forms that we write leave them out, and with them every word of the text.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from stepwell.base.errors import ConfigError
from stepwell.base.units import ceil_div
from stepwell.replay.dialects import Dialect, conversation_of, dialect_of
from stepwell.replay.records import Record, as_record
from stepwell.replay.trace import (
    MAX_BLOCK_ID,
    MAX_SECONDS,
    MAX_TOKENS,
    Conversation,
    Run,
    Stream,
    Trace,
    Turn,
    runs_of,
)

BLOCK = 64
TOKEN_BYTES = 4
_DEFAULT_OUTPUT = 256
_SESSIONS = ("session_id", "prompt_cache_key", "user")


def is_call(record: Record) -> bool:
    """Whether a line is a request as a client sends it, bare or in the batch form."""
    return "body" in record.fields or dialect_of(record.fields) is not None


@dataclass(slots=True)
class Calls:
    """Collects the lines of one file. Where all have timestamps they are sent at those times, whatever the answers do; else
    each session is a conversation, and a prompt that names no session carries on the one whose last prompt it begins with."""

    name: str
    _ids: dict[tuple[int, bytes], int] = field(default_factory=dict)
    _timed: list[tuple[float, Turn]] = field(default_factory=list)
    _sessions: dict[str, list[Turn]] = field(default_factory=dict)
    _ends: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._timed) + len(self._sessions)

    def add(self, record: Record) -> None:
        """One line. Raises ConfigError."""
        body = as_record(record.fields["body"], f"{record.where}, body") if "body" in record.fields else record
        text = _canonical(body)
        ids = self._blocks(text, record)
        prompt = max(1, ceil_div(len(text), TOKEN_BYTES))
        turn = Turn(
            0.0,
            prompt,
            _output(record, body),
            record.number("think_time", MAX_SECONDS, 0.0),
            runs_of(np.asarray(ids, np.int64)),
            json.dumps(body.fields, separators=(",", ":")).encode(),
        )
        timed = "timestamp" in record.fields
        if self and timed != bool(self._timed):
            raise ConfigError(
                f"{record.where}: either every line has a `timestamp` or none has: mend or split the file"
            )
        if timed:
            self._timed.append((record.number("timestamp", 1e15) / 1000, turn))
        else:
            self._thread(_session(record, body), turn, ids)

    def trace(self) -> Trace:
        """What the lines come to."""
        if self._timed:
            order = sorted(self._timed, key=lambda pair: pair[0])
            first = order[0][0]
            streams = tuple(Stream(when - first, (turn,)) for when, turn in order)
            return Trace((Conversation(self.name, BLOCK, streams),), open_loop=True)
        made = (Conversation(name, BLOCK, (Stream(0.0, _spaced(turns)),)) for name, turns in self._sessions.items())
        return Trace(tuple(made))

    def _thread(self, session: str | None, turn: Turn, ids: list[int]) -> None:
        if session is None:
            begun = next((self._ends[i] for i in reversed(ids) if i in self._ends), None)
            session = begun if begun is not None else f"{self.name}#{len(self._sessions)}"
        turns = self._sessions.setdefault(session, [])
        if turns and (before := _last(turns[-1].runs)) is not None:
            self._ends.pop(before, None)
        turns.append(turn)
        if ids:
            self._ends[ids[-1]] = session

    def _blocks(self, text: bytes, record: Record) -> list[int]:
        """Ids of the whole blocks of `text`: equal for equal prefixes."""
        ids: list[int] = []
        before, size = -1, BLOCK * TOKEN_BYTES
        for at in range(0, len(text) - size + 1, size):
            key = before, blake2b(text[at : at + size], digest_size=16).digest()
            before = self._ids.setdefault(key, len(self._ids))
            ids.append(before)
        if len(self._ids) > MAX_BLOCK_ID:
            raise ConfigError(f"{record.where}: more than {MAX_BLOCK_ID:,} different blocks: split the file")
        return ids


def _canonical(body: Record) -> bytes:
    """What the prompt says, as bytes: the same front for the same front of tools and messages."""
    prompt = body.fields.get("prompt")
    if isinstance(prompt, str):
        return prompt.encode()
    if isinstance(prompt, list) and prompt and all(type(x) is int and 0 <= x < 2**31 for x in prompt):
        return np.asarray(prompt, "<i4").tobytes()
    if dialect_of(body.fields) in (None, Dialect.COMPLETIONS):
        raise body.fail("prompt", "a text or a list of token ids, one prompt a line")
    parts = [json.dumps(body.fields["tools"], sort_keys=True)] if body.fields.get("tools") else []
    for message in conversation_of(body):
        role, content = message.get("role"), message.get("content")
        rest = {k: v for k, v in message.items() if k not in ("role", "content") and v is not None}
        said = content if isinstance(content, str) else json.dumps(content, sort_keys=True)
        parts.append(f"{role}\n{said}" + (json.dumps(rest, sort_keys=True) if rest else ""))
    return "\x1e".join(parts).encode("utf-8", "surrogatepass")


def _output(record: Record, body: Record) -> int:
    """Tokens of the answer: as logged, else as many as were allowed."""
    if "output_tokens" in record.fields:
        return record.whole("output_tokens", 0, MAX_TOKENS)
    dialect = dialect_of(body.fields)
    for name in () if dialect is None else dialect.limits:
        if body.fields.get(name) is not None:
            return body.whole(name, 0, MAX_TOKENS)
    return _DEFAULT_OUTPUT


def _session(record: Record, body: Record) -> str | None:
    for told in (record, body):
        for name in _SESSIONS:
            value = told.fields.get(name)
            if isinstance(value, str) and value:
                return value[:512]
    metadata = body.fields.get("metadata")
    user = metadata.get("user_id") if isinstance(metadata, dict) else None  # Claude Code tells its session there
    return user[:512] if isinstance(user, str) and user else None


def _last(runs: tuple[Run, ...]) -> int | None:
    return runs[-1][0] + runs[-1][1] - 1 if runs else None


def _spaced(turns: list[Turn]) -> tuple[Turn, ...]:
    """The same with times: one second for each request beside what was thought."""
    when, out = 0.0, []
    for i, turn in enumerate(turns):
        when += turn.think + 1.0 if i else 0.0
        out.append(Turn(when, turn.prompt, turn.output, turn.think, turn.runs, turn.body))
    return tuple(out)
