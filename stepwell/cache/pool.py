"""Free slots of one tier, and how its others are used."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepwell.base.geometry import Ints


class Pool:
    """A stack of free slot numbers. Taking and giving n slots costs O(n); runs given back together come out together.

    free   slots that can be taken
    total  slots that there are by now; `widen` adds more, up to what the pool was made for, until `settle`
    """

    __slots__ = ("_stack", "free", "total")

    def __init__(self, most: int, total: int | None = None) -> None:
        self.total = 0
        self._stack: Ints = np.empty(most, dtype=np.int32)
        self.free = 0
        self.widen(most if total is None else total)

    @property
    def free_slots(self) -> Ints:
        """The free slots; a view."""
        return self._stack[: self.free]

    @property
    def most(self) -> int:
        """Slots that there may be at last."""
        return len(self._stack)

    def widen(self, count: int) -> None:
        """Add `count` free slots, numbered on from the last."""
        assert 0 <= count <= self.most - self.total, f"{count} slots more than {self.total}, of {self.most} at most"
        self.total += count
        self.give(np.arange(self.total - count, self.total, dtype=np.int32))

    def settle(self) -> None:
        """No more slots will come."""
        self._stack = self._stack[: self.total]

    def take(self, count: int) -> Ints:
        """`count` slots, ascending where they were given back so. The caller has made sure that they are there."""
        assert 0 <= count <= self.free, f"{count} slots wanted, {self.free} of {self.total} free"
        self.free -= count
        return self._stack[self.free : self.free + count][::-1].copy()

    def give(self, slots: Ints) -> None:
        """Return slots that nobody references any more."""
        assert self.free + len(slots) <= self.total, f"{len(slots)} slots too many given back"
        self._stack[self.free : self.free + len(slots)] = slots[::-1]
        self.free += len(slots)

    def check(self, used: Ints) -> None:
        """Every slot is either free or in `used`, once. O(total)."""
        seen = np.concatenate([self._stack[: self.free], used])
        counts = np.bincount(seen, minlength=self.total)
        wrong = np.flatnonzero(counts != 1)
        assert len(counts) == self.total and not len(wrong), (
            f"slots neither free nor used exactly once: {wrong[:8].tolist()} (counts {counts[wrong[:8]].tolist()})"
        )


@dataclass(frozen=True, slots=True)
class TierUse:
    """Slots of one tier by state; `pinned` ones are cached ones that go last for some pin."""

    total: int
    free: int
    cached: int
    leased: int
    clean: int
    pinned: int = 0

    @property
    def private(self) -> int:
        """Slots owned by a request or by a copy in flight."""
        return self.total - self.free - self.cached
