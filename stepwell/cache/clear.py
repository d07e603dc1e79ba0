"""Emptying the cache while it serves, and taking out what is no longer trusted. What is in use stays until it is let go.

`reset` drops what nobody holds. `quarantine` takes out cached bytes that led to another answer than a cold run.
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
"""Paths that a quarantine names to an external store, at most: each chunk takes a digest."""


def reset(directory: Directory, salt: str | None = None) -> dict[Tier, int]:
    """Drop every copy that is not leased, in every tier, under one salt or (None) under all. Returns the slots freed by tier.

    Running requests keep what they read; the tokens of what was dropped are remembered as those of anything evicted. What an
    earlier process left on disk goes too. An external store keeps what it has, for other engines; this one loads none of it any more.
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
        freed[DISK] += archive.catalogue.trim(archive.catalogue.pages) if salt is None else archive.expel(salt)
    if directory.external is not None:
        directory.external.distrust(salt)
    return freed


def _droppable(directory: Directory, salt: str | None) -> Iterator[Item]:
    """Items with an idle copy, the deepest first: no copy goes before what hangs on it."""
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
    """Condemn every copy, in every tier, of all that shares its first block with `tokens`; how many copies that were.

    Which byte is wrong cannot be told, and whatever was computed after it read it as well: branches of the same beginning too.
    All of it leaves the tree at once, so that no prompt leads there, whoever holds it. What is leased goes with its last lease; what
    its readers go on to compute, and copies of it under way, are found by nobody. The next request for the same prompt computes
    it anew, on other pages. What an earlier process left on disk under this salt, and nobody has asked for since, goes as a whole. An
    external store is told to drop the paths that can be named, and this engine loads nothing any more that is there under this salt.

    `Directory.condemnations` moves on: whoever keeps what was computed from the cache before (a suspended request's state, an
    audit's answer) looks whether it still counts.
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
        directory.tidy(node)  # one that held nothing goes as well
    directory.archive.expel(salt)  # branches among it cannot be told from the rest
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
    """Remove `top`, a child of a root, and all below it from where prompts are looked up. It stays only as long as it is leased."""
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
