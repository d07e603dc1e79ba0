"""Slots and pages by number: the free slots of one tier, and the pages of one request in token order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepwell.base.geometry import Ints


class Pool:
    """The free slots of one tier, as a stack. Taking and giving n slots costs O(n); runs that are given back together are taken together.

    free   slots that can be taken
    total  slots that there are now; `widen` adds more, up to `most`, until `settle`
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
        """Number of slots that the pool can grow to."""
        return len(self._stack)

    def widen(self, count: int) -> None:
        """Add `count` free slots, numbered on from the last."""
        assert 0 <= count <= self.most - self.total, f"{count} slots more than {self.total}, of {self.most} at most"
        self.total += count
        self.give(np.arange(self.total - count, self.total, dtype=np.int32))

    def settle(self) -> None:
        """Declare that the pool will not grow any more."""
        self._stack = self._stack[: self.total]

    def take(self, count: int) -> Ints:
        """Take `count` slots, ascending if they were given back so. The caller has made sure that so many are free."""
        assert 0 <= count <= self.free, f"{count} slots wanted, {self.free} of {self.total} free"
        self.free -= count
        return self._stack[self.free : self.free + count][::-1].copy()

    def give(self, slots: Ints) -> None:
        """Give back slots that are no longer used."""
        assert self.free + len(slots) <= self.total, f"{len(slots)} slots too many given back"
        self._stack[self.free : self.free + len(slots)] = slots[::-1]
        self.free += len(slots)

    def check(self, used: Ints) -> None:
        """Assert that every slot is once either free or in `used`. O(total)."""
        seen = np.concatenate([self._stack[: self.free], used])
        counts = np.bincount(seen, minlength=self.total)
        wrong = np.flatnonzero(counts != 1)
        assert len(counts) == self.total and not len(wrong), (
            f"slots neither free nor used exactly once: {wrong[:8].tolist()} (counts {counts[wrong[:8]].tolist()})"
        )


@dataclass(frozen=True, slots=True)
class TierUse:
    """Slots of one tier by state. `pinned` ones are cached, and evicted last."""

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


_NONE: Ints = np.empty(0, np.int32)


class BlockTable:
    """Page i holds the KV of tokens [i·block, (i+1)·block).

    Private pages are this request's alone; the others belong to the tree, are held by the request's lease, and are never written.
    `promised` counts pages of the prompt that were reserved at admission and not yet taken. A page that the tree's own has replaced
    is retired: it stays private until no launched step reads it any more.
    """

    __slots__ = ("_count", "_named", "_pages", "_private", "_retired", "promised")

    def __init__(self, shared: Ints) -> None:
        self._pages: Ints = np.empty(max(16, 2 * len(shared)), np.int32)
        self._private = np.zeros(len(self._pages), np.bool_)
        self._count = len(shared)
        self._pages[: self._count] = shared
        self._retired: Ints = _NONE
        self._named = 0
        self.promised = 0

    def __len__(self) -> int:
        return self._count

    @property
    def pages(self) -> Ints:
        """All pages as they are now. A view whose entries never change, whatever happens to the table."""
        return self._pages[: self._count]

    def name(self) -> tuple[Ints, int]:
        """All pages, for the next step, and how many of the first ones are unchanged since the last step."""
        named, self._named = self._named, self._count
        return self._pages[: self._count], named

    @property
    def is_named(self) -> bool:
        """True if the pages are unchanged since the last step."""
        return self._named == self._count

    @property
    def private(self) -> Ints:
        """Pages to free when the request ends, retired ones included."""
        private = self._pages[: self._count][self._private[: self._count]]
        return np.concatenate([private, self._retired]) if len(self._retired) else private

    def is_private(self, start: int, end: int) -> bool:
        """Whether pages [start, end) are all private."""
        some = self._private[start:end]
        return int(np.count_nonzero(some)) == len(some)

    def append(self, pages: Ints) -> None:
        """Add private pages at the end."""
        end = self._count + len(pages)
        if end > len(self._pages):
            room = max(end, 2 * len(self._pages))
            self._pages = np.concatenate([self.pages, np.empty(room - self._count, np.int32)])
            self._private = np.concatenate([self._private[: self._count], np.zeros(room - self._count, np.bool_)])
        self._pages[self._count : end] = pages
        self._private[self._count : end] = True
        self._count = end

    def detach(self, start: int, end: int) -> tuple[Ints, Ints]:
        """Remove the pages from block `start` on, all private. Returns those before block `end`, and the rest."""
        assert self.is_private(start, self._count), "shared pages are not this table's to give away"
        pages, rest = self._pages[start : min(end, self._count)].copy(), self._pages[end : self._count].copy()
        self._count = start
        self._named = min(self._named, start)
        return pages, rest

    def hand_over(self, start: int, end: int) -> Ints:
        """Give pages [start, end), all private, to the tree. They stay in the table as shared pages, and are never written again."""
        assert self.is_private(start, end), f"pages [{start},{end}) are not this request's to publish"
        self._private[start:end] = False
        return self._pages[start:end].copy()

    def share(self, start: int, pages: Ints) -> Ints:
        """From block `start` on, use `pages`, which the tree owns. Returns the private pages that they replace."""
        end = start + len(pages)
        assert end <= self._count
        differs = self._pages[start:end] != pages
        replaced = self._pages[start:end][self._private[start:end] & differs]
        if differs.any():
            self._pages = self._pages.copy()  # launched steps keep the array that they were given
            self._pages[start:end] = pages
            self._named = min(self._named, start + int(differs.argmax()))
        self._private[start:end] = False
        return np.asarray(replaced, np.int32)

    def retire(self, pages: Ints) -> None:
        """Keep `pages`, which the table no longer names, for a launched step that may still read them."""
        if len(pages):
            self._retired = np.concatenate([self._retired, pages])

    @property
    def has_retired(self) -> bool:
        return len(self._retired) > 0

    def take_retired(self) -> Ints:
        """Remove the retired pages, for the caller to free once no launched step names them."""
        retired, self._retired = self._retired, _NONE
        return retired
