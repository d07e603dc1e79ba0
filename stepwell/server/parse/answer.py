"""An answer put together again, as its caller will send it back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepwell.server.prompt.written import Written
from stepwell.server.write.deltas import CallClosed, CallGrew, CallOpened, Delta, Said, Thought


class Answer:
    """Collects what an answer is made of."""

    def __init__(self) -> None:
        self._thought: list[str] = []
        self._said: list[str] = []
        self._before: int | None = None  # pieces of text before the first call
        self._calls: list[tuple[CallOpened, list[str]]] = []

    def add(self, deltas: Iterable[Delta]) -> None:
        for delta in deltas:
            match delta:
                case Said(text):
                    self._said.append(text)
                case Thought(text):
                    self._thought.append(text)
                case CallOpened():
                    self._before = len(self._said) if self._before is None else self._before
                    self._calls.append((delta, []))
                case CallGrew(index, text):
                    self._calls[index][1].append(text)
                case CallClosed():
                    pass

    def message(self) -> dict[str, Any]:
        """The message of a chat, of an answer without calls."""
        message = {"role": "assistant", "content": "".join(self._said)}
        return message | ({"reasoning_content": "".join(self._thought)} if self._thought else {})

    def written(self, tail: str) -> Written | None:
        """The part of the calls to be kept; `tail` is the text of the model from the space before the first call on. None without calls."""
        if not self._calls:
            return None
        calls = tuple((call.id, call.name, "".join(grown)) for call, grown in self._calls)
        return Written("".join(self._said[: self._before]), "".join(self._said), calls, tail)
