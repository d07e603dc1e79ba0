"""The single owner of everything cached: tree, pools, leases, and what each slot is used for.

Every slot of a tier is free, cached (owned by the tree) or private (owned by a request or by a copy in flight). A lease locks
an item and, for KV, everything above it up to the root; locked bytes are never dropped. Totals are updated with every change, so that
planning reads them in O(1); `check` recomputes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.account import Account, CopyInFlight, Lease, lock, lock_path, unlock
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.disk.archive import Archive
from stepwell.cache.evict.policy import AnswerReuse, BranchReuse
from stepwell.cache.evict.ranking import attached
from stepwell.cache.external.ledger import External
from stepwell.cache.external.query import ExternalHit
from stepwell.cache.life import CONDEMNED
from stepwell.cache.moves import DEVICE, DISK, Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.cache.reuse.plan import Plan, Room, Wait, plan, plan_return
from stepwell.cache.reuse.survey import Survey, survey
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import Item, Node, Root, Rung, RungKind, Tree


class Directory(Account):
    """See the module. Mutating methods never fail half way: what they need is asserted before the first change."""

    def __init__(self, config: CacheConfig, archive: Archive | None = None, external: External | None = None) -> None:
        super().__init__(config, archive)
        self.external = external
        self.tree = Tree(config.geometry.block)
        self.reserved = self.condemnations = 0  # pages promised; number of quarantines
        self.leases: set[Lease] = set()
        self.in_flight: dict[int, CopyInFlight] = {}
        self.overdue: dict[int, CopyInFlight] = {}
        self.answers = AnswerReuse()
        self.branches = BranchReuse()

    # ---- reading ------------------------------------------------------------------------------------------

    def room(self) -> Room:
        free = self.pools[DEVICE].free
        idle = self.cached[DEVICE] - self.leased[DEVICE]
        return Room(self.config.device_pages, free, idle, self.reserved, free + self.clean)

    @property
    def spendable(self) -> int:
        """Device pages that a new request can have: free ones, and cached ones without a lease, less those promised to others."""
        device = DEVICE
        return self.pools[device].free + self.cached[device] - self.leased[device] - self.reserved

    def survey(self, salt: str, prompt: Ints) -> Survey:
        return survey(self.tree, salt, prompt)

    def plan(
        self, salt: str, prompt: Ints, costs: Costs, read: bool = True, external_hit: ExternalHit | None = None
    ) -> Plan | Wait:
        """How a request for `prompt` would start now; `external_hit` is what an external store has of it. Changes nothing."""
        found = self.survey(salt, prompt) if read else Survey(len(prompt), (), 0, 0, 0, (), None)
        external_hit = None if self.is_distrusted(salt, external_hit) else external_hit
        answer = plan(found, salt, self.epoch, self.room(), self.config, costs, external_hit)
        return answer if read or isinstance(answer, Wait) else answer._replace(reason=Reason.NOT_READ)

    def is_distrusted(self, salt: str, external_hit: ExternalHit | None) -> bool:
        """True if `external_hit` names objects that are not to be loaded any more."""
        return (
            self.external is not None
            and external_hit is not None
            and self.external.is_distrusted(salt, external_hit.trail)
        )

    def plan_return(self, salt: str, tokens: Ints, computed: int, costs: Costs) -> Plan | Wait | None:
        """How a suspended request continues after `computed` tokens. None if resuming at a rung is faster, or its KV is gone."""
        found = self.survey(salt, tokens)
        return plan_return(found, computed, salt, self.epoch, self.room(), self.config, costs)

    # ---- leases -------------------------------------------------------------------------------------------

    def lease(self, item: Item, tier: Tier) -> Lease:
        """Lease an image, or the KV of the whole path down to a node. The caller ends it with `release`. O(path)."""
        lease = Lease(item, tier)
        self.leases.add(lease)
        self.epoch += 1
        lock(self, lease)
        return lease

    def extend(self, lease: Lease, node: Node) -> None:
        """Move a KV lease down to `node`, a descendant of where it ends now."""
        lock_path(self, node, lease.item.node, lease.tier)
        lease.item = node.kv
        self.epoch += 1

    def release(self, lease: Lease) -> None:
        """End a lease; nothing else does. A second time changes nothing. O(path)."""
        if not lease.open:
            return
        lease.open = False
        self.leases.remove(lease)
        self.epoch += 1
        for held in unlock(self, lease):  # only now: a copy must not go while copies below it are still locked
            if attached(held):  # else its node was joined with one that was dropped before
                self.drop(held, lease.tier)
        self.tidy(lease.item.node)

    def miss(self, ticket: int) -> None:
        """Stop waiting for a copy between tiers: it moves from `in_flight` to `overdue`. The copy may still be writing, so its source stays
        leased and its target taken until it is reported. Ignores tickets that are not in flight."""
        flight = self.in_flight.pop(ticket, None)
        if flight is not None:
            self.overdue[ticket] = flight

    def coming(self, source: Tier) -> int:
        """Slots of `source` that become clean when the copies downwards under way are reported. Overdue copies do not count.
        O(overdue copies)."""
        moving = sum(slots for (start, target), slots in self.moving.items() if start == source < target)
        pending = (item.pending for flight in self.overdue.values() for item in flight.items)
        late = (copy for copy in pending if copy is not None and copy.source == source < copy.tier)
        return moving - sum(len(copy.slots) for copy in late)

    # ---- pages --------------------------------------------------------------------------------------------

    def grow(self, table: BlockTable, count: int) -> None:
        """Append `count` free pages to `table`, promised ones first. The caller has made sure that so many are free."""
        table.append(self.pools[DEVICE].take(count))
        used = min(count, table.promised)
        table.promised -= used
        self.reserved -= used
        self.epoch += 1

    def grow_each(self, tables: Sequence[BlockTable]) -> None:
        """Append a free page to each of `tables`, as `grow` does."""
        pages = self.pools[DEVICE].take(len(tables))
        for at, table in enumerate(tables):
            table.append(pages[at : at + 1])
            if table.promised:
                table.promised -= 1
                self.reserved -= 1
        self.epoch += bool(tables)

    def promise(self, table: BlockTable, count: int) -> None:
        """Set the reservation of `table` to `count` pages."""
        self.reserved += count - table.promised
        table.promised = count
        self.epoch += 1

    def close(self, table: BlockTable) -> None:
        """Free the private pages of `table`, and its reservation."""
        self.give(DEVICE, table.private)
        self.promise(table, 0)

    # ---- content ------------------------------------------------------------------------------------------

    def drop(self, item: Item, tier: Tier) -> None:
        """Drop the unlocked copy of `item` in `tier`, and tidy up its node."""
        self.vacate(item, tier)
        node = item.node
        if item.what == "kv" and node.rung is not None:
            self.requeue(node.rung.image)
        if item.what == "kv" and node.parent is not None:
            self.requeue(node.parent.kv)
        self.tidy(node)

    def condemn(self, item: Item, tier: Tier) -> None:
        """Make this copy unreachable for new requests; it is dropped when its last lease ends. The disk forgets its own copy at once, and a
        copy that is being written from this one too, so that the next process does not find it either."""
        slots = item.at[tier]
        if slots is None or not item.has(tier):
            return
        if tier == DISK:
            self.archive.forget(slots)
        coming = item.pending
        if coming is not None and coming.tier == DISK and coming.source == tier:
            self.archive.forget(coming.slots)
        self.transition(item, tier, CONDEMNED)
        if not item.locks[tier]:
            self.drop(item, tier)

    def attach(self, parent: Node, tokens: Ints, now: float) -> Node:
        """Add a child to `parent`, with no copy of its KV yet; returns it."""
        self.reconsider(parent.kv)
        self.candidates.items += 1
        self.ghost_blocks += len(tokens) // self.tree.block
        return self.tree.attach(parent, tokens, now)

    def add_rung(self, node: Node, kind: RungKind, now: float) -> Rung:
        """Add a rung at the end of `node`, with no image yet; returns it."""
        assert node.rung is None
        self.reconsider(node.kv)
        self.candidates.items += 1
        node.lost = tuple(p for p in node.lost if p != node.end)
        node.rung = Rung(node, kind, now)
        return node.rung

    def lengthen(self, node: Node, tokens: Ints, pages: Ints) -> None:
        """Append `tokens`, whose KV is in `pages`, to a leaf that is on the device alone and has one lease."""
        here = node.kv.at[DEVICE]
        assert here is not None and not node.children and node.kv.locks[DEVICE] == 1
        before = node.end
        self.tree.lengthen(node, tokens)
        node.kv.at[DEVICE] = np.concatenate([here, pages])
        self.cached[DEVICE] += len(pages)
        if self.tenants is not None:
            self.tenants.moved(node.kv.tenant, DEVICE, len(pages))
        self.leased[DEVICE] += len(pages)
        self.epoch += 1
        if self.journal is not None:
            self.journal.note_grown(node, before, DEVICE)

    def exchange(self, rung: Rung, pages: Ints) -> Ints:
        """Move the unlocked device image of `rung` to `pages`, as many as it has now. Returns the old pages, for the caller to free."""
        old = rung.image.at[DEVICE]
        assert old is not None and len(old) == len(pages)
        rung.image.at[DEVICE] = pages
        self.epoch += 1
        return old

    def remove_rung(self, rung: Rung) -> None:
        """Remove an unlocked rung and all its copies. It does not count as lost, since it is removed on purpose."""
        node = rung.image.node
        for tier in self.pools:
            if rung.image.at[tier] is not None:
                self.vacate(rung.image, tier)
        self._take_rung(node)
        self.tidy(node)

    def _take_rung(self, node: Node) -> None:
        """Remove the rung at `node`, and the pins that end there."""
        node.rung = None
        self.candidates.items -= 1
        for pin in list(self.pins.at.get(node, ())):
            for item in self.pins.end(pin):
                self.requeue(item)

    # ---- shape --------------------------------------------------------------------------------------------

    def split(self, node: Node, at: int) -> Node:
        """Cut `node` at position `at`. Returns the upper half, which shares leases and copies in flight with the lower."""
        upper = self.tree.split(node, at)
        self.candidates.items += 1
        if upper.kv.pending is not None:
            ticket = upper.kv.pending.ticket
            (self.in_flight.get(ticket) or self.overdue[ticket]).items.append(upper.kv)
        self.archive.split(upper.kv, node.kv)
        self.requeue(upper.kv)
        self.requeue(node.kv)
        return upper

    def node_at(self, node: Node, position: int) -> Node:
        """The node that ends at `position` on the path to `node`; cuts the one around it if there is none."""
        for above in node.up():
            if above.end == position:
                return above
            if above.start < position < above.end:
                return self.split(above, position)
        raise AssertionError(f"{position} is not on the path to {node!r}")

    def pages_of(self, node: Node, end: int) -> Ints:
        """Device pages of the KV of [0, end) on the path to `node`, in order. O(path)."""
        parts: list[Ints] = []
        while (above := node.parent) is not None:
            if node.start < end:
                pages = node.kv.at[DEVICE]
                assert pages is not None, f"{node!r} is not on the device"
                parts.append(pages if node.end <= end else pages[: (end - node.start) // self.tree.block])
            node = above
        parts.reverse()
        return np.concatenate(parts) if parts else np.empty(0, np.int32)

    def tidy(self, node: Node) -> None:
        """Remove a rung without an image, a vacant leaf or a needless boundary at `node`.

        The tokens of evicted leaves stay in the tree, up to `CacheConfig.ghost_blocks` and `ghost_nodes`, so that outcomes can tell
        evicted prompts from new ones.
        """
        if self.tree.condemned and self.tree.is_condemned(node):
            self._dissolve(node)
            return
        self._reshape(node)
        if self.ghosts:
            self._forget_ghosts()

    def _forget_ghosts(self) -> None:
        blocks, leaves = self.config.ghost_blocks, self.config.ghost_nodes
        while self.ghosts and (self.ghost_blocks > blocks or len(self.ghosts) > leaves):
            ghost = next(iter(self.ghosts))
            del self.ghosts[ghost]
            parent = ghost.parent
            if parent is not None and ghost.vacant:
                self._detach(ghost)
                self._reshape(parent)

    def _dissolve(self, node: Node) -> None:
        """Remove rungs without an image and vacant leaves of a condemned subtree, and finally its root."""
        if node.rung is not None and node.rung.image.idle:
            self._take_rung(node)
        while (parent := node.parent) is not None and node.vacant:
            self.ghosts.pop(node, None)
            self._detach(node)
            node = parent
        if isinstance(node, Root) and not node.children:
            self.tree.uproot(node)

    def _detach(self, leaf: Node) -> None:
        """Take a vacant leaf out of the tree."""
        self.tree.detach(leaf)
        self.candidates.items -= 1
        self.ghost_blocks -= (leaf.end - leaf.start) // self.tree.block

    def _reshape(self, node: Node) -> None:
        if node.rung is not None and node.rung.image.idle:
            self._take_rung(node)
            node.lost = (*node.lost, node.end)
        if isinstance(node, Root):
            if not node.children and not any(node.kv.locks):
                self.tree.uproot(node)
        elif node.parent is not None and node.vacant:
            self.ghosts[node] = None
        elif node.parent is not None:
            if len(node.children) == 1:
                (child,) = node.children.values()
                node = child if self._join(child) else node
            self._join(node)
            self.requeue(node.kv)

    def _join(self, node: Node) -> bool:
        if not self.tree.joinable(node):
            return False
        self.tree.join(node)
        self.candidates.items -= 1
        return True
