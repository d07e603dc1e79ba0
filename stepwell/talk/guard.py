"""Keeps a template's own marks apart from the same words in what people and tools say.

A file that holds `<|im_end|>` must not end a turn. Before a conversation is rendered, words that the vocabulary has as tokens are replaced
in all contents by others that mean nothing. Afterwards the text is taken apart at these, so that what they stand for can be tokenized as
plain text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from stepwell.talk.history import Message

_KEPT = frozenset({"role", "tool_call_id", "type", "id"})


class Guard:
    """Guards one rendering. `marks` are the words that the vocabulary has as tokens of their own."""

    def __init__(self, marks: Collection[str]) -> None:
        longest_first = sorted(marks, key=len, reverse=True)
        self._marks = re.compile("|".join(map(re.escape, longest_first)) if marks else r"(?!)")
        self.nonce = f"sw{secrets.token_hex(8)}"
        self._held: list[str] = []
        self._stand_ins = re.compile(rf"{self.nonce}x(\d+)x")

    def messages(self, messages: Sequence[Message], thoughts: Collection[str]) -> list[Message]:
        """The same messages, guarded. Marks of `thoughts` stay in answers that come without thoughts: templates look for them there."""
        out = []
        for message in messages:
            free = thoughts if message["role"] == "assistant" and "reasoning_content" not in message else ()
            out.append(
                {name: self._guarded(value, free) if name not in _KEPT else value for name, value in message.items()}
            )
        return out

    def value(self, value: Any, free: Collection[str] = ()) -> Any:
        """Any JSON with its texts guarded; the marks in `free` stay as they are."""
        return self._guarded(value, free)

    def pieces(self, text: str) -> list[tuple[str, bool]]:
        """A rendered text in pieces, each with whether it is plain: text in which no mark is a token."""
        pieces = []
        for i, piece in enumerate(self._stand_ins.split(text)):
            found = self._held[int(piece)] if i % 2 else piece
            if found:
                pieces.append((found, bool(i % 2)))
        return pieces

    def whole(self, text: str) -> str:
        """A rendered text as it would be without a guard."""
        return self._stand_ins.sub(lambda found: self._held[int(found[1])], text) if self._held else text

    def _guarded(self, value: Any, free: Collection[str]) -> Any:
        if isinstance(value, str):
            return self._marks.sub(lambda found: self._stand_in(found[0], free), value)
        if isinstance(value, Mapping):
            return {self._guarded(name, free): self._guarded(inner, free) for name, inner in value.items()}
        if isinstance(value, list | tuple):
            return [self._guarded(inner, free) for inner in value]
        return value

    def _stand_in(self, mark: str, free: Collection[str]) -> str:
        if mark in free:
            return mark
        self._held.append(mark)
        return f"{self.nonce}x{len(self._held) - 1}x"
