"""What a lease does to the totals and to the candidates: an image by itself, KV on all of its path.

A long prompt's path has a hundred nodes and more, so each is touched once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepwell.cache.moves import Tier
from stepwell.cache.tree import Item, Node

if TYPE_CHECKING:
    from stepwell.cache.directory import Directory


def lock(directory: Directory, item: Item, tier: Tier) -> None:
    """Hold the copy of `item` in `tier` once more."""
    item.locks[tier] += 1
    slots = item.at[tier]
    if item.locks[tier] == 1 and slots is not None:
        directory.leased[tier] += len(slots)
        if tier == Tier.DEVICE:
            directory.weigh(item)


def lock_path(directory: Directory, node: Node | None, top: Node | None, tier: Tier) -> None:
    """Lock all KV from `node` up to below `top`, which is locked already (None: to the root).

    What `Directory.weigh` would say of each is known: not ready, and stuck; and so it is with the next above, which is locked too.
    """
    on_device, leased = tier == Tier.DEVICE, 0
    while node is not None and node is not top:
        kv = node.kv
        locks = kv.locks
        locks[tier] += 1
        slots = kv.at[tier]
        if locks[tier] == 1 and slots is not None:
            leased += len(slots)
            if on_device:
                directory.clean -= kv.ready
                kv.ready = 0
                if not kv.stuck:
                    kv.stuck = True
                    assert node.parent is not None, "the root has no bytes"
                    node.parent.kv.held_up += 1
        node = node.parent
    directory.leased[tier] += leased


def unlock(directory: Directory, item: Item, tier: Tier) -> list[Item]:
    """Take one lock off; `item` again if its copy is one that failed, which nobody holds any more."""
    assert item.locks[tier] > 0, f"{item!r} is not locked"
    item.locks[tier] -= 1
    slots = item.at[tier]
    if item.locks[tier] or slots is None:
        return []
    directory.leased[tier] -= len(slots)
    if tier == Tier.DEVICE:
        directory.weigh(item)
    directory.offers.add(item, directory.items)
    return [item] if item.bad[tier] else []


def unlock_path(directory: Directory, node: Node | None, tier: Tier) -> list[Item]:
    """Take one lock off all KV from `node` up; what has failed and is now free, deepest first.

    From the end up, so that each knows what its children say by the time it is looked at.
    """
    failed: list[Item] = []
    on_device, leased = tier == Tier.DEVICE, 0
    while node is not None:
        kv, parent, locks = node.kv, node.parent, node.kv.locks
        assert locks[tier] > 0, f"{kv!r} is not locked"
        locks[tier] -= 1
        slots = kv.at[tier]
        if slots is not None and not locks[tier]:
            leased += len(slots)
            if on_device and not kv.dirty and not kv.held_up:
                assert parent is not None, "the root has no bytes"
                kv.ready = len(slots)
                directory.clean += kv.ready
                kv.stuck = False
                parent.kv.held_up -= 1
            if not kv.below[tier] or (kv.dirty and not kv.soiled):  # no candidate else
                directory.offers.add(kv, directory.items)
            if kv.bad[tier]:
                failed.append(kv)
        node = parent
    directory.leased[tier] -= leased
    return failed
