"""The one owner of everything cached: tree, pools, leases, and what each slot is for.

Every slot of a tier is free, cached (owned by the tree) or private (owned by a request or by a copy in flight). A lease locks
what it names, and on the way up to the root all KV above it; locked bytes are never dropped. Totals are kept as things change,
so planning reads them in O(1); `check` recomputes them.
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
        self.reserved = self.condemnations = 0  # the latter counts quarantines
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
        """Device pages that a new request may count on: free, or cached and unleased, less those promised to others."""
        device = DEVICE
        return self.pools[device].free + self.cached[device] - self.leased[device] - self.reserved

    def survey(self, salt: str, prompt: Ints) -> Survey:
        return survey(self.tree, salt, prompt)

    def plan(
        self, salt: str, prompt: Ints, costs: Costs, read: bool = True, external_hit: ExternalHit | None = None
    ) -> Plan | Wait:
        """How a request for `prompt` would start now, given what an external store has. Changes nothing, counters included."""
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
        """How a suspended request goes on after `computed` tokens; None where it is better off at a rung."""
        found = self.survey(salt, tokens)
        return plan_return(found, computed, salt, self.epoch, self.room(), self.config, costs)

    # ---- leases -------------------------------------------------------------------------------------------

    def lease(self, item: Item, tier: Tier) -> Lease:
        """Hold an image, or the KV of the whole path down to a node."""
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
        """End a lease. No other call does."""
        if not lease.open:
            return
        lease.open = False
        self.leases.remove(lease)
        self.epoch += 1
        for held in unlock(self, lease):  # only now: a copy must not go while what hangs on it is still locked
            if attached(held):  # else it has joined what was dropped before it
                self.drop(held, lease.tier)
        self.tidy(lease.item.node)

    def miss(self, ticket: int) -> None:
        """Stop waiting for a copy between tiers: it moves from `in_flight` to `overdue`. It may still be writing, so it holds what it
        reads and fills until it is reported. Does nothing for a ticket that is not in flight."""
        flight = self.in_flight.pop(ticket, None)
        if flight is not None:
            self.overdue[ticket] = flight

    def coming(self, source: Tier) -> int:
        """Slots of `source` that copies downwards are reading and that become clean once these are reported, overdue ones left out.
        O(overdue copies)."""
        moving = sum(slots for (start, target), slots in self.moving.items() if start == source < target)
        pending = (item.pending for flight in self.overdue.values() for item in flight.items)
        late = (copy for copy in pending if copy is not None and copy.source == source < copy.tier)
        return moving - sum(len(copy.slots) for copy in late)

    # ---- pages --------------------------------------------------------------------------------------------

    def grow(self, table: BlockTable, count: int) -> None:
        """Append `count` free pages; promised ones first. The caller has made sure that they are free."""
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
        """Give back what the table alone owns, and its reservation."""
        self.give(DEVICE, table.private)
        self.promise(table, 0)

    # ---- content ------------------------------------------------------------------------------------------

    def drop(self, item: Item, tier: Tier) -> None:
        """Forget the unlocked copy of `item` in `tier`."""
        self.vacate(item, tier)
        node = item.node
        if item.what == "kv" and node.rung is not None:
            self.requeue(node.rung.image)
        if item.what == "kv" and node.parent is not None:
            self.requeue(node.parent.kv)
        self.tidy(node)

    def condemn(self, item: Item, tier: Tier) -> None:
        """Make this copy unfindable; it is dropped when its last lease ends. The disk forgets its own copy at once. A copy that is being
        written from this one is forgotten when the write ends, so the next process does not find it either."""
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
        """A new child of `parent`, with no copy of its KV yet."""
        self.reconsider(parent.kv)
        self.candidates.items += 1
        self.ghost_blocks += len(tokens) // self.tree.block
        return self.tree.attach(parent, tokens, now)

    def add_rung(self, node: Node, kind: RungKind, now: float) -> Rung:
        """A rung at the end of `node`, with no image yet."""
        assert node.rung is None
        self.reconsider(node.kv)
        self.candidates.items += 1
        node.lost = tuple(p for p in node.lost if p != node.end)
        node.rung = Rung(node, kind, now)
        return node.rung

    def lengthen(self, node: Node, tokens: Ints, pages: Ints) -> None:
        """Let a leaf on the device alone, which one lease holds, go on by `tokens`, whose KV is in `pages`."""
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
        """Let the unlocked image of `rung` on the device be in `pages`, as many as it has; returns those it was in."""
        old = rung.image.at[DEVICE]
        assert old is not None and len(old) == len(pages)
        rung.image.at[DEVICE] = pages
        self.epoch += 1
        return old

    def remove_rung(self, rung: Rung) -> None:
        """Remove an unlocked rung with all its copies on purpose: it does not count as lost."""
        node = rung.image.node
        for tier in self.pools:
            if rung.image.at[tier] is not None:
                self.vacate(rung.image, tier)
        self._take_rung(node)
        self.tidy(node)

    def _take_rung(self, node: Node) -> None:
        """The rung at `node` goes, and with it the pins that end there."""
        node.rung = None
        self.candidates.items -= 1
        for pin in list(self.pins.at.get(node, ())):
            for item in self.pins.end(pin):
                self.requeue(item)

    # ---- shape --------------------------------------------------------------------------------------------

    def split(self, node: Node, at: int) -> Node:
        """Cut `node` at `at`; returns the upper half, which shares leases and copies in flight."""
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
        """The node on the way up from `node` that ends at `position`, cut there if need be."""
        for above in node.up():
            if above.end == position:
                return above
            if above.start < position < above.end:
                return self.split(above, position)
        raise AssertionError(f"{position} is not on the path to {node!r}")

    def pages_of(self, node: Node, end: int) -> Ints:
        """Device pages of [0, end) on the path to `node`. O(path)."""
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
        """Remove what is of no use at `node`: a rung without an image, an empty leaf, a needless boundary.

        The tokens of evicted leaves stay, so that a loss can be named, up to the configured number of blocks and of leaves.
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
        """Remove what a condemned subtree holds for nobody: rungs without an image, vacant leaves, at last its root."""
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
