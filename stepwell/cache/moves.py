"""Copies that the directory asks for. Plain data: a store carries them out and reports each ticket once."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from stepwell.base.geometry import Ints


class Tier(IntEnum):
    """Where bytes are. Lower is faster."""

    DEVICE = 0
    HOST = 1
    DISK = 2


@dataclass(frozen=True, slots=True)
class Extent:
    """Slots of one tier's arena, in order; every slot is one page long."""

    tier: Tier
    slots: Ints


@dataclass(frozen=True, slots=True)
class LiveState:
    """The live recurrent state in this slot of the running set, as the target of a state leg."""

    slot: int


@dataclass(frozen=True, slots=True)
class Move:
    """Copy `source` to `target`, then report `ticket` once.

    what   "kv": slot i of the source goes to slot i of the target.
           "image": the source's slots, in order, hold one image; the target is as many slots, or a live state.
    tokens the position the bytes belong to: end of the range for KV, tokens folded for an image.
    """

    ticket: int
    what: Literal["kv", "image"]
    source: Extent
    target: Extent | LiveState
    tokens: int


@dataclass(frozen=True, slots=True)
class Report:
    """The end of one ticket. A ticket that no one knows any more is ignored."""

    ticket: int
    ok: bool
    error: str = ""
