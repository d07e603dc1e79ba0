"""Holds on what is cached, and how much of a tier they leave."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.cache.moves import Tier
from stepwell.cache.tree import Item


@dataclass(slots=True, eq=False)
class Lease:
    """A hold on one tier's bytes: of an image, or of all KV from the root to the end of `item.node`. Closing twice is harmless."""

    item: Item
    tier: Tier
    open: bool = True


@dataclass(slots=True)
class Flight:
    """A copy downwards under way: what it reads (both halves, where a node was split meanwhile), and the hold on that."""

    lease: Lease
    items: list[Item]


@dataclass(frozen=True, slots=True)
class TierUse:
    """Slots of one tier by state; `kept` ones are cached ones that go last for some keep."""

    total: int
    free: int
    cached: int
    leased: int
    clean: int
    kept: int = 0

    @property
    def private(self) -> int:
        """Slots owned by a request or by a copy in flight."""
        return self.total - self.free - self.cached
