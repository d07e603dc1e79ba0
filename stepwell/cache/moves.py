"""What the directory asks of the stores, as plain data: they carry it out, and report the ticket of each copy once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Literal, TypeAlias

from stepwell.base.geometry import Ints


class Tier(IntEnum):
    """Where bytes are. Lower is faster. The directory knows every slot of the native tiers; an external store has an index of its own,
    is asked for each prompt anew (`stepwell.cache.external`), and has no slots: an extent there only counts pages."""

    DEVICE = 0
    HOST = 1
    DISK = 2
    EXTERNAL = 3

    __hash__ = int.__hash__  # an enum hashes its name, in Python; tiers are looked up on every path


DEVICE, HOST, DISK, EXTERNAL = Tier
"""To look up `Tier.DEVICE` takes twenty times as long in Python 3.11, where enums have a `__getattr__`."""

NATIVE = (DEVICE, HOST, DISK)
"""The tiers that the directory keeps."""


@dataclass(frozen=True, slots=True, eq=False)
class Extent:
    """Slots of one tier's arena, in order; every slot is one page long."""

    tier: Tier
    slots: Ints


@dataclass(frozen=True, slots=True)
class LiveState:
    """The live recurrent state in this slot of the running set, as the target of a state leg."""

    slot: int


@dataclass(frozen=True, slots=True)
class Name:
    """The name of one record on disk, or of one object in an external store: keyed digests (`stepwell.cache.disk.names`), from which
    nobody can find the tokens.

    root    digest of the empty prefix of the salt       parent   of the tokens before `start`
    digest  of the tokens before `end`                   An image stands at start == end, and parent == digest.
    """

    root: bytes
    parent: bytes
    digest: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `source` to `target`, then report `ticket` once.

    what   "kv": slot i of the source goes to slot i of the target.
           "image": the source's slots, in order, hold one image; the target is as many slots, or a live state.
    tokens the position the bytes belong to: end of the range for KV, tokens folded for an image.
    names  to disk: the records to be made, in order; each takes as many of the target's slots as it has blocks (or
           an image pages). To and from an external store: the objects to be stored or read, likewise; of the first chunk that is
           read, only as many pages count, from its end, as there are slots.
    """

    ticket: int
    what: Literal["kv", "image"]
    source: Extent
    target: Extent | LiveState
    tokens: int
    names: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """The end of one copy, which took `seconds` (0: not measured). Reports of unknown tickets are ignored."""

    ticket: int
    ok: bool
    error: str = ""
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True, eq=False)
class Forget:
    """Remove what these disk slots hold from the index. They may be the target of a later move."""

    slots: Ints


@dataclass(frozen=True, slots=True)
class Divide:
    """If the disk slots `last` and `first` follow each other in one record, split it into two, the second from token `at` on, whose prefix
    has this digest. So a record ends wherever a branch leaves it or an image stands."""

    last: int
    first: int
    at: int
    digest: bytes


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """Note that what these disk slots hold has just been used."""

    slots: Ints


DiskNote: TypeAlias = Forget | Divide | Touch
"""Bookkeeping for the disk: carried out in the order given, between the moves of the same list, and never reported."""

Task: TypeAlias = Move | DiskNote


def moves_of(tasks: Iterable[Task]) -> list[Move]:
    """The copies among `tasks`."""
    return [task for task in tasks if isinstance(task, Move)]
