"""Holds on what is cached, and what they do to counts and candidates: an image is held by itself, KV on all of its path.

A long prompt's path has a hundred nodes and more, so each is touched once.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.cache.account import Account
from stepwell.cache.life import CONDEMNED, DIRTY, FREE, HELD
from stepwell.cache.moves import DEVICE, HOST, Tier
from stepwell.cache.tree import Item, Node


@dataclass(slots=True, eq=False)
class Lease:
    """A hold on one tier's bytes: of an image, or of all KV from the root to the end of `item.node`. Closing twice is harmless."""

    item: Item
    tier: Tier
    open: bool = True


@dataclass(slots=True)
class CopyInFlight:
    """A copy between tiers under way: what it reads (both halves, where a node was split meanwhile), and the hold on that."""

    lease: Lease
    items: list[Item]


def lock(account: Account, lease: Lease) -> None:
    """Hold what `lease` names."""
    if lease.item.what == "kv":
        lock_path(account, lease.item.node, None, lease.tier)
        return
    item, tier = lease.item, lease.tier
    item.locks[tier] += 1
    if item.locks[tier] == 1 and item.at[tier] is not None:
        account.leased[tier] += item.size(tier)
        if tier == DEVICE:
            account.weigh(item)


def unlock(account: Account, lease: Lease) -> list[Item]:
    """Let go of what `lease` names. Returns the items whose copy is condemned and held by nobody any more, deepest first; the caller drops
    them."""
    if lease.item.what == "kv":
        return _unlock_path(account, lease.item.node, lease.tier)
    item, tier = lease.item, lease.tier
    assert item.locks[tier] > 0, f"{item!r} is not locked in {tier.name.lower()}"
    item.locks[tier] -= 1
    if item.locks[tier] or item.at[tier] is None:
        return []
    account.leased[tier] -= item.size(tier)
    if tier == DEVICE:
        account.weigh(item)
    account.offer(item)
    return [item] if item.life[tier] == CONDEMNED else []


def lock_path(account: Account, node: Node | None, top: Node | None, tier: Tier) -> None:
    """Lock all KV from `node` up to below `top`, which is locked already (None: to the root).

    What `Account.weigh` would say of each is known: HELD, if it was FREE; and so it is with the next above, which is locked too.
    """
    on_device, leased, freed = tier == DEVICE, 0, 0
    while node is not None and node is not top:
        kv, above = node.kv, node.parent
        locks = kv.locks[tier] = kv.locks[tier] + 1
        slots = kv.at[tier]
        if locks == 1 and slots is not None:
            leased += len(slots)
            if on_device and kv.at[HOST] is not None and not kv.below[HOST]:
                account.offer(kv)  # host may do without its copy now
            if on_device and kv.standing is FREE:
                freed += len(slots)
                kv.standing = HELD
                assert above is not None, "the root has no bytes"
                above.kv.held_up += 1
        node = above
    account.leased[tier] += leased
    account.clean -= freed


def _unlock_path(account: Account, node: Node | None, tier: Tier) -> list[Item]:
    """Take one lock off all KV from `node` up: from the end, so that each knows what its children say by the time it is looked at."""
    condemned: list[Item] = []
    on_device, leased, freed = tier == DEVICE, 0, 0
    while node is not None:
        kv, above = node.kv, node.parent
        locks = kv.locks[tier] = kv.locks[tier] - 1
        assert locks >= 0, f"{kv!r} is not locked in {tier.name.lower()}"
        slots = kv.at[tier]
        if not locks and slots is not None:
            leased += len(slots)
            if on_device and kv.standing is HELD and not kv.held_up:
                assert above is not None, "the root has no bytes"
                freed += len(slots)
                kv.standing = FREE
                above.kv.held_up -= 1
            if not kv.below[tier] or (kv.standing is DIRTY and not kv.soiled):  # no candidate else
                account.offer(kv)
            if kv.life[tier] is CONDEMNED:
                condemned.append(kv)
        node = above
    account.leased[tier] -= leased
    account.clean += freed
    return condemned
