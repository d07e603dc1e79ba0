"""What is asked of an external store for a prompt, what it answers, and what a plan is given of that."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING

from stepwell.base.geometry import Ints
from stepwell.base.units import ceil_to, floor_to
from stepwell.cache.disk.names import Trail
from stepwell.cache.moves import Name

if TYPE_CHECKING:
    from stepwell.cache.directory import Directory


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
class QueryAnswer:
    """What the store leases for query `number` until that is released: on every rank, KV from the query's start to `boundary`, and the
    image there.

    reach     where the first chunk is missing on any rank; the query's start if all are
    boundary  position of the deepest image that KV reaches; 0: there is none, and nothing is leased
    """

    number: int
    reach: int
    boundary: int


@dataclass(frozen=True, slots=True, eq=False)
class ExternalHit:
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
class OpenQuery:
    """A question under way, to be given up at `due`."""

    query: Query
    trail: Trail
    due: float


def question(directory: Directory, number: int, salt: str, tokens: Ints) -> tuple[Query, Trail] | None:
    """The query for `tokens` under `salt`, and the trail that names its objects; None where nothing that the store could hold would gain
    enough. States are asked for at the boundaries of chunks alone. O(chunks) digests."""
    external = directory.external
    assert external is not None
    chunk = external.chunk
    step = lcm(chunk, directory.config.geometry.rung_grid)
    last = floor_to(len(tokens) - 1, step)
    if last < external.least:
        return None
    found = directory.survey(salt, tokens)
    resume_points = found.resume_points
    first = (resume_points[-1].position if resume_points else 0) + external.least
    if last < first:
        return None
    trail = external.trail(salt, tokens)
    start = floor_to(found.union, chunk)
    kv = tuple(trail.records(start, last))
    images = tuple(trail.image(position) for position in range(ceil_to(first, step), last + 1, step))
    return Query(number, start, kv, images), trail
