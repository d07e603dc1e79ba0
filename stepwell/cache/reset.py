"""Emptying the cache while it serves: what nobody holds goes, what is in use stays."""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.cache.directory import Directory
from stepwell.cache.moves import DISK, Tier
from stepwell.cache.tree import Item, Node, Root


def reset(directory: Directory, salt: str | None = None) -> dict[Tier, int]:
    """Drop every copy that is not leased, in every tier, under one salt or (None) under all. Returns the slots freed by tier.

    Running requests keep what they read; the tokens of what was dropped are remembered as those of anything evicted. What an
    earlier process left on disk goes too.
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
