"""What control and the processes of ranks say to each other. Steps, results, moves and reports have the form of `stepwell.engine.wire`.

    orders    to every rank         answers   to control, over the same channel         signs   to the watch, over one of their own

Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from stepwell.cache.config import Costs
from stepwell.cache.disk.archive import Dormant
from stepwell.cache.external.ledger import What
from stepwell.cache.external.query import Query, QueryAnswer
from stepwell.cache.moves import Name
from stepwell.engine.config import EngineConfig
from stepwell.store.disk.health import DiskStats

STEP, TASKS, CATALOGUE, GIVE_WAY, OUTSIDE, STOP = range(6)
"""Kinds of orders: a step and its masks; tasks; what becomes of dormant records; whether copies go before page-locking; what the external
store is asked and told; the end."""
TOLD, RESULT, REPORTS, FOUND = range(6, 10)
"""Kinds of answers, the last of them the external store's; signs are `TOLD`."""


class Begin(msgspec.Struct):
    """The first line that a rank reads. `config` is the rank's own: its share of host memory and of the disk. `orders` and `signs` are
    descriptors of its channels, `directory` is where the ranks meet."""

    config: EngineConfig
    rank: int
    directory: str
    orders: int
    signs: int
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


class Progress(msgspec.Struct, array_like=True, frozen=True):
    """How far a rank has come. Of two ranks with the same orders, the one with the larger `reached` is ahead.

    orders   taken, the last of which may be under way
    sums     over all ranks that it has begun to wait for
    done     results
    turns    of its loop, which goes round while something is being copied
    busy     whether an order is under way or a result is due
    """

    orders: int
    sums: int
    done: int
    turns: int
    busy: bool

    @property
    def reached(self) -> tuple[int, int, int, bool]:
        return self.orders, self.sums, self.done, not self.busy


class Alive(msgspec.Struct, tag="alive", array_like=True):
    """A sign of life: how far the rank is, digests of all results up to some of them, by count, and what is counted."""

    progress: Progress
    digests: dict[int, int]
    state: State


class Adopt(msgspec.Struct, tag="adopt", array_like=True):
    """This record, by its number on each rank, is in these slots (int32) from now on."""

    records: list[int]
    slots: bytes


class Drop(msgspec.Struct, tag="drop", array_like=True):
    """These records are of no use to anyone: the numbers of each rank."""

    records: list[list[int]]


class LookUp(msgspec.Struct, tag="look up", array_like=True):
    """What does the external store have of this? The first `ranks` ranks answer."""

    query: Query
    ranks: int


class Release(msgspec.Struct, tag="release", array_like=True):
    """The lease of this query ends, or nobody waits for its answer any more."""

    number: int


class Lose(msgspec.Struct, tag="lose", array_like=True):
    """The external store is to drop these objects."""

    what: What
    names: list[Name]


Told: TypeAlias = Building | Here | Ready | Failed | Alive
Filing: TypeAlias = Adopt | Drop
Outside: TypeAlias = LookUp | Release | Lose

_ENCODER = msgspec.msgpack.Encoder()
_TOLD = msgspec.msgpack.Decoder(Told)
_FILING = msgspec.msgpack.Decoder(Filing)
_OUTSIDE = msgspec.msgpack.Decoder(Outside)
_ANSWERS = msgspec.msgpack.Decoder(list[QueryAnswer])


def encode(message: Told | Filing | Outside | Sequence[QueryAnswer]) -> bytes:
    return _ENCODER.encode(message)


def decode_told(data: bytes) -> Told:
    """Raises msgspec.DecodeError."""
    return _TOLD.decode(data)


def decode_filing(data: bytes) -> Filing:
    """Raises msgspec.DecodeError."""
    return _FILING.decode(data)


def decode_outside(data: bytes) -> Outside:
    """Raises msgspec.DecodeError."""
    return _OUTSIDE.decode(data)


def decode_answers(data: bytes) -> list[QueryAnswer]:
    """Of the external store. Raises msgspec.DecodeError."""
    return _ANSWERS.decode(data)
