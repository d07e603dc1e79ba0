"""What an answer is made of, piece by piece: text, thoughts, calls of tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Said:
    """Text for the caller."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text that the model wrote for itself."""

    text: str


@dataclass(frozen=True, slots=True)
class CallOpened:
    """The model calls tool `name`; its call number `index`, arguments to follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallGrew:
    """More of the arguments (JSON text) of call `index`."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallClosed:
    """The arguments of call `index` are whole: strict JSON of an object."""

    index: int


Delta: TypeAlias = Said | Thought | CallOpened | CallGrew | CallClosed
