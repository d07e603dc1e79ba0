"""The directory's side of the disk: what records are called, what an earlier process left, and what the store is to note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.budget import Budget
from stepwell.cache.catalogue import Catalogue, Dormant
from stepwell.cache.moves import DISK, Divide, Forget, Name, Task, Touch
from stepwell.cache.names import Names, Trail
from stepwell.cache.tree import Item, Node, Root


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

    def trim(self, pages: int) -> int:
        return 0


@dataclass(slots=True)
class Lookups:
    """Look-ups that come before writes: what an earlier process left is not to be written again.

    left      records that may still be looked up this turn
    put_off   whether a write waits for the next turn: nothing more may be looked up in this one, or a compaction commits
    held      whether a compaction has kept anybody from looking up this turn
    """

    left: int = 1 << 62
    put_off: bool = False
    held: bool = False
    _since: float = 0.0
    _patient: bool = True

    def turn(self, most: int, now: float, patience: float) -> None:
        """A turn begins at `now`, in which `most` records may be looked up. After `patience` seconds of turns in each of which a write
        was put off there is one in which none is; 0: never."""
        if not (self.put_off and self._patient):
            self._since = now
        self._patient = not 0 < patience <= now - self._since
        self.left, self.put_off, self.held = most, False, False

    def put_off_write(self) -> None:
        """A write has to wait for the next turn."""
        self.put_off = self._patient

    def rest(self) -> None:
        """No turn follows until something happens: what has been put off does not wait meanwhile."""
        self.put_off = False


@dataclass(slots=True)
class Archive:
    """`names` None: records need no names, because nothing outlives the process (a simulation).

    budget   of what may be written
    lookups  of what is about to be written
    outbox   moves to the disk and orders, in the order in which the store must carry them out
    """

    names: Names | None = None
    catalogue: Catalogue = field(default_factory=NoCatalogue)
    budget: Budget = field(default_factory=Budget)
    lookups: Lookups = field(default_factory=Lookups)
    outbox: list[Task] = field(default_factory=list)

    def hold(self) -> bool:
        """Keep the index as it is for a few look-ups and adoptions, until `catalogue.let_go`; False while a compaction commits."""
        if self.catalogue.hold():
            return True
        self.lookups.held = True
        return False

    def wait(self, seconds: float) -> None:
        """Wait until no compaction commits, at most so long."""
        if self.catalogue.hold(seconds):
            self.catalogue.let_go()

    def send(self) -> list[Task]:
        """Everything in the outbox, which is empty afterwards."""
        tasks, self.outbox = self.outbox, []
        return tasks

    def expel(self, salt: str) -> int:
        """Have nothing found any more of what an earlier process left under `salt`; pages that it took."""
        return self.catalogue.expel(self.names.root(salt)) if self.names is not None and self.catalogue.pages else 0

    def forget(self, slots: Ints) -> None:
        self.outbox.append(Forget(slots))

    def touch(self, slots: Ints) -> None:
        self.outbox.append(Touch(slots))

    def divide(self, last: int, first: int, node: Node, at: int) -> None:
        """The record that holds `last` and `first`, if it is one, is to end at token `at` of the path to `node`."""
        trail = self.trail(node)
        if trail is not None:
            self.outbox.append(Divide(last, first, at, trail.at(at)))

    def split(self, upper: Item, lower: Item) -> None:
        """A node was cut, into KV `upper` and `lower`: so is the record that has the cut within it, or will have."""
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
    """What the records of `item` are to be called; `trail` goes along its path, as far as its end at least."""
    if item.what == "image":
        return (trail.image(item.node.end),)
    return tuple(trail.records(item.node.start, item.node.end))


def path_tokens(node: Node) -> tuple[Root, Ints]:
    """The root of the path to `node`, and all its tokens from there."""
    path = list(node.up())
    root = path.pop()
    assert isinstance(root, Root), f"{node!r} is not part of the tree"
    return root, np.concatenate([root.tokens, *(n.tokens for n in reversed(path))])
