"""Memory of equal units in which whatever is unused goes in order of last use."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from stepwell.replay.peers.job import state_key


class Pool:
    """Entries by name, each of some units: pinned by those who use it, or idle and evicted least recently used first. The rest is
    free, or private to requests.

    _order  entries by last use. A pinned one may stand in it as well: it is passed over, and comes back when it is unpinned.
    """

    __slots__ = ("_idle", "_order", "_pins", "_sizes", "capacity", "free")

    def __init__(self, capacity: int) -> None:
        self.capacity = self.free = capacity
        self._idle = 0
        self._order: OrderedDict[int, None] = OrderedDict()
        self._pins: dict[int, int] = {}
        self._sizes: dict[int, int] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._sizes

    def leading(self, keys: Sequence[int], start: int, end: int) -> int:
        """Up to where `keys`, from index `start` on and below `end`, are all here."""
        while start < end and keys[start] in self._sizes:
            start += 1
        return start

    def deepest_state(self, keys: Sequence[int], low: int, high: int) -> int:
        """The longest prefix, of more than `low` and at most `high` keys, whose state is here; `low` if there is none."""
        return next((i for i in range(high, low, -1) if state_key(keys[i - 1]) in self._sizes), low)

    def pin(self, keys: Iterable[int]) -> None:
        """Keep entries from eviction until they are unpinned as often."""
        pins, sizes = self._pins, self._sizes
        for key in keys:
            count = pins.get(key)
            if count is None:
                pins[key] = 1
                self._idle -= sizes[key]
            else:
                pins[key] = count + 1

    def unpin(self, keys: Iterable[int], used: bool = True) -> None:
        """In this order they become the most recently used; where they were not `used`, they stay what they were."""
        pins, sizes, order = self._pins, self._sizes, self._order
        for key in keys:
            count = pins[key] - 1
            if count:
                pins[key] = count
                continue
            del pins[key]
            self._idle += sizes[key]
            if key not in order:
                order[key] = None
            elif used:
                order.move_to_end(key)

    def touch(self, keys: Iterable[int]) -> None:
        """As if used just now; names that are not here are passed over."""
        order = self._order
        for key in keys:
            if key in order:
                order.move_to_end(key)

    @property
    def room(self) -> int:
        """Units that could be taken."""
        return self.free + self._idle

    def take(self, units: int) -> bool:
        """Make `units` private, evicting as needed; False, and nothing done, where there are too few."""
        if self.room < units:
            return False
        while self.free < units:
            key, _ = self._order.popitem(last=False)
            if key not in self._pins:
                size = self._sizes.pop(key)
                self._idle -= size
                self.free += size
        self.free -= units
        return True

    def give(self, units: int) -> None:
        """Private units become free."""
        self.free += units

    def publish(self, key: int, units: int) -> bool:
        """Private units become a pinned entry; False, and they stay private, where the name is taken."""
        if key in self._sizes:
            return False
        self._sizes[key] = units
        self._pins[key] = 1
        return True

    def add(self, key: int, units: int) -> bool:
        """A new idle entry, the most recently used; False where there is no room for it. A name that is here is only touched."""
        if key in self._sizes:
            self.touch((key,))
            return True
        if not self.take(units):
            return False
        self._sizes[key] = units
        self._order[key] = None
        self._idle += units
        return True

    def check(self, private: int) -> None:
        """Raise AssertionError unless every unit is accounted for once; `private`: units that requests hold."""
        pinned = sum(self._sizes[key] for key in self._pins)
        assert self._idle == sum(size for key, size in self._sizes.items() if key not in self._pins)
        assert set(self._sizes) == set(self._pins) | set(self._order)
        assert self.free >= 0
        assert self.free + self._idle + pinned + private == self.capacity
