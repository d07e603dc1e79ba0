"""What the demo's agents say, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from stepwell.testing.tokenizer import sample_text

_SYSTEM_LINES = 20
_FIRST_LINES = 45
_NEXT_LINES = 65


@dataclass(frozen=True, slots=True)
class Script:
    """One conversation: a system prompt, and what the user (or a tool) says before each answer."""

    system: str
    said: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn `turn` of conversation `conversation`, both counted from 0."""

    conversation: int
    turn: int


def write_scripts(conversations: int, turns: int, seed: int = 0) -> list[Script]:
    """Conversations under one system prompt that grow from about 1,000 to about 1,000 × `turns` tokens."""
    system = "\n".join(sample_text(seed, _SYSTEM_LINES))
    return [
        Script(system, tuple(_said(seed + 1 + c * turns + t, first=t == 0) for t in range(turns)))
        for c in range(conversations)
    ]


def _said(seed: int, *, first: bool) -> str:
    return "\n".join(sample_text(seed, _FIRST_LINES if first else _NEXT_LINES))


def speaking_order(conversations: int, turns: int) -> Iterator[Turn]:
    """Every turn once, in rounds that run forth and back.

    Who spoke last speaks first in the next round and should find its prompt on the device; who spoke first waits
    longest, and by then everybody else has pushed its prompt out.
    """
    for turn in range(turns):
        forth = range(conversations)
        yield from (Turn(c, turn) for c in (forth if turn % 2 == 0 else reversed(forth)))
