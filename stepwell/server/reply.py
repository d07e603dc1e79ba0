"""An answer's visible text taken apart: thoughts, text, calls.

    <think> … </think> text <tool_call> … </tool_call> text …

Text is held back only while it may still become a mark, or space that a mark would swallow.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from stepwell.server.calling import OPEN, CallReader, Signatures
from stepwell.server.deltas import CallOpened, Delta, Said, Thought

THINK, THOUGHT = "<think>", "</think>"


class Start(Enum):
    """Where the prompt leaves the answer."""

    OPEN = auto()  # the model may begin with a thought
    THINKING = auto()  # the prompt has opened one
    SPEAKING = auto()  # marks of thoughts mean nothing


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read an answer. `signatures` None: no calls are looked for; `several` False: the first call ends the answer.

    end_of_thought  the token that ends a thought, where it is one token
    """

    start: Start = Start.SPEAKING
    signatures: Signatures | None = None
    several: bool = True
    new_id: Callable[[], str] = field(default=lambda: f"call_{secrets.token_hex(12)}")
    end_of_thought: int | None = None

    @property
    def plain(self) -> bool:
        """Whether all text is simply said."""
        return self.start is Start.SPEAKING and self.signatures is None


class ReplyReader:
    """Reads one answer. `calls` counts those that the caller has heard of; `over` once nothing after it is wanted."""

    __slots__ = ("_buffer", "_call", "_reading", "_step", "_trim", "calls", "over", "thinking")

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._buffer = ""
        self._call: CallReader | None = None
        self._trim = reading.start is not Start.SPEAKING
        steps = {Start.OPEN: self._begin, Start.THINKING: self._think, Start.SPEAKING: self._say}
        self._step: Callable[[bool], list[Delta] | None] = steps[reading.start]
        self.calls = 0
        self.over = False
        self.thinking = reading.start is Start.THINKING

    def push(self, text: str) -> list[Delta]:
        """What more text adds."""
        self._buffer += text
        return self._read(False)

    def flush(self) -> list[Delta]:
        """The answer has ended: whatever was held back."""
        return self._read(True)

    def _read(self, ended: bool) -> list[Delta]:
        out: list[Delta] = []
        while not self.over and (found := self._step(ended)) is not None:
            out += found
        return out

    def _begin(self, ended: bool) -> list[Delta] | None:
        start = self._buffer.lstrip()
        if start.startswith(THINK):
            self._buffer = start.removeprefix(THINK)
            self._step, self.thinking = self._think, True
        elif not ended and THINK.startswith(start):
            return None
        else:
            self._step, self._trim = self._say, False
        return []

    def _think(self, ended: bool) -> list[Delta] | None:
        text = self._trimmed()
        before, mark, after = text.partition(THOUGHT)
        if mark:
            self._buffer, self._trim, self._step, self.thinking = after, True, self._say, False
            thought = before.rstrip()
            return [Thought(thought)] if thought else []
        safe = text.rstrip() if ended else _before_mark(text, THOUGHT)
        self._buffer = "" if ended else text[len(safe) :]
        return self._passed(Thought, safe)

    def _say(self, ended: bool) -> list[Delta] | None:
        text = self._trimmed()
        if self._reading.signatures is None:
            self._buffer = ""
            return self._passed(Said, text)
        before, mark, after = text.partition(OPEN)
        if mark:
            self._call = CallReader(self.calls, self._reading.new_id, self._reading.signatures)
            self._buffer, self._step = after, self._read_call
            said = before.rstrip()
            return [Said(said)] if said else []
        safe = text if ended else _before_mark(text, OPEN)
        self._buffer = text[len(safe) :]
        return self._passed(Said, safe)

    def _read_call(self, ended: bool) -> list[Delta] | None:
        call = self._call
        assert call is not None
        text, self._buffer = self._buffer, ""
        out = call.push(text)
        self.calls += sum(isinstance(delta, CallOpened) for delta in out)
        if call.done:
            self._call, self._step = None, self._say
            self.over = call.opened and not self._reading.several
            if call.failed:  # marks that hold no call are text: the first is passed on, so that it is not read again
                self._buffer = call.rest.removeprefix(OPEN)
                return [*out, Said(OPEN)]
            self._buffer, self._trim = call.rest, True
            return out
        if ended:
            self._call, self._step = None, self._say
            left = call.flush()
            return [*out, Said(left)] if left else out
        return out or None

    def _trimmed(self) -> str:
        """The buffer, without space at the beginning where it is to go."""
        text = self._buffer.lstrip() if self._trim else self._buffer
        self._trim = self._trim and not text
        return text

    def _passed(self, kind: type[Said] | type[Thought], text: str) -> list[Delta] | None:
        return [kind(text)] if text else None


def _before_mark(text: str, mark: str) -> str:
    """The part of `text` that cannot belong to a mark, or to space before one, however it goes on."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:size]):
            return text[:-size].rstrip()
    return text.rstrip()
