"""Pins: which paths are evicted last, and until when.

A pin is a retention class, not a lease. In each tier pinned items are evicted after all others, under any policy. They may still be copied
down, and are dropped if nothing else can be, so no pin makes a request wait or fail.

    root ── pinned ── pinned ── tip ⟂ image      a pin covers every node of its path and the image at its tip,
                      └──────── node             so everything above a pinned item is pinned too

Pinned pages are bounded by half of the largest tier in all, and for one tenant by its share of that half (`CacheConfig.tenant_share`).
In each tier, at most half of the slots are guarded: evicted last.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from stepwell.base.geometry import Geometry, Ints
from stepwell.cache.moves import Tier
from stepwell.cache.tree import Item, Node

Label: TypeAlias = tuple[str, str]
"""Identifies a pin: its salt and a digest of its prompt."""

MOST_PINS = 4096
"""Pins of all tenants together; one tenant may have its share of them."""
SHARE = 0.5
"""Largest share of a tier that is guarded."""


@dataclass(slots=True, eq=False)
class Pin:
    """The KV up to the end of `tip` and the image there, until `until`."""

    label: Label
    tip: Node
    image: Item
    until: float
    open: bool = True

    @property
    def tenant(self) -> str:
        return self.image.tenant

    def items(self) -> Iterator[Item]:
        yield self.image
        for node in self.tip.up():
            if node.parent is not None:
                yield node.kv


class Pins:
    """All pins of one directory, and their counts on items.

    known   by label            at       by the node at which they end
    pages   pinned, each once   pages_of, pins_of   pinned pages and pins by tenant
    caps    most slots guarded, by tier             guarded   slots guarded, by tier
    """

    def __init__(self, geometry: Geometry, totals: Mapping[Tier, int], tenant_share: float = 1.0) -> None:
        self._block = geometry.block
        self._image_pages = geometry.image_pages
        self._tenant_share = tenant_share
        self.caps = {tier: int(SHARE * total) for tier, total in totals.items()}
        self.pages = 0
        self.pages_of: dict[str, int] = {}
        self.pins_of: dict[str, int] = {}
        self.guarded = dict.fromkeys(totals, 0)
        self.known: dict[Label, Pin] = {}
        self.at: dict[Node, list[Pin]] = {}
        self._ends: list[tuple[float, int, Pin]] = []
        self._serial = 0

    @property
    def most(self) -> int:
        """Pages that may be pinned in all."""
        return max(self.caps.values())

    def widen(self, tier: Tier, total: int) -> None:
        """Note that `tier` has grown to `total` slots."""
        self.caps[tier] = int(SHARE * total)

    def room(self, tenant: str) -> int:
        """Number of pages that `tenant` may still pin. Negative if it may not have another pin at all."""
        share = self._tenant_share
        if len(self.known) >= MOST_PINS or self.pins_of.get(tenant, 0) >= MOST_PINS * share:
            return -1
        return min(self.most - self.pages, int(self.most * share) - self.pages_of.get(tenant, 0))

    def size(self, item: Item) -> int:
        """Pages of `item` in any tier."""
        return self._image_pages if item.what == "image" else (item.node.end - item.node.start) // self._block

    def begin(self, pin: Pin) -> None:
        """Add `pin`, whose label is not in use. O(path)."""
        assert pin.label not in self.known
        self.known[pin.label] = pin
        self.at.setdefault(pin.tip, []).append(pin)
        self._tell(self.pins_of, pin.tenant, 1)
        for item in pin.items():
            if not item.pins:
                self._count(pin.tenant, self.size(item))
            item.pins += 1
            for tier in self.caps:
                self.placed(item, tier, item.at[tier], item.at[tier])
        self._serial += 1
        heapq.heappush(self._ends, (pin.until, self._serial, pin))

    def end(self, pin: Pin) -> list[Item]:
        """Remove `pin`. Returns the items that are no longer guarded in some tier; the caller requeues them. O(path)."""
        if not pin.open:
            return []
        pin.open = False
        del self.known[pin.label]
        here = self.at[pin.tip]
        here.remove(pin)
        if not here:
            del self.at[pin.tip]
        self._tell(self.pins_of, pin.tenant, -1)
        fallen: list[Item] = []
        for item in pin.items():
            item.pins -= 1
            if item.pins:
                continue
            self._count(pin.tenant, -self.size(item))
            if item.guarded:
                for tier in self.caps:
                    self._unguard(item, tier, item.at[tier])
                fallen.append(item)
        return fallen

    def ended(self, now: float) -> Pin | None:
        """A pin whose time is over, for the caller to end. None if there is none. O(1) then."""
        ends = self._ends
        while ends and not ends[0][2].open:
            heapq.heappop(ends)
        if len(ends) > 2 * len(self.known) + 64:  # most were renewed or ended early
            ends[:] = [entry for entry in ends if entry[2].open]
            heapq.heapify(ends)
        return ends[0][2] if ends and ends[0][0] <= now else None

    def placed(self, item: Item, tier: Tier, before: Ints | None, after: Ints | None) -> None:
        """Update the guard of pinned `item` in `tier`, whose copy moves from slots `before` to `after` (None: no copy)."""
        if after is None:
            self._unguard(item, tier, before)
        elif not item.guarded >> tier & 1 and self.guarded[tier] + len(after) <= self.caps[tier]:
            item.guarded |= 1 << tier
            self.guarded[tier] += len(after)

    def _unguard(self, item: Item, tier: Tier, slots: Ints | None) -> None:
        if item.guarded >> tier & 1:
            assert slots is not None, f"{item!r} is guarded in {tier.name.lower()}, where it is not"
            item.guarded &= ~(1 << tier)
            self.guarded[tier] -= len(slots)

    def _count(self, tenant: str, pages: int) -> None:
        self.pages += pages
        self._tell(self.pages_of, tenant, pages)

    @staticmethod
    def _tell(counts: dict[str, int], tenant: str, added: int) -> None:
        """Add to a count by tenant. No count of 0 stays, so memory follows what is pinned."""
        count = counts.get(tenant, 0) + added
        if count:
            counts[tenant] = count
        else:
            counts.pop(tenant, None)
