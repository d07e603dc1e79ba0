"""What may be worth a write to disk while nothing else is to be done: an index, so that no idle turn walks the tree.

`Offers.settle` adds an item whenever its copies, or the copies of what hangs on it, have changed so that a write may be worth it. Whether
it still is, is found out when it is popped (`stepwell.cache.persist`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

from stepwell.cache.tree import Item


class Backlog:
    """Items in a lazy heap, each once: those used most recently come first, as far as their use was known when they were added.

    live   whether an item is still to be looked at
    """

    __slots__ = ("_count", "_heap", "_live", "_waiting")

    def __init__(self, live: Callable[[Item], bool]) -> None:
        self._live = live
        self._heap: list[tuple[float, int, Item]] = []
        self._waiting: set[Item] = set()
        self._count = 0

    def add(self, item: Item, items: int) -> None:
        """Have `item` looked at; `items` are in the tree in all, which bounds what is kept of those that have gone. O(log n) amortised."""
        if item in self._waiting:
            return
        self._waiting.add(item)
        self._count += 1
        heapq.heappush(self._heap, (-last_use(item), self._count, item))
        if len(self._heap) > 4 * items + 1024:
            self._heap = [entry for entry in self._heap if self._live(entry[2])]
            self._waiting = {item for _, _, item in self._heap}
            heapq.heapify(self._heap)

    def pop(self) -> Item | None:
        """The next item, no longer waiting; None if there is none. O(log n) amortised."""
        if self.empty:
            return None
        _, _, item = heapq.heappop(self._heap)
        self._waiting.remove(item)
        return item

    @property
    def empty(self) -> bool:
        """Whether nothing is to be looked at. Forgets what has gone from the top. O(log n) amortised."""
        while self._heap and not self._live(self._heap[0][2]):
            _, _, item = heapq.heappop(self._heap)
            self._waiting.remove(item)
        return not self._heap

    def __contains__(self, item: Item) -> bool:
        return item in self._waiting

    def __len__(self) -> int:
        """Entries, those of items that have gone included."""
        return len(self._heap)


def last_use(item: Item) -> float:
    """When an image was last resumed from, or KV last used."""
    node = item.node
    return node.rung.used if item.what == "image" and node.rung is not None else node.used
