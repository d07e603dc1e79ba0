"""What is asked of an external store, what it answers, and what a plan is given of that."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.cache.disk.names import Trail
from stepwell.cache.moves import Name


@dataclass(frozen=True, slots=True)
class Query:
    """How far could this prompt be resumed from the store? KV before `start` is cached natively.

    number  names the query and the lease on whatever is found
    kv      chunks from `start` on, one after the other, ascending
    images  at the boundaries that would be worth a load, ascending; each is of use only where KV reaches as far
    """

    number: int
    start: int
    kv: tuple[Name, ...]
    images: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the store leases for query `number` until that is released: on every rank, KV from the query's start to `boundary`, and the
    image there.

    reach     where the first chunk is missing on any rank; the query's start if all are
    boundary  position of the deepest image that KV reaches; 0: there is none, and nothing is leased
    """

    number: int
    reach: int
    boundary: int


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """An answer that a plan may use: KV of [start, boundary) in whole chunks, and the state at `boundary`.

    trail  names the objects      least  tokens that a load from the store must gain over what native tiers serve
    until  time at which the lease may have ended
    """

    number: int
    trail: Trail
    start: int
    boundary: int
    least: int
    until: float


@dataclass(frozen=True, slots=True)
class Probe:
    """A question under way, to be given up at `due`."""

    query: Query
    trail: Trail
    due: float
