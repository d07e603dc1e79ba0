"""Copying into an external store what it is not known to hold: beside everything else, and of no consequence if it fails.

A copy leases what it reads, on the device or in host, and nothing else changes: the item keeps its copies, and they may be dropped as
soon as the copy has been reported.
"""

from __future__ import annotations

from math import lcm

import numpy as np

from stepwell.base.units import floor_to
from stepwell.cache.account import CopyInFlight
from stepwell.cache.directory import Directory
from stepwell.cache.external.ledger import Saving, UnstoredPath, What
from stepwell.cache.moves import DEVICE, EXTERNAL, HOST, Extent, Move, Name, Tier
from stepwell.cache.reuse.survey import Survey, gather, kv_nodes
from stepwell.cache.tree import ROLLING, Item

AT_ONCE = 64
"""Chunks that one turn of the loop looks at, at most: a request that arrives meanwhile has to wait for the turn."""
_SHARE = 8
"""One page of the device in so many may be leased by such copies."""


def write_behind(directory: Directory, now: float) -> list[Move]:
    """Begin the next copies into the store: the newest paths first, as far as an eighth of the device's pages goes. The moves are to be
    carried out. While the ledger `rests`, paths are dropped; a later request leaves them again. O(path) and `AT_ONCE` digests."""
    external = directory.external
    moves: list[Move] = []
    if external is None:
        return moves
    if external.rests(now):  # asked each turn, so that a rest begins with the failure, not with the next path
        external.unstored.clear()
    if not external.unstored:
        return moves
    room = max(1, directory.config.device_pages // _SHARE) - external.saving_pages
    if room > 0:
        path = external.unstored[-1]
        done = _store(directory, path, room, moves)
        if done:
            external.unstored.remove(path)
    return moves


def _store(directory: Directory, path: UnstoredPath, room: int, moves: list[Move]) -> bool:
    """Append copies of about `room` pages to `moves`; True once nothing of `path` is left to be looked at."""
    external, found = directory.external, directory.survey(path.salt, path.tokens)
    assert external is not None
    chunk = external.chunk
    step = lcm(chunk, directory.config.geometry.rung_grid)
    end = floor_to(min(found.matched, len(path.tokens)), chunk)
    images = {node.end: node.rung for node in found.path if node.rung is not None and node.end % step == 0}
    last = path.at + AT_ONCE
    while (start := path.at * chunk) < end and path.at < last:
        if room <= 0:
            return False
        (name,) = path.trail.records(start, start + chunk)
        room -= _store_kv(directory, found, name, moves)
        rung = images.get(name.end)
        if rung is not None and rung.kind != ROLLING:
            room -= _store_image(directory, rung.image, path.trail.image(name.end), moves)
        path.at += 1
    return path.at * chunk >= end


def _store_kv(directory: Directory, found: Survey, name: Name, moves: list[Move]) -> int:
    """Pages of the chunk whose copy begins: 0 where the store has it, or no one tier has all of it."""
    external = directory.external
    assert external is not None
    nodes = [node for node, _, _ in kv_nodes(found.path, name.start, name.end)]
    tier = next((t for t in (DEVICE, HOST) if all(node.kv.has(t) for node in nodes)), None)
    if tier is None or external.knows("kv", name):
        return 0
    slots = gather(found.path, tier, name.start, name.end, directory.tree.block)
    moves.append(_begin(directory, "kv", nodes[-1].kv, Extent(tier, slots), name))
    return len(slots)


def _store_image(directory: Directory, image: Item, name: Name, moves: list[Move]) -> int:
    """Pages of the image, if its copy begins."""
    external = directory.external
    assert external is not None
    tier: Tier | None = next((t for t in (DEVICE, HOST) if image.has(t)), None)
    if tier is None or external.knows("image", name):
        return 0
    slots = image.at[tier]
    assert slots is not None, "what can be read is somewhere"
    moves.append(_begin(directory, "image", image, Extent(tier, slots), name))
    return len(slots)


def _begin(directory: Directory, what: What, item: Item, source: Extent, name: Name) -> Move:
    external, ticket, pages = directory.external, directory.ticket(), len(source.slots)
    assert external is not None
    external.begin(ticket, Saving(what, name, pages))
    directory.in_flight[ticket] = CopyInFlight(directory.lease(item, source.tier), [])
    target = Extent(EXTERNAL, np.arange(pages, dtype=np.int32))
    return Move(ticket, what, source, target, name.end, (name,))
