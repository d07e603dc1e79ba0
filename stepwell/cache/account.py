"""The state of every copy, the use of every slot, all sums of these, and leases.

A copy changes its state (`stepwell.cache.life`) in one place, `Account.transition`, which updates every count and index that depends on
it. So the equations below hold between any two calls; `stepwell.cache.check` verifies all of them.

    of a tier    total    =  free + cached + Σ moving[·, tier] + private          private: owned by requests
                 cached   =  Σ slots of copies from CONDEMNED on                  leased: those of them that are locked
                 moving[source, tier]  =  Σ slots that copies between the two are filling
    device       clean    =  Σ slots of copies whose standing is FREE
    host         backed   =  Σ slots of copies that are safe (`Candidates.safe`)
    of an item   standing =  GONE without a device copy, else DIRTY unless it is safe, else HELD if locked or held up, else FREE
                 below, held_up, soiled  =  children's KV in a tier, HELD or DIRTY, DIRTY
    of a tenant  held     =  Σ slots of its copies in a tier, while `tenant_share` bounds it
    of the tree  items    =  nodes + rungs                                        ghost_blocks: blocks without any copy
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from stepwell.base.geometry import Ints
from stepwell.cache.changes import Journal
from stepwell.cache.config import CacheConfig
from stepwell.cache.disk.archive import Archive
from stepwell.cache.evict.pins import Pins
from stepwell.cache.evict.ranking import Candidates, Ranking
from stepwell.cache.evict.tenants import FairRanking, Tenants
from stepwell.cache.life import (
    ABSENT,
    ARRIVING,
    CONDEMNED,
    DIRTY,
    FREE,
    GONE,
    HELD,
    HERE,
    LEAVING,
    LEGAL,
    REFUSED,
    IllegalTransition,
    Life,
    Pending,
    Standing,
)
from stepwell.cache.moves import DEVICE, DISK, HOST, NATIVE, Tier
from stepwell.cache.slots import Pool, TierUse
from stepwell.cache.tree import Item, Node


@dataclass(slots=True, eq=False)
class Lease:
    """A hold on bytes in one tier: of an image, or of all KV from the root to the end of `item.node`. `Directory.release` ends it."""

    item: Item
    tier: Tier
    open: bool = True


@dataclass(slots=True)
class CopyInFlight:
    """A copy between tiers under way: the items that it reads (both halves if a node was split meanwhile), and the lease on them."""

    lease: Lease
    items: list[Item]


class Account:
    """See the module. Mutating methods never fail half way: what they need is checked before the first change."""

    def __init__(self, config: CacheConfig, archive: Archive | None = None) -> None:
        self.config = config
        self.archive = archive or Archive()
        self.journal: Journal | None = None  # set if somebody follows what becomes readable
        sizes = zip(NATIVE, (config.device_pages, config.host_slots, config.disk_slots), strict=True)
        ready = {HOST: config.host_ready}
        self.pools = {tier: Pool(size, ready.get(tier)) for tier, size in sizes if size}
        self.policy = config.policy
        tokens = config.geometry.image_pages * config.geometry.block
        totals = {tier: pool.total for tier, pool in self.pools.items()}
        self.tenants = Tenants(totals, config.tenant_share) if config.tenant_share < 1 else None
        kind = Ranking if self.tenants is None else partial(FairRanking, tenants=self.tenants)
        self.candidates = Candidates(tuple(self.pools), self.policy, tokens, config.write_idle, kind)
        self.requeue = (
            self.candidates.add
        )  # lets every ranking know that an item may have become a candidate, or lost value
        self.epoch = self.tickets = 0
        self.clean = self.backed = self.ghost_blocks = 0
        self.cached = dict.fromkeys(self.pools, 0)
        self.leased = dict.fromkeys(self.pools, 0)
        self.moving = {(source, target): 0 for source in self.pools for target in self.pools if source != target}
        self.ghosts: dict[Node, None] = {}  # in the order in which they are to be forgotten
        self.pins = Pins(config.geometry, totals, config.tenant_share)

    @property
    def items(self) -> int:
        """Nodes and rungs of the tree."""
        return self.candidates.items

    def use(self, tier: Tier) -> TierUse:
        """How the slots of `tier` are used. All zero for a tier that does not exist. O(1)."""
        if tier not in self.pools:
            return TierUse(0, 0, 0, 0, 0)
        pool, cached = self.pools[tier], self.cached[tier]
        dormant = self.archive.catalogue.pages if tier == DISK else 0
        below = cached - self.leased[tier] if self.candidates.lower[tier] is None else self.backed
        clean, pinned = self.clean if tier == DEVICE else below, self.pins.guarded[tier]
        return TierUse(pool.total, pool.free - dormant, cached + dormant, self.leased[tier], clean, pinned)

    def widen(self, tier: Tier, count: int) -> None:
        """Add `count` slots to `tier`, numbered on from the last."""
        self.pools[tier].widen(count)
        self.pins.widen(tier, self.pools[tier].total)
        if self.tenants is not None:
            self.tenants.widen(tier, self.pools[tier].total)
        self.epoch += 1

    def settle(self, tier: Tier) -> None:
        """Declare that `tier` will not grow any more: nothing waits for its growth from now on."""
        self.pools[tier].settle()

    def ticket(self) -> int:
        """A fresh number for one copy."""
        self.tickets += 1
        return self.tickets

    # ---- the only place where a copy changes ----------------------------------------------------------------

    def transition(self, item: Item, tier: Tier, to: Life, slots: Ints | None = None) -> None:
        """Set the state of the copy of `item` in `tier` to `to`, and update every count and index that depends on it. O(path) at most.

        slots   the slots of the copy, if it had none and has some from now on
        Raises IllegalTransition, and changes nothing, if `to` cannot follow, a locked copy would go, or slots are missing.
        """
        before, was = item.at[tier], item.life[tier]
        self._permit(item, tier, to, slots)
        after = None if to < CONDEMNED else slots if before is None else before
        below, changed = tier != DEVICE, after is not before
        backed = self._backed(item) if below else 0
        if after is None and not below:
            self._stand(item, GONE)
        if changed and item.pins:
            self.pins.placed(item, tier, before, after)
        item.life[tier], item.at[tier] = to, after
        if self.journal is not None and (was >= HERE) != (to >= HERE):
            self.journal.note(item, tier, to >= HERE)
        if changed:
            self._count(item, tier, -len(before) if before is not None else 0 if after is None else len(after))
        if below:  # what host can drop does not depend on the device
            self.backed += self._backed(item) - backed
        self.weigh(item)
        self.epoch += changed or to == CONDEMNED  # what can be read or is leased has changed
        self.requeue(item)

    def _permit(self, item: Item, tier: Tier, to: Life, slots: Ints | None) -> None:
        was, before, locks = item.life[tier], item.at[tier], item.locks[tier]
        comes, goes = before is None and to >= CONDEMNED, before is not None and to < CONDEMNED
        if to in LEGAL[was] and not (goes and locks) and comes == (slots is not None):
            return
        told = "no" if slots is None else str(len(slots))
        raise IllegalTransition(
            f"{item!r} in {tier.name.lower()}: {was.name} with {item.size(tier)} slots and {locks} locks "
            f"cannot become {to.name} with {told} slots"
        )

    def _count(self, item: Item, tier: Tier, gained: int) -> None:
        """Update the counts for a copy that came to `tier` (`gained` slots) or left it (negative)."""
        self.cached[tier] += gained
        if self.tenants is not None:
            self.tenants.moved(item.tenant, tier, gained)
        if item.locks[tier]:
            self.leased[tier] += gained
        if item.what == "image":
            return
        node, here = item.node, gained > 0
        if node.parent is not None:
            node.parent.kv.below[tier] += 1 if here else -1
        copies = item.copies
        if copies > 1 or (copies == 1 and not here):
            return
        blocks = (node.end - node.start) // self.config.geometry.block
        if here:
            self.ghost_blocks -= blocks
            self.ghosts.pop(node, None)
        else:
            self.ghost_blocks += blocks

    def _backed(self, item: Item) -> int:
        """Number of host slots of `item` that are safe to drop."""
        slots = item.at[HOST]
        return len(slots) if slots is not None and self.candidates.safe(item, HOST) else 0

    def weigh(self, item: Item) -> None:
        """Recompute the standing of `item` from its locks and states, and that of the KV above it. O(path) at most."""
        self._stand(item, self._standing(item))

    def _standing(self, item: Item) -> Standing:
        if item.at[DEVICE] is None:
            return GONE
        if not self.candidates.safe(item, DEVICE):
            return DIRTY
        return HELD if item.locks[DEVICE] or item.held_up else FREE

    def _stand(self, item: Item, now: Standing) -> None:
        while (was := item.standing) != now:
            if was == FREE:
                self.clean -= item.size(DEVICE)
            elif now == FREE:
                self.clean += item.size(DEVICE)
            item.standing = now
            parent = item.node.parent
            if item.what == "image" or parent is None:
                return
            item = parent.kv
            item.soiled += (now == DIRTY) - (was == DIRTY)
            item.held_up += (now >= HELD) - (was >= HELD)
            now = self._standing(item)

    # ---- what happens to copies -----------------------------------------------------------------------------

    def give(self, tier: Tier, slots: Ints, forget: bool = True) -> None:
        """Free `slots` of `tier`. With `forget`, the disk store is told to forget what is in them."""
        self.pools[tier].give(slots)
        if tier == DISK and forget:
            self.archive.forget(slots)
        self.epoch += 1

    def place(self, item: Item, tier: Tier, slots: Ints) -> None:
        """Add a readable copy of `item` in these slots of `tier`. On the device, it may be copied down again."""
        self.transition(item, tier, HERE, slots)
        if tier == DEVICE:
            self.reconsider(item)
            if item.what == "kv" and item.node.rung is not None:
                self.reconsider(item.node.rung.image)

    def vacate(self, item: Item, tier: Tier) -> None:
        """Remove the unlocked copy of `item` in `tier` and free its slots."""
        slots, told = item.at[tier], item.life[tier] == CONDEMNED  # the disk forgets what is condemned at once
        self.transition(item, tier, ABSENT)
        assert slots is not None, f"{item!r} has gone from {tier.name.lower()}, where it was nowhere"
        self.give(tier, slots, forget=not told)

    def refuse(self, item: Item, tier: Tier) -> None:
        """Decide that `item` gets no copy in `tier`, so the copy above may be dropped. No effect if one is there or on its way."""
        if item.life[tier] == ABSENT:
            self.transition(item, tier, REFUSED)
            if item.node.parent is not None:
                self.requeue(item.node.parent.kv)

    def reconsider(self, item: Item) -> None:
        """Allow copies of `item` in tiers that refused one, because it has gained value since."""
        for tier in self.pools if REFUSED in item.life else ():
            if item.life[tier] == REFUSED:
                self.transition(item, tier, ABSENT)

    def depart(self, item: Item, source: Tier, target: Tier) -> Pending:
        """Begin a copy from `source` to free slots of `target`, which has room. The caller leases the source, later calls `arrive`."""
        slots = item.at[source]
        assert slots is not None and item.pending is None, f"{item!r} cannot leave {source.name.lower()} just now"
        pending = item.pending = Pending(self.ticket(), source, target, self.pools[target].take(len(slots)))
        self.moving[source, target] += len(slots)
        self.transition(item, source, LEAVING)
        self.transition(item, target, ARRIVING)
        return pending

    def arrive(self, item: Item, good: bool) -> None:
        """End the copy of `item` that is under way. After a good one, its target can be read. Otherwise the target slots are freed, and no
        further copy to a tier below the device is tried."""
        pending = item.pending
        assert pending is not None, f"nothing of {item!r} is under way"
        tier = pending.tier
        item.pending = None
        self.moving[pending.source, tier] -= len(pending.slots)
        if item.life[pending.source] == LEAVING:
            self.transition(item, pending.source, HERE)
        if good:
            self.place(item, tier, pending.slots)
            return
        # of a condemned source the disk has been told already
        self.give(tier, pending.slots, forget=item.life[pending.source] != CONDEMNED)
        if item.life[tier] == ARRIVING:
            self.transition(item, tier, ABSENT)
        if tier != DEVICE:
            self.refuse(item, tier)


# ---- leases: an image is held by itself, KV on all of its path; a long path has a hundred nodes, so each is touched once ----


def lock(account: Account, lease: Lease) -> None:
    """Lock what `lease` names. O(path)."""
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
    """Unlock what `lease` names. Returns the condemned items that have no lock any more, deepest first; the caller drops them. O(path)."""
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
    account.requeue(item)
    return [item] if item.life[tier] == CONDEMNED else []


def lock_path(account: Account, node: Node | None, top: Node | None, tier: Tier) -> None:
    """Lock all KV from `node` up to below `top`, which is locked already (None: to the root).

    `Account.weigh` need not be called for each: a FREE item becomes HELD, and so does the next one above, which is locked too.
    """
    on_device, leased, freed = tier == DEVICE, 0, 0
    while node is not None and node is not top:
        kv, above = node.kv, node.parent
        locks = kv.locks[tier] = kv.locks[tier] + 1
        slots = kv.at[tier]
        if locks == 1 and slots is not None:
            leased += len(slots)
            if on_device and kv.at[HOST] is not None and not kv.below[HOST]:
                account.requeue(kv)  # host can drop its copy now
            if on_device and kv.standing is FREE:
                freed += len(slots)
                kv.standing = HELD
                assert above is not None, "the root has no bytes"
                above.kv.held_up += 1
        node = above
    account.leased[tier] += leased
    account.clean -= freed


def _unlock_path(account: Account, node: Node | None, tier: Tier) -> list[Item]:
    """Remove one lock from all KV from `node` up. Goes upwards, so that the standing of children is known before that of their parent."""
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
            if not kv.below[tier] or (kv.standing is DIRTY and not kv.soiled):  # otherwise no candidate
                account.requeue(kv)
            if kv.life[tier] is CONDEMNED:
                condemned.append(kv)
        node = above
    account.leased[tier] -= leased
    account.clean += freed
    return condemned
