"""Adds to the tree what an earlier process left on disk of a prompt.

    tree      0 ───── node ───── node ┊                    known by its tokens
    disk                              └╌╌ record ╌╌ record ⟂ image       known by their names only

The catalogue is asked which records continue from the boundaries on the prompt's path. A record whose digest matches the prompt becomes
part of the tree, with the prompt's tokens; the others stay dormant. Only the index is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.base.units import floor_to
from stepwell.cache.directory import Directory
from stepwell.cache.disk.archive import Dormant
from stepwell.cache.disk.names import Trail
from stepwell.cache.moves import DISK
from stepwell.cache.publish import follow
from stepwell.cache.reuse.survey import Survey, survey
from stepwell.cache.tree import PROMPT_END, Node, Root


@dataclass(frozen=True, slots=True)
class Learned:
    """Number of records that were added, and whether there may be more: then call again."""

    records: int
    more: bool = False


def learn_some(directory: Directory, salt: str, tokens: Ints, now: float, most: int) -> Learned:
    """Add at most `most` records of `tokens` under `salt` to the tree, without waiting for the store. One lookup in the index for each of
    them, and for each node of the prompt's path."""
    if not directory.archive.hold():
        return Learned(0, True)
    try:
        count = learn_from_disk(directory, salt, tokens, now, most)
    finally:
        directory.archive.catalogue.let_go()
    return Learned(count, count >= most)


def learn_from_disk(directory: Directory, salt: str, tokens: Ints, now: float, most: int = 1 << 62) -> int:
    """Add what the disk holds of `tokens` under `salt` to the tree: at most `most` records. Returns their number."""
    names, catalogue = directory.archive.names, directory.archive.catalogue
    if names is None or not catalogue.pages or len(tokens) < directory.tree.block:
        return 0
    trail = names.trail(salt, tokens)
    root = directory.tree.roots.get(salt)
    if root is None:
        if not _after(directory, trail, 0):
            return 0
        root = directory.tree.root(salt, now)
    ends = _ends(directory, root, survey(directory.tree, salt, tokens), trail)
    count = 0
    grown: list[Node] = []
    while ends and catalogue.pages and count < most:
        node = ends.pop()
        for dormant in _after(directory, trail, node.end):
            if dormant.what == "image":
                count += _adopt_image(directory, node, dormant, now)
            elif run := _run(directory, dormant, trail, max(1, most - count)):
                nodes = _adopt_kv(directory, node, run, tokens, now)
                ends.extend(nodes)
                grown.append(nodes[-1])
                count += len(run)
    for node in grown:  # last, since a node that was joined to another cannot take slots
        for adopted in [*node.up()]:
            directory.tidy(adopted)
    directory.tidy(root)
    return count


def _ends(directory: Directory, root: Root, found: Survey, trail: Trail) -> list[Node]:
    """Nodes behind which records of the prompt may continue: the nodes of its path, and, if it leaves the last one midway, boundaries of
    records in the chunk before, at which that node is cut."""
    ends: list[Node] = [root, *(node for node in found.path if node.end <= found.matched)]
    known = {node.end for node in ends}
    near = range(floor_to(found.matched, directory.config.chunk), found.matched + 1, directory.tree.block)
    more = [position for position in near if position not in known and _after(directory, trail, position)]
    return [*ends, *(directory.node_at(found.path[-1], position) for position in more)]


def _after(directory: Directory, trail: Trail, position: int) -> Sequence[Dormant]:
    """The image at `position`, and records that go on from there as the prompt does: to the chunk's end, most likely, or less far."""
    catalogue, block, chunk = directory.archive.catalogue, directory.tree.block, directory.config.chunk
    here, end = trail.at(position), min((position // chunk + 1) * chunk, floor_to(len(trail), block))
    found = catalogue.under(here, [here, trail.at(end)])
    if any(dormant.what == "kv" for dormant in found):
        return found
    shorter = [trail.at(stop) for stop in range(position + block, end, block)]
    return [*found, *catalogue.under(here, shorter)] if shorter else found


def _run(directory: Directory, first: Dormant, trail: Trail, most: int) -> list[Dormant]:
    """`first`, if it matches, and the records that follow it up to the next image or fork, at most `most` in all. One node will hold
    them."""
    run: list[Dormant] = []
    follower: Dormant | None = first
    while follower is not None and len(run) < most and _matches(directory, follower, trail):
        run.append(follower)
        after = _after(directory, trail, follower.name.end)
        kv = [d for d in after if d.what == "kv"]
        follower = kv[0] if len(kv) == len(after) == 1 else None
    return run


def _matches(directory: Directory, dormant: Dormant, trail: Trail) -> bool:
    name = dormant.name
    size = dormant.pages * directory.tree.block
    return name.end == name.start + size and name.end <= len(trail) and trail.at(name.end) == name.digest


def _take(directory: Directory, dormant: Dormant) -> Ints:
    """Take slots for a dormant record. Its pages count as free slots, so there is room."""
    slots = directory.pools[DISK].take(dormant.pages)
    directory.archive.catalogue.adopt(dormant, slots)
    return slots


def _adopt_kv(directory: Directory, node: Node, run: list[Dormant], tokens: Ints, now: float) -> list[Node]:
    """Give the slots of these records to the nodes of their tokens, which are added or cut if need be. Returns the nodes, topmost first."""
    slots = np.concatenate([_take(directory, dormant) for dormant in run])
    block, start, end = directory.tree.block, node.end, run[-1].name.end
    nodes: list[Node] = []
    while node.end < end:
        node = follow(directory, node, tokens, end, now)
        nodes.append(node)
    for child in nodes[1:]:  # before any of them frees its part
        cut = (child.start - start) // block
        directory.archive.divide(int(slots[cut - 1]), int(slots[cut]), child, child.start)
    for child in nodes:
        part = slots[(child.start - start) // block : (child.end - start) // block]
        if child.kv.at[DISK] is None and (child.kv.pending is None or child.kv.pending.tier != DISK):
            directory.place(child.kv, DISK, part)
        else:
            directory.give(DISK, part)
    return nodes


def _adopt_image(directory: Directory, node: Node, dormant: Dormant, now: float) -> bool:
    """Give the record to the rung at the end of `node`, which is added if need be. Returns False, and discards it, if one is on disk."""
    rung = node.rung
    if rung is not None and rung.image.pending is not None:
        return False  # it may be on its way to disk: leave the record dormant
    on_disk = rung is not None and rung.image.at[DISK] is not None
    if on_disk or node.parent is None or dormant.pages != directory.config.geometry.image_pages:
        directory.archive.catalogue.discard(dormant)
        return False
    if rung is None:
        rung = directory.add_rung(node, PROMPT_END, now)
    directory.place(rung.image, DISK, _take(directory, dormant))
    return True
