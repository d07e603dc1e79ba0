"""Candidates in the order in which they go. What they are worth is the policy's to say (`stepwell.cache.policy`).

KV goes leaf first: a run is a candidate only when no child's KV is in the same tier. An image is a candidate of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from stepwell.cache.moves import Tier
from stepwell.cache.tree import Item

Value = tuple[int, float]

KEPT = 100
"""Added to the class of what is to go last in its tier (`stepwell.cache.kept`), under any policy."""


def worthless(item: Item) -> bool:
    """Whether nothing could resume from the bytes of `item` in any tier: not worth a copy. Class 0 alone does not say so, an
    image whose KV has left the device for host is still a way back."""
    if item.what == "image":
        return item.node.kv.best() is None
    return item.node.rung is None and not any(item.below) and not item.node.awaited


def exposed(item: Item, tier: Tier) -> bool:
    """Whether the copy of `item` in `tier` may go as far as the tree's shape is concerned."""
    return item.below[tier] == 0


class Ranking:
    """Candidates in order of value. A lazy heap: entries are checked and corrected when they reach the top.

    An item must be offered whenever it may have become a candidate or has lost value; gains are found at the top.
    """

    __slots__ = ("_count", "_heap", "_tier", "_value", "live")

    def __init__(self, tier: Tier, live: Callable[[Item], bool], value: Callable[[Item, Tier], Value]) -> None:
        self._tier = tier
        self._value = value
        self.live = live
        self._heap: list[tuple[int, float, int, Item]] = []
        self._count = 0

    def offer(self, item: Item) -> bool:
        """Consider `item` from now on, if it is a candidate at all; False if it is not."""
        if not self.live(item):
            return False
        cls, used = self._value(item, self._tier)
        if item.guarded:
            cls += self._last(item)
        self._count += 1
        heapq.heappush(self._heap, (cls, used, self._count, item))
        return True

    def pop(self) -> Item | None:
        """The least valuable candidate, no longer offered; None if there is none. Amortised O(log n)."""
        while self._heap:
            cls, used, _, item = heapq.heappop(self._heap)
            if not self.live(item):
                continue
            now = self._value(item, self._tier)
            if item.guarded:
                now = (now[0] + self._last(item), now[1])
            if now > (cls, used):
                self._count += 1
                heapq.heappush(self._heap, (*now, self._count, item))
                continue
            return item
        return None

    def _last(self, item: Item) -> int:
        return KEPT if item.guarded >> self._tier & 1 else 0

    def trim(self, live_items: int) -> None:
        """Rebuild when stale entries dominate, so that memory follows what is cached."""
        if len(self._heap) > 4 * live_items + 1024:
            seen: dict[int, Item] = {id(entry[3]): entry[3] for entry in self._heap}
            self._heap.clear()
            for item in seen.values():
                self.offer(item)

    def items(self) -> set[int]:
        """Ids of everything on offer: for checks."""
        return {id(entry[3]) for entry in self._heap}
