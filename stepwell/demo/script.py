"""What the demo's callers say, and in which order: codes of many things, and a question about one of them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

_COLOURS = "red blue green yellow white black orange purple brown grey pink silver golden"
_THINGS = "box lamp door chair boat cup bag clock coat drum flag gate kite ladder mirror table wheel bell basket"
_SHARED = 12
_TOLD = 24


@dataclass(frozen=True, slots=True)
class Script:
    """One conversation: a system prompt, what the user says before each answer, and what a right answer holds."""

    system: str
    said: tuple[str, ...]
    wanted: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """Turn `turn` of conversation `conversation`, both counted from 0."""

    conversation: int
    turn: int


def write_scripts(conversations: int, turns: int, seed: int = 0) -> list[Script]:
    """Conversations under one system prompt that grow by about 400 tokens a turn."""
    rng = random.Random(seed)
    names = [f"{colour} {thing}" for colour in _COLOURS.split() for thing in _THINGS.split()]
    shared = _codes(rng, names[:_SHARED])
    return [_script(rng, shared, names[_SHARED:], turns) for _ in range(conversations)]


def _script(rng: random.Random, shared: dict[str, str], others: list[str], turns: int) -> Script:
    names = rng.sample(others, _TOLD * turns)
    said, wanted = [], []
    for turn in range(turns):
        codes = _codes(rng, names[turn * _TOLD : (turn + 1) * _TOLD])
        asked = rng.choice(list(codes))
        said.append(f"{_told(codes)} What is the code of the {asked}?")
        wanted.append(codes[asked])
    return Script(_told(shared), tuple(said), tuple(wanted))


def _codes(rng: random.Random, names: list[str]) -> dict[str, str]:
    return {name: str(rng.randrange(1000, 10000)) for name in names}


def _told(codes: dict[str, str]) -> str:
    return " ".join(f"The code of the {name} is {code}." for name, code in codes.items())


def speaking_order(conversations: int, turns: int) -> Iterator[Turn]:
    """Every turn once, in rounds that run forth and back.

    Who spoke last speaks first in the next round and should find its prompt on the device; who spoke first waits
    longest, and by then everybody else has pushed its prompt out.
    """
    for turn in range(turns):
        forth = range(conversations)
        yield from (Turn(c, turn) for c in (forth if turn % 2 == 0 else reversed(forth)))
