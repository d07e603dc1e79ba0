"""The directory's side of the disk store: names of records, what an earlier process left, and what the store must note.

`Catalogue` answers for what an earlier process left. `WriteBudget` bounds what is written in a while. `Backlog` holds what may be
worth a write while nothing else is to be done.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.disk.names import Names, Trail
from stepwell.cache.moves import DISK, Divide, Forget, Name, Task, Touch
from stepwell.cache.tree import Item, Node, Root


@dataclass(slots=True)
class WriteBudget:
    """A token bucket: `rate` pages a second, up to `burst`. One batch may overdraw it; the next then waits."""

    rate: float = float("inf")
    burst: float = float("inf")
    level: float = 0.0
    at: float = 0.0

    def allows(self, now: float) -> bool:
        """True if a write may begin now."""
        return self.rate == float("inf") or self._level(now) > 0

    def spend(self, pages: int, now: float) -> None:
        """`pages` are being written."""
        if self.rate != float("inf"):
            self.level, self.at = self._level(now) - pages, now

    def _level(self, now: float) -> float:
        return min(self.burst, self.level + self.rate * max(0.0, now - self.at))


@dataclass(frozen=True, slots=True)
class Dormant:
    """A record on disk that has no node in the tree. `record` is its number in the store."""

    record: int
    what: Literal["kv", "image"]
    name: Name
    pages: int


class Catalogue(Protocol):
    """The dormant records of one namespace.

    It answers from the index of the store, so that a million records cost nothing until they are looked up. A broken index answers that
    there is nothing. A store never merges two records of one name, so the directory looks here before it writes.
    """

    @property
    def pages(self) -> int:
        """Pages held by dormant records; subtract from free."""

    def hold(self, seconds: float = 0.0) -> bool:
        """Lock the index until `let_go`, for a few lookups, waiting at most `seconds`. False if it is not locked: try again later."""

    def let_go(self) -> None:
        """Unlock the index."""

    def under(self, parent: bytes, digests: Sequence[bytes]) -> Sequence[Dormant]:
        """The dormant records whose name has this parent and one of these digests, intact ones only: KV that continues from there, or an
        image there."""

    def adopt(self, dormant: Dormant, slots: Ints) -> None:
        """Turn a dormant record into a cached one: its pages, in order, are `slots` from now on."""

    def discard(self, dormant: Dormant) -> None:
        """Discard the record."""

    def expel(self, root: bytes) -> int:
        """Discard every record of this root (see `Name.root`). Returns the number of pages. O(records)."""

    def trim_dormant(self, pages: int) -> int:
        """Discard the least recently used records until `pages` pages are discarded or none is left. Returns the number of pages."""


class NoCatalogue:
    """The catalogue of a disk that was empty when the process began."""

    __slots__ = ()

    @property
    def pages(self) -> int:
        return 0

    def hold(self, seconds: float = 0.0) -> bool:
        return True

    def let_go(self) -> None:
        return

    def under(self, parent: bytes, digests: Sequence[bytes]) -> Sequence[Dormant]:
        return ()

    def adopt(self, dormant: Dormant, slots: Ints) -> None:
        raise AssertionError(f"{dormant} cannot come from an empty catalogue")

    def discard(self, dormant: Dormant) -> None:
        raise AssertionError(f"{dormant} cannot come from an empty catalogue")

    def expel(self, root: bytes) -> int:
        return 0

    def trim_dormant(self, pages: int) -> int:
        return 0


@dataclass(slots=True)
class Lookups:
    """Lookups before writes, which find out what an earlier process has written already.

    left      number of records that may still be looked up in this turn
    put_off   True if a write waits for the next turn: `left` is used up, or a compaction holds the index
    held      True if a compaction has prevented a lookup in this turn
    """

    left: int = 1 << 62
    put_off: bool = False
    held: bool = False
    _since: float = 0.0
    _patient: bool = True

    def turn(self, most: int, now: float, patience: float) -> None:
        """Begin a turn at `now`, in which `most` records may be looked up. If a write was put off in every turn for `patience` seconds
        (0: for ever), none is put off in this one."""
        if not (self.put_off and self._patient):
            self._since = now
        self._patient = not 0 < patience <= now - self._since
        self.left, self.put_off, self.held = most, False, False

    def put_off_write(self) -> None:
        """Put off a write to the next turn."""
        self.put_off = self._patient

    def rest(self) -> None:
        """Forget that a write was put off, since no turn follows until something happens."""
        self.put_off = False


@dataclass(slots=True)
class Archive:
    """Everything that the directory holds for the disk.

    names    rule for the names of records; None: nothing outlives the process (a simulation)
    budget   limits writes
    lookups  lookups before writes
    outbox   moves to the disk and its bookkeeping, in the order in which the store must carry them out
    """

    names: Names | None = None
    catalogue: Catalogue = field(default_factory=NoCatalogue)
    budget: WriteBudget = field(default_factory=WriteBudget)
    lookups: Lookups = field(default_factory=Lookups)
    outbox: list[Task] = field(default_factory=list)

    def hold(self) -> bool:
        """Lock the index for a few lookups and adoptions, until `catalogue.let_go`. False while a compaction commits."""
        if self.catalogue.hold():
            return True
        self.lookups.held = True
        return False

    def wait(self, seconds: float) -> None:
        """Wait until no compaction commits, at most `seconds`."""
        if self.catalogue.hold(seconds):
            self.catalogue.let_go()

    def send(self) -> list[Task]:
        """Take everything out of the outbox."""
        tasks, self.outbox = self.outbox, []
        return tasks

    def expel(self, salt: str) -> int:
        """Discard all that an earlier process left under `salt`. Returns the number of pages."""
        return self.catalogue.expel(self.names.root(salt)) if self.names is not None and self.catalogue.pages else 0

    def forget(self, slots: Ints) -> None:
        self.outbox.append(Forget(slots))

    def touch(self, slots: Ints) -> None:
        self.outbox.append(Touch(slots))

    def divide(self, last: int, first: int, node: Node, at: int) -> None:
        """Have the record that holds `last` and `first` end at token `at` of the path to `node`, if one record holds both."""
        trail = self.trail(node)
        if trail is not None:
            self.outbox.append(Divide(last, first, at, trail.at(at)))

    def split(self, upper: Item, lower: Item) -> None:
        """Split the record on disk, or on its way there, of a node that was cut into `upper` and `lower`."""
        first, second = (
            kv.pending.slots if kv.pending and kv.pending.tier == DISK else kv.at[DISK] for kv in (upper, lower)
        )
        if first is not None and second is not None:
            self.divide(int(first[-1]), int(second[0]), lower.node, lower.node.start)

    def trail(self, node: Node) -> Trail | None:
        """Digests along the path to `node`."""
        if self.names is None:
            return None
        root, tokens = path_tokens(node)
        return self.names.trail(root.salt, tokens)


def names_of(item: Item, trail: Trail) -> tuple[Name, ...]:
    """The names of the records of `item`. `trail` follows its path, at least to its end."""
    if item.what == "image":
        return (trail.image(item.node.end),)
    return tuple(trail.records(item.node.start, item.node.end))


def path_tokens(node: Node) -> tuple[Root, Ints]:
    """The root of the path to `node`, and all its tokens from there."""
    path = list(node.up())
    root = path.pop()
    assert isinstance(root, Root), f"{node!r} is not part of the tree"
    return root, np.concatenate([root.tokens, *(n.tokens for n in reversed(path))])


class Backlog:
    """Items in a lazy heap, each once, the most recently used first (by the use known when they were added).

    live   tells if an item still has to be written
    """

    __slots__ = ("_count", "_heap", "_live", "_waiting")

    def __init__(self, live: Callable[[Item], bool]) -> None:
        self._live = live
        self._heap: list[tuple[float, int, Item]] = []
        self._waiting: set[Item] = set()
        self._count = 0

    def add(self, item: Item, items: int) -> None:
        """Add `item`. `items` is the size of the tree, which bounds stale entries. O(log n) amortised."""
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
        """Take out the next item. None if there is none. O(log n) amortised."""
        if self.empty:
            return None
        _, _, item = heapq.heappop(self._heap)
        self._waiting.remove(item)
        return item

    @property
    def empty(self) -> bool:
        """True if no item has to be written. Drops stale entries from the top. O(log n) amortised."""
        while self._heap and not self._live(self._heap[0][2]):
            _, _, item = heapq.heappop(self._heap)
            self._waiting.remove(item)
        return not self._heap

    def __contains__(self, item: Item) -> bool:
        return item in self._waiting

    def __len__(self) -> int:
        """Number of entries, stale ones included."""
        return len(self._heap)


def last_use(item: Item) -> float:
    """When an image was last resumed from, or KV last used."""
    node = item.node
    return node.rung.used if item.what == "image" and node.rung is not None else node.used
