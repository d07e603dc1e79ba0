"""What may be dropped from each tier, and what is to be copied to the tier below it, in order of value.

    drops[tier]   copies that can go now without losing what is meant to be kept
    dirty[tier]   copies that are the only one meant to be kept: to be copied down first

A copy in a tier is safe once the next tier has one too, or will not get one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stepwell.cache.life import HERE, REFUSED
from stepwell.cache.moves import Tier
from stepwell.cache.policy import Policy
from stepwell.cache.ranking import Latest, Ranking
from stepwell.cache.tree import Item


class Offers:
    """The rankings of one directory. Whoever changes an item offers it again; who stays a candidate is found out when popped.

    What is offered is looked at when somebody next asks for a candidate: a request changes the same few items many times over.
    """

    __slots__ = ("_fresh", "_items", "_tiers", "dirty", "drops", "latest", "lower")

    def __init__(self, tiers: tuple[Tier, ...], policy: Policy) -> None:
        def ranking(tier: Tier, live: Callable[[Item], bool]) -> Ranking:
            return Ranking(tier, live, policy.value, policy.weights, self.latest, self.settle)

        self.latest = Latest()
        self.lower: dict[Tier, Tier | None] = dict(zip(tiers, (*tiers[1:], None), strict=True))
        self.drops = {tier: ranking(tier, partial(self.droppable, tier)) for tier in tiers}
        self.dirty = {tier: ranking(tier, partial(self.demotable, tier)) for tier in tiers[:-1]}
        self._tiers = tiers
        self._fresh: dict[Item, None] = {}
        self._items = 0

    @property
    def next_tier(self) -> Tier:
        """Where copies of the device go."""
        return self.lower[Tier.DEVICE] or Tier.HOST

    def safe(self, item: Item, tier: Tier) -> bool:
        """Whether dropping the copy in `tier` loses nothing that is meant to be kept."""
        lower = self.lower[tier]
        return lower is None or item.life[lower] >= HERE or item.life[lower] == REFUSED

    def add(self, item: Item, items: int) -> None:
        """`item` may have become a candidate, or lost value. `items` are there in all."""
        self._fresh[item] = None
        self._items = items
        if len(self._fresh) > _FRESH:
            self.settle()

    def settle(self) -> None:
        """Rank what has been offered."""
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, {}
        for item in fresh:
            for tier in self._tiers:
                if item.at[tier] is None or item.locks[tier]:
                    continue
                if self.droppable(tier, item):
                    self.drops[tier].add(item, self._items)
                elif self.demotable(tier, item):
                    self.dirty[tier].add(item, self._items)

    def droppable(self, tier: Tier, item: Item) -> bool:
        """Whether the copy of `item` in `tier` may go as it is."""
        if item.at[tier] is None or item.locks[tier] or item.below[tier] or not self.safe(item, tier):
            return False
        # in host, the copy that lets a resident one be dropped at once stays: dropping it would win nothing
        return (tier != Tier.HOST or item.at[Tier.DEVICE] is None) and attached(item)

    def demotable(self, tier: Tier, item: Item) -> bool:
        """Whether the copy of `item` in `tier` is to be copied down before it goes."""
        if item.at[tier] is None or item.locks[tier] or item.pending is not None or self.safe(item, tier):
            return False
        if tier == Tier.DEVICE:
            return item.soiled == 0 and attached(item)
        return item.at[Tier.DEVICE] is None and not item.below[tier] and attached(item)


_FRESH = 512
"""Offers that are looked at without being asked for: so that they are bounded where nothing ever has to go, and no request pays for many
others at once."""


def attached(item: Item) -> bool:
    """Whether `item` is still part of the tree."""
    node = item.node
    if item.what == "image":
        return node.rung is not None and node.rung.image is item
    return node.parent is not None
