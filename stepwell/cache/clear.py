"""Empties the cache while the engine serves, and removes entries that are no longer trusted. Leased copies stay until they are released.

`reset` drops everything that is not leased. `quarantine` removes cached bytes that led to another answer than a cold run.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm

from stepwell.base.geometry import Ints
from stepwell.cache.directory import Directory
from stepwell.cache.disk.archive import path_tokens
from stepwell.cache.moves import DISK, Tier
from stepwell.cache.tree import Item, Node, Root

MOST_BRANCHES = 256
"""Most paths that a quarantine names to an external store: each chunk takes a digest."""


def reset(directory: Directory, salt: str | None = None) -> dict[Tier, int]:
    """Drop every copy that is not leased, in every tier, under one salt or (None) under all. Returns the slots freed by tier.

    Running requests keep what they read. The tokens of dropped entries are remembered, as after any eviction. What an earlier process left
    on disk is dropped too. An external store keeps what it has, for other engines; this engine loads none of it any more. O(tree).
    """
    freed = dict.fromkeys(directory.pools, 0)
    while dropped := list(_droppable(directory, salt)):
        for item in dropped:
            for tier in directory.pools:
                if item.node.parent is not None and _idle(item, tier):
                    freed[tier] += item.size(tier)
                    directory.drop(item, tier)
    archive = directory.archive
    if archive.catalogue.pages:
        freed[DISK] += archive.catalogue.trim_dormant(archive.catalogue.pages) if salt is None else archive.expel(salt)
    if directory.external is not None:
        directory.external.distrust(salt)
    return freed


def _droppable(directory: Directory, salt: str | None) -> Iterator[Item]:
    """Items with an unlocked copy, the deepest first, so that no copy is dropped before those below it."""
    for node in reversed(list(directory.tree.nodes())):
        if salt is None or _salt(node) == salt:
            for item in reversed(list(node.items())):
                if any(_idle(item, tier) for tier in directory.pools):
                    yield item


def _idle(item: Item, tier: Tier) -> bool:
    return item.at[tier] is not None and not item.locks[tier]


def _salt(node: Node) -> str:
    """The salt of the tree that `node` is in."""
    *_, root = node.up()
    assert isinstance(root, Root)
    return root.salt


def quarantine(directory: Directory, salt: str, tokens: Ints) -> int:
    """Condemn every copy, in every tier, of all paths that share their first block with `tokens`. Returns the number of copies.

    It is not known which byte is wrong, and everything computed behind it has read it, on all branches. So the whole subtree leaves the
    tree at once, and lookups no longer find it. Leased copies are dropped with their last lease; what their readers compute later, and
    copies of them under way, cannot be found either. The next request for the same prompt computes it again, on other pages. Dormant
    records of this salt on disk are all dropped. An external store is told to drop the paths that can be named, and this engine loads
    nothing any more that the store has under this salt.

    Increments `Directory.condemnations`: whatever was computed from the cache before (the state of a suspended request, an audit's
    answer) must not be used if that has changed since. O(subtree).
    """
    directory.condemnations += 1
    path = directory.survey(salt, tokens).path
    condemned = 0
    _condemn_outside(directory, salt, tokens, path[0] if path else None)
    if path:
        _expel(directory, path[0])
    for node in _leaves_first(path[0]) if path else ():
        for item in reversed(list(node.items())):
            for tier in directory.pools:
                if item.has(tier):
                    directory.condemn(item, tier)
                    condemned += 1
        directory.tidy(node)  # removes a node without copies, too
    directory.archive.expel(salt)  # dormant branches of this path cannot be told from others
    return condemned


def _condemn_outside(directory: Directory, salt: str, tokens: Ints, top: Node | None) -> None:
    """Condemn in the external store what it has of `tokens`, and of the branches below `top` that were used last."""
    if directory.external is None:
        return
    leaves = [node for node in _leaves_first(top) if not node.children] if top is not None else []
    leaves.sort(key=lambda node: node.used, reverse=True)
    grid = lcm(directory.external.chunk, directory.config.geometry.rung_grid)
    directory.external.condemn(salt, [tokens, *(path_tokens(leaf)[1] for leaf in leaves[:MOST_BRANCHES])], grid)


def _expel(directory: Directory, top: Node) -> None:
    """Move the subtree of `top`, a child of a root, out of the reach of lookups. Its nodes stay as long as they are leased."""
    root = top.parent
    assert root is not None, f"{top!r} is not part of the tree"
    directory.tree.expel(top, top.used)
    directory.epoch += 1
    directory.tidy(root)


def _leaves_first(top: Node) -> Iterator[Node]:
    """`top` and all below it, children before parents. As these empty, the tree joins only what has been visited."""
    found: list[Node] = []
    stack = [top]
    while stack:
        node = stack.pop()
        found.append(node)
        stack.extend(node.children.values())
    return reversed(found)
