"""Nodes of a radix tree, and the order in which they are asked to go."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import heappop, heappush


class Node:
    """A run of pages below its parent's. `kv` and `state`: copies on the device, `kv_low` and `state_low`: in host.

    kids  children whose KV is on the device     locks, state_locks  requests that need the KV; the state
    """

    __slots__ = (
        "children",
        "end",
        "keys",
        "kids",
        "kv",
        "kv_low",
        "locks",
        "parent",
        "state",
        "state_locks",
        "state_low",
        "state_used",
        "used",
    )

    def __init__(self, parent: Node | None, keys: list[int], used: int) -> None:
        self.parent = parent
        self.keys = keys
        self.end: int = (parent.end if parent else 0) + len(keys)
        self.children: dict[int, Node] = {}
        self.kv = self.kv_low = self.state = self.state_low = False
        self.kids = self.locks = self.state_locks = 0
        self.used = self.state_used = used

    def up(self) -> Iterator[Node]:
        """From here to just below the root."""
        node = self
        while node.parent is not None:
            yield node
            node = node.parent


class Oldest:
    """Candidates by last use. Who was offered stays until found to be none (`ready` answers None) and must then be offered again."""

    __slots__ = ("_heap", "_inside", "_ready", "_serial", "_used")

    def __init__(self, ready: Callable[[Node], bool], used: Callable[[Node], int]) -> None:
        self._ready = ready
        self._used = used
        self._heap: list[tuple[int, int, Node]] = []
        self._inside: set[Node] = set()
        self._serial = 0

    def offer(self, node: Node) -> None:
        if node not in self._inside and self._ready(node):
            self._inside.add(node)
            self._push(node)

    def pop(self) -> Node | None:
        """The least recently used candidate, taken out."""
        while self._heap:
            used, _, node = heappop(self._heap)
            if not self._ready(node):
                self._inside.discard(node)
            elif self._used(node) > used:
                self._push(node)
            else:
                self._inside.discard(node)
                return node
        return None

    def _push(self, node: Node) -> None:
        heappush(self._heap, (self._used(node), self._serial, node))
        self._serial += 1


def by_kv(node: Node) -> int:
    """When its KV was used last."""
    return node.used


def by_state(node: Node) -> int:
    """When its state was."""
    return node.state_used
