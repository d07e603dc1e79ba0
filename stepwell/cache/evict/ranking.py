"""Candidates of each tier in the order in which they are evicted: what may be dropped, and what is to be copied down first.

    drops[tier]   copies that can be dropped now: the next tier has one too, or will not get one
    dirty[tier]   copies that must be copied down before they are dropped
    twice         host copies of KV that a running request holds on the device; they make room in host first
    backlog       items that may be worth a write to disk while the engine is idle

A copy is safe (clean) once the next tier has one too, or will not get one. KV is evicted leaf first: a run is a candidate only when no
child has KV in the same tier. An image is a candidate of its own. The policy gives the order (`stepwell.cache.evict.policy`).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from stepwell.cache.disk.archive import Backlog
from stepwell.cache.evict.policy import Policy, Regret, Value
from stepwell.cache.life import ABSENT, HERE, REFUSED
from stepwell.cache.moves import DEVICE, DISK, HOST, Tier
from stepwell.cache.placement import needed
from stepwell.cache.tree import Item


@dataclass(slots=True)
class Latest:
    """Time of the latest use of anything: all rankings of one directory measure ages from it."""

    use: float = 0.0


_Entry: TypeAlias = tuple[float, int, Item, int]
"""(last use, serial number, item, queue)."""


class Ranking:
    """Candidates in the policy's queues, as lazy heaps: an entry is checked, and corrected, when it reaches the top.

    Callers add an item again whenever it may have become a candidate or has lost value. An item that has gained value is moved when it
    reaches the top. Of several entries of one item the last counts.

    live     tells if an item is a candidate
    spares   tells if an image is spared: dropped after all items that are not
    settle   ranks what has changed; called before a candidate is taken
    """

    def __init__(
        self,
        tier: Tier,
        live: Callable[[Item], bool],
        policy: Policy,
        latest: Latest,
        spares: Callable[[Item], bool] = lambda item: False,
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        self._tier = tier
        self._value = policy.value
        # the last two never age: what is spared, and what a pin guards (`stepwell.cache.evict.pins`)
        self._weights = (*policy.weights, 0.0, 0.0)
        self._queues: list[list[_Entry]] = [[] for _ in self._weights]
        self._ageing = tuple(zip(range(1, len(self._weights)), self._queues[1:], self._weights[1:], strict=True))
        self._latest = latest
        self._last: dict[Item, _Entry] = {}
        self._count = self._entries = 0
        self._spares = spares
        self._settle = settle
        self.live = live

    def consider(self, item: Item) -> None:
        """Consider `item` from now on, if it is a candidate at all."""
        if self.live(item):
            self._push(item, *self._rank(item))

    def add(self, item: Item, items: int) -> None:
        """Add `item`, which is a candidate. `items` is the size of the tree, which bounds the stale entries. Amortised O(log n)."""
        self._push(item, *self._rank(item))
        if self._entries > 4 * items + 1024:
            self._rebuild()

    def pop(self) -> Item | None:
        """Take out the least valuable candidate. None if there is none. Amortised O(log n)."""
        self._settle()
        while (queue := self._oldest()) is not None:
            used, number, item, _ = heapq.heappop(self._queues[queue])
            self._entries -= 1
            last = self._last.get(item)
            if last is None or last[1] != number:
                continue
            self.forget(item)
            if not self.live(item):
                continue
            now = self._place(item)
            if now != (queue, used) and self._before((queue, used), now):
                self._push(item, *now)
                continue
            return item
        return None

    def head(self) -> Item | None:
        """The least valuable candidate, which stays in the ranking. None if there is none. Amortised O(log n)."""
        item = self.pop()
        if item is not None:
            self._push(item, *self._place(item))
        return item

    def age(self, item: Item) -> float:
        """The weighed age of `item`: of two items, the one with the greater age is dropped first."""
        return self._age(*self._place(item))

    def outlasts(self, item: Item, other: Item) -> bool:
        """True if `item` must not be dropped to make room for `other`: it is pinned, or was used at least as recently.

        Last use alone counts here. If an image weighed more than KV, two runs that do not fit together could displace each other's KV
        for ever.
        """
        if item.goes_last(self._tier):
            return True
        queue, used = self._value(item, self._tier)
        return queue > 0 and used >= self._value(other, self._tier)[1]

    def respare(self) -> None:
        """Rank all spared items again, because the rule for sparing has changed. O(k log n) for k of them."""
        for _, _, item, _ in self._queues[-2].copy():
            self.consider(item)

    def _rank(self, item: Item) -> Value:
        """(queue, last use) of `item` if it is not spared; that is only looked up when it reaches the top."""
        if item.guarded and item.goes_last(self._tier):
            return len(self._queues) - 1, 0.0
        return self._value(item, self._tier)

    def _place(self, item: Item) -> Value:
        queue, used = self._rank(item)
        if 0 < queue < len(self._queues) - 1 and item.what == "image" and self._spares(item):
            return len(self._queues) - 2, 0.0
        return queue, used

    def _push(self, item: Item, queue: int, used: float) -> None:
        last = self._last.get(item)
        if last is not None and last[0] == used and last[3] == queue:
            return
        if used > self._latest.use:
            self._latest.use = used
        self._count += 1
        self._entries += 1
        entry = self._last[item] = used, self._count, item, queue
        heapq.heappush(self._queues[queue], entry)

    def _before(self, one: Value, other: Value) -> bool:
        """True if an item at `one` is dropped before an item at `other`."""
        ages = self._age(*one), self._age(*other)
        return ages[0] > ages[1] or (ages[0] == ages[1] and one[0] < other[0])

    def _age(self, queue: int, used: float) -> float:
        return (self._latest.use - used) * self._weights[queue] if queue else math.inf

    def _oldest(self) -> int | None:
        """Number of the queue whose head has the greatest weighed age; of equal ones the first. None if all are empty."""
        if self._queues[0]:
            return 0
        best, greatest, now = None, -math.inf, self._latest.use
        for queue, heap, weight in self._ageing:
            if heap and (age := (now - heap[0][0]) * weight) > greatest:
                best, greatest = queue, age
        return best

    def __len__(self) -> int:
        return self._entries

    def _rebuild(self) -> None:
        """Drop stale entries, which dominate, so that memory follows what is cached."""
        known = list(self._last)
        self.clear()
        for item in known:
            self.consider(item)

    def forget(self, item: Item) -> None:
        """Take `item` out, if it is there. O(1): its entry in the queue is passed over later."""
        self._last.pop(item, None)

    def clear(self) -> None:
        """Forget every candidate."""
        self._entries = 0
        self._last.clear()
        for heap in self._queues:
            heap.clear()

    @property
    def empty(self) -> bool:
        """True if there is no candidate. O(1)."""
        return not self._last

    def items(self) -> set[int]:
        """Ids of all candidates: for checks."""
        self._settle()
        return set(map(id, self._last))


MakeRanking: TypeAlias = Callable[
    [Tier, Callable[[Item], bool], Policy, Latest, Callable[[Item], bool], Callable[[], None]], Ranking
]


class Candidates:
    """The rankings of one directory. A caller that changes an item adds it again; `pop` checks whether it is a candidate.

    Added items are ranked when a candidate is next asked for, because a request changes the same few items many times.
    """

    def __init__(
        self,
        tiers: tuple[Tier, ...],
        policy: Policy,
        image_tokens: int,
        write_idle: bool = False,
        kind: MakeRanking = Ranking,
    ) -> None:
        """`write_idle`: keep a backlog of what is not on disk yet. `kind` makes each ranking."""

        def ranking(tier: Tier, live: Callable[[Item], bool], spares: Callable[[Item], bool]) -> Ranking:
            return kind(tier, live, policy, self.latest, spares, self.settle)

        self.latest = Latest()
        self.regret = Regret()
        self.lower: dict[Tier, Tier | None] = dict(zip(tiers, (*tiers[1:], None), strict=True))
        self.drops = {tier: ranking(tier, partial(self.droppable, tier), partial(self.spared, tier)) for tier in tiers}
        # nothing is spared here: what is copied down is not lost
        self.dirty = {tier: ranking(tier, partial(self.demotable, tier), lambda item: False) for tier in tiers[:-1]}
        self.twice = ranking(HOST, self.doubled, lambda item: False)
        self.backlog = Backlog(self.unsaved)
        self._writes = write_idle and DISK in tiers
        self._image_tokens = image_tokens
        self._tiers = tiers
        self._fresh: dict[Item, None] = {}
        self.items = 0  # nodes and rungs of the tree: bounds what is remembered of those that have gone

    @property
    def next_tier(self) -> Tier:
        """The tier that device copies are copied down to."""
        return self.lower[DEVICE] or HOST

    def safe(self, item: Item, tier: Tier) -> bool:
        """True if the copy in `tier` can be dropped: the next tier has a readable one, or will not get one."""
        lower = self.lower[tier]
        return lower is None or (life := item.life[lower]) >= HERE or life == REFUSED

    def overtaken(self) -> bool:
        """True if the least valuable dirty item of the device is less valuable than every clean one."""
        if self.lower[DEVICE] is None:
            return False
        dirty, drops = self.dirty[DEVICE], self.drops[DEVICE]
        first, other = dirty.head(), drops.head()
        return first is not None and other is not None and dirty.age(first) > drops.age(other)

    def missed(self, tokens: int, evicted: int) -> None:
        """Note a prompt of `tokens` tokens, of which `evicted` had lost their KV in every tier."""
        before = self.regret.thrashes
        self.regret.saw(tokens, evicted)
        if self.regret.thrashes and not before:
            for ranking in self.drops.values():
                ranking.respare()

    def add(self, item: Item) -> None:
        """Note that `item` may have become a candidate or lost value. Amortised O(log n)."""
        self._fresh[item] = None
        if len(self._fresh) > _FRESH:
            self.settle()

    def settle(self) -> None:
        """Rank what has been added."""
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, {}
        for item in fresh:
            if item.at[HOST] is not None and self.doubled(item):
                self.twice.add(item, self.items)
            if self._writes:
                self._note(item)
            for tier in self._tiers:
                if item.at[tier] is None or item.locks[tier]:
                    continue
                if self.droppable(tier, item):
                    self.drops[tier].add(item, self.items)
                elif self.demotable(tier, item):
                    self.dirty[tier].add(item, self.items)

    def _note(self, item: Item) -> None:
        """Add `item` to the backlog. If it is on disk already, add its parent instead, without which it cannot be resumed."""
        if item.life[DISK] >= HERE:
            above = item.node if item.what == "image" else item.node.parent
            item = item if above is None else above.kv
        if self.unsaved(item):
            self.backlog.add(item, self.items)

    def unsaved(self, item: Item) -> bool:
        """True if `item` is not on disk but needed there: an image, or KV that an item on disk depends on."""
        if item.life[DISK] != ABSENT or item.best() is None or not attached(item):
            return False
        rung = item.node.rung
        return item.what == "image" or item.below[DISK] > 0 or (rung is not None and rung.image.has(DISK))

    def droppable(self, tier: Tier, item: Item) -> bool:
        """True if the copy of `item` in `tier` can be dropped now."""
        if item.at[tier] is None or item.locks[tier] or item.below[tier]:
            return False
        if self.lower[tier] is not None and not self.safe(item, tier):
            return False
        # a host copy of what the device also holds stays: without it the device copy would become dirty
        return (tier != HOST or item.at[DEVICE] is None) and attached(item)

    def demotable(self, tier: Tier, item: Item) -> bool:
        """True if the copy of `item` in `tier` must be copied down before it is dropped."""
        if item.at[tier] is None or item.locks[tier] or self.safe(item, tier):
            return False
        if tier == DEVICE:  # no copy under way reads this one, or it would be locked
            return item.soiled == 0 and attached(item)
        return item.pending is None and item.at[DEVICE] is None and not item.below[tier] and attached(item)

    def doubled(self, item: Item) -> bool:
        """True if host holds a copy of KV that a running request also holds on the device."""
        held = item.what == "kv" and item.at[DEVICE] is not None and item.locks[DEVICE] > 0
        free = item.at[HOST] is not None and not item.locks[HOST] and not item.below[HOST]
        return held and free and item.has(DEVICE) and item.pending is None and attached(item)

    def spared(self, tier: Tier, item: Item) -> bool:
        """True if the copy of `item` in `tier` is dropped after all others: no other copy will be made, and see `leaves_gap`."""
        lower = self.lower[tier]
        return (lower is None or item.life[lower] == REFUSED) and self.leaves_gap(item)

    def leaves_gap(self, item: Item) -> bool:
        """True if `item` is an image with a single copy whose loss would leave a wide gap. False while KV is missed often."""
        rung = item.node.rung
        if rung is None or rung.image is not item or item.copies != 1 or self.regret.thrashes:
            return False
        return needed(rung, self._image_tokens)


_FRESH = 512
"""Added items that are ranked at once without being asked for: they stay bounded where nothing ever has to go, and no request pays for
many others."""


def exposed(item: Item, tier: Tier) -> bool:
    """True if no child of `item` has a copy in `tier`."""
    return item.below[tier] == 0


def attached(item: Item) -> bool:
    """True if `item` is part of the tree."""
    node = item.node
    if item.what == "image":
        return node.rung is not None and node.rung.image is item
    return node.parent is not None
