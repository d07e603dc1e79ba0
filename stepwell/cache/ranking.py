"""Candidates in the order in which they go. What they are worth is the policy's to say (`stepwell.cache.policy`).

KV goes leaf first: a run is a candidate only when no child's KV is in the same tier. An image is a candidate of its own.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass

from stepwell.cache.moves import Tier
from stepwell.cache.tree import Item

Value = tuple[int, float]
"""(queue, last use)."""


def worthless(item: Item) -> bool:
    """Whether nothing could resume from the bytes of `item` in any tier: not worth a copy. Queue 0 alone does not say so, an
    image whose KV has left the device for host is still a way back."""
    if item.what == "image":
        return item.node.kv.best() is None
    return item.node.rung is None and not any(item.below) and not item.node.awaited


def exposed(item: Item, tier: Tier) -> bool:
    """Whether the copy of `item` in `tier` may go as far as the tree's shape is concerned."""
    return item.below[tier] == 0


@dataclass(slots=True)
class Latest:
    """The latest use of anything: the time by which all rankings of one directory tell ages."""

    use: float = 0.0


class Ranking:
    """Candidates in the policy's queues. Lazy heaps: entries are checked and corrected when they reach the top.

    An item must be offered whenever it may have become a candidate or has lost value; gains are found at the top.
    """

    __slots__ = ("_count", "_entries", "_latest", "_queues", "_settle", "_tier", "_value", "_weights", "live")

    def __init__(
        self,
        tier: Tier,
        live: Callable[[Item], bool],
        value: Callable[[Item, Tier], Value],
        weights: tuple[float, ...],
        latest: Latest,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._tier = tier
        self._value = value
        # the last is of what is guarded by a keep, under any policy: it never ages (`stepwell.cache.kept`)
        self._weights = (*weights, 0.0)
        self._queues: list[list[tuple[float, int, Item]]] = [[] for _ in self._weights]
        self._latest = latest
        self._count = self._entries = 0
        self._settle = settle
        self.live = live

    def offer(self, item: Item) -> bool:
        """Consider `item` from now on, if it is a candidate at all; False if it is not."""
        if not self.live(item):
            return False
        self._push(item, *self._place(item))
        return True

    def add(self, item: Item, items: int) -> None:
        """Consider `item`, which is a candidate; `items` are there in all."""
        self._push(item, *self._place(item))
        if self._entries > 4 * items + 1024:
            self.trim(items)

    def pop(self) -> Item | None:
        """The least valuable candidate, no longer offered; None if there is none. Amortised O(log n)."""
        self._settle()
        while (queue := self._oldest()) is not None:
            used, _, item = heapq.heappop(self._queues[queue])
            self._entries -= 1
            if not self.live(item):
                continue
            now = self._place(item)
            if now != (queue, used) and self._age(*now) < self._age(queue, used):
                self._push(item, *now)
                continue
            return item
        return None

    def age(self, item: Item) -> float:
        """How old `item` counts as: of two, the older goes first."""
        return self._age(*self._place(item))

    def outlasts(self, item: Item, other: Item) -> bool:
        """Whether `item` is not to go for the sake of `other`: used as lately, whatever they are, or guarded.

        By plain use: were an image to weigh more here than KV, two runs that do not fit together could each be written in the place
        of the other's KV for ever.
        """
        queue, used = self._place(item)
        guarded = queue == len(self._queues) - 1
        return guarded or (queue > 0 and used >= self._value(other, self._tier)[1])

    def _place(self, item: Item) -> Value:
        if item.guarded >> self._tier & 1:
            return len(self._queues) - 1, 0.0
        return self._value(item, self._tier)

    def _push(self, item: Item, queue: int, used: float) -> None:
        if used > self._latest.use:
            self._latest.use = used
        self._count += 1
        self._entries += 1
        heapq.heappush(self._queues[queue], (used, self._count, item))

    def _age(self, queue: int, used: float) -> float:
        return (self._latest.use - used) * self._weights[queue] if queue else math.inf

    def _oldest(self) -> int | None:
        """The queue whose head has the greatest age; of equal ones the first."""
        if self._queues[0]:
            return 0
        best, greatest, now = None, -math.inf, self._latest.use
        for queue, (heap, weight) in enumerate(zip(self._queues, self._weights, strict=True)):
            if heap and (age := (now - heap[0][0]) * weight) > greatest:
                best, greatest = queue, age
        return best

    def __len__(self) -> int:
        return self._entries

    def trim(self, live_items: int) -> None:
        """Rebuild when stale entries dominate, so that memory follows what is cached."""
        if self._entries > 4 * live_items + 1024:
            seen = {id(item): item for heap in self._queues for _, _, item in heap}
            self.clear()
            for item in seen.values():
                self.offer(item)

    def clear(self) -> None:
        """Forget every offer."""
        self._entries = 0
        for heap in self._queues:
            heap.clear()

    def items(self) -> set[int]:
        """Ids of everything on offer: for checks."""
        self._settle()
        return {id(item) for heap in self._queues for _, _, item in heap}
