"""What to ask an external store for a prompt. Pure."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from stepwell.base.geometry import Ints
from stepwell.base.units import ceil_to, floor_to
from stepwell.cache.disk.names import Trail
from stepwell.cache.external.offer import Query

if TYPE_CHECKING:
    from stepwell.cache.directory import Directory


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
    footholds = found.footholds
    first = (footholds[-1].position if footholds else 0) + external.least
    if last < first:
        return None
    trail = external.trail(salt, tokens)
    start = floor_to(found.union, chunk)
    kv = tuple(trail.records(start, last))
    images = tuple(trail.image(position) for position in range(ceil_to(first, step), last + 1, step))
    return Query(number, start, kv, images), trail
