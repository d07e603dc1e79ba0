"""The directory's side of the disk: what records are called, what an earlier process left, and what the store is to note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.budget import Budget
from stepwell.cache.catalogue import Catalogue, Dormant
from stepwell.cache.moves import Divide, Forget, Name, Task, Tier, Touch
from stepwell.cache.names import Names, Trail
from stepwell.cache.tree import Item, Node, Root


class NoCatalogue:
    """The catalogue of a disk that was empty when the process began."""

    __slots__ = ()

    @property
    def pages(self) -> int:
        return 0

    def hold(self) -> bool:
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
class Archive:
    """`names` None: records need no names, because nothing outlives the process (a simulation).

    budget   of what may be written
    outbox   moves to the disk and orders, in the order in which the store must carry them out
    """

    names: Names | None = None
    catalogue: Catalogue = field(default_factory=NoCatalogue)
    budget: Budget = field(default_factory=Budget)
    outbox: list[Task] = field(default_factory=list)

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
            kv.pending.slots if kv.pending and kv.pending.tier == Tier.DISK else kv.at[Tier.DISK]
            for kv in (upper, lower)
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
