"""Which copies go first. The one place that knows what is worth keeping.

Three classes, least valuable first; within a class, least recently used first:

    0  bytes that nothing can resume from: KV past the last rung of its path, images whose KV has left the tier
    1  rungs superseded by two deeper ones of the same path, or of answers that the next turn has not repeated
    2  everything else
    3  below the device: images outlive KV; superseded ones are among the rest there, as if unused for longer, the more so the less
       they spare

KV goes leaf first: a run is a candidate only when no child's KV is in the same tier. An image is a candidate of its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

from stepwell.cache.moves import Tier
from stepwell.cache.tree import Item, Node, Rung, RungKind

Value = tuple[int, float]


def value(item: Item, tier: Tier) -> Value:
    """(class, last use) of the copy of `item` in `tier`; smaller goes first."""
    node = item.node
    if item.what == "kv":
        return (0 if worthless(item) else 2), node.used
    assert node.rung is not None
    if tier != Tier.DEVICE:
        if node.kv.best() is None:
            return 0, node.rung.used
        if node.rung.superseded:
            return 2, node.rung.used - _STALE + _spared(node) / _SPARED_PER_S
        return 3, node.rung.used
    if not node.kv.has(tier):
        return 0, node.rung.used
    return (1 if node.rung.superseded else 2), node.rung.used


_STALE = 600.0
"""s by which a superseded rung counts as longer unused than it is, below the device: a quick look at agents' think times."""
_SPARED_PER_S = 20.0
"""Tokens between a superseded rung and the one above it that make up for one second of that."""


def _spared(node: Node) -> int:
    """Tokens that would be computed again from the rung above, were the one at `node` gone."""
    path = node.up()
    next(path)
    above = next((n.end for n in path if n.rung is not None and n.rung.image.best() is not None), 0)
    return node.end - above


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

    __slots__ = ("_count", "_heap", "_tier", "live")

    def __init__(self, tier: Tier, live: Callable[[Item], bool]) -> None:
        self._tier = tier
        self.live = live
        self._heap: list[tuple[int, float, int, Item]] = []
        self._count = 0

    def offer(self, item: Item) -> bool:
        """Consider `item` from now on, if it is a candidate at all; False if it is not."""
        if not self.live(item):
            return False
        cls, used = value(item, self._tier)
        self._count += 1
        heapq.heappush(self._heap, (cls, used, self._count, item))
        return True

    def pop(self) -> Item | None:
        """The least valuable candidate, no longer offered; None if there is none. Amortised O(log n)."""
        while self._heap:
            cls, used, _, item = heapq.heappop(self._heap)
            if not self.live(item):
                continue
            now = value(item, self._tier)
            if now > (cls, used):
                self._count += 1
                heapq.heappush(self._heap, (*now, self._count, item))
                continue
            return item
        return None

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


def supersede(node: Node) -> Rung | None:
    """The rung that the new rung at `node` supersedes: the second rung above it, unless another prompt branches off in between.

    Keeping two rungs a path on the device serves resumes of the last turn and of the one before.
    """
    above = [parent.rung for parent, _ in _last_turns(node) if parent.rung is not None]
    return above[1] if len(above) == 2 else None


def passed_over(node: Node) -> list[Rung]:
    """Rungs of answers that the path to `node` has left out: the next turn has come, and did not repeat them."""
    return [answer.rung for _, answers in _last_turns(node) for answer in answers if answer.rung is not None]


def _last_turns(node: Node) -> Iterator[tuple[Node, list[Node]]]:
    """The nodes above `node` up to the second with a rung, each with the answers that branch off there; ends before a branch of
    another kind, or one of too many to look at."""
    rungs, path = 0, node.up()
    below = next(path)
    for parent in path:
        others = (
            [child for child in parent.children.values() if child is not below] if len(parent.children) <= _FEW else []
        )
        if len(parent.children) > _FEW or not all(map(is_answer, others)):
            return
        yield parent, others
        rungs += parent.rung is not None
        if rungs == 2:
            return
        below = parent


def is_answer(node: Node) -> bool:
    """Whether nobody but the one who was answered has been there, and nobody is now: a leaf with no rung but a rolling one."""
    kind = None if node.rung is None else node.rung.kind
    return not node.children and kind in (None, RungKind.ROLLING) and not any(node.kv.locks) and not node.awaited


_FEW = 8
"""Children of a node that are looked at one by one."""
