"""What control and the processes of ranks say to each other. Steps, results, moves and reports have the form of `stepwell.engine.wire`.

    orders    (kind, bytes …) to every rank         answers   (kind, rank, bytes) to control         signs   the same, to the watch

Nothing is pickled. All sockets lie in a private directory.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from stepwell.cache.config import Costs
from stepwell.cache.disk.archive import Dormant
from stepwell.engine.config import EngineConfig
from stepwell.store.disk.health import DiskStats

STEP, TASKS, CATALOGUE, GIVE_WAY, STOP = b"step", b"tasks", b"catalogue", b"way", b"stop"
"""Kinds of orders: a step and its masks; tasks; what becomes of dormant records; whether copies go before page-locking; the end."""
TOLD, RESULT, REPORTS = b"told", b"result", b"reports"
"""Kinds of answers."""


class Begin(msgspec.Struct):
    """The first line that a rank reads. `config` is the rank's own: its share of host memory and of the disk."""

    config: EngineConfig
    rank: int
    directory: str
    log_level: int
    log_format: str


class State(msgspec.Struct, array_like=True):
    """What a rank counts. `host_ready` None: all of host can be used."""

    compiled: dict[str, int]
    device_bytes: dict[str, int]
    host_ready: int | None
    host_ended: bool
    disk: DiskStats | None


class Building(msgspec.Struct, tag="building", array_like=True):
    """What a rank's start has come to."""

    phase: str


class Here(msgspec.Struct, tag="here", array_like=True):
    """A sign of life of a rank that is being built."""


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """A rank has been built. Pages, slots and length are the same on all; `dormant` is what earlier processes left in its folder, least
    recently used first."""

    pages: int
    slots: int
    max_model_len: int
    costs: Costs
    kernels: tuple[str, ...]
    copies: str
    state: State
    dormant: tuple[Dormant, ...]
    disk_speed: float


class Failed(msgspec.Struct, tag="failed", array_like=True):
    """A rank ends, for this reason. `config`: because it cannot work as configured."""

    reason: str
    config: bool


class Alive(msgspec.Struct, tag="alive", array_like=True):
    """A sign of life: steps launched and done, digests of all results up to some of them, by count, and what is counted."""

    launched: int
    done: int
    digests: dict[int, int]
    state: State


class Adopt(msgspec.Struct, tag="adopt", array_like=True):
    """This record, by its number on each rank, is in these slots (int32) from now on."""

    records: list[int]
    slots: bytes


class Drop(msgspec.Struct, tag="drop", array_like=True):
    """These records are of no use to anyone: the numbers of each rank."""

    records: list[list[int]]


Told: TypeAlias = Building | Here | Ready | Failed | Alive
Filing: TypeAlias = Adopt | Drop

_ENCODER = msgspec.msgpack.Encoder()
_TOLD = msgspec.msgpack.Decoder(Told)
_FILING = msgspec.msgpack.Decoder(Filing)


def encode(message: Told | Filing) -> bytes:
    return _ENCODER.encode(message)


def decode_told(data: bytes) -> Told:
    """Raises msgspec.DecodeError."""
    return _TOLD.decode(data)


def decode_filing(data: bytes) -> Filing:
    """Raises msgspec.DecodeError."""
    return _FILING.decode(data)


def orders_address(directory: str, rank: int) -> str:
    return f"ipc://{directory}/orders-{rank}"


def answers_address(directory: str) -> str:
    return f"ipc://{directory}/answers"


def signs_address(directory: str) -> str:
    return f"ipc://{directory}/signs"
