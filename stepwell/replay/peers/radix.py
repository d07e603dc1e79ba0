"""A radix tree of prompts whose KV and states are evicted apart, on the device and in host memory.

device   KV goes leaf by leaf, least recently used first, and takes its state along; a state within the tree goes by itself and
         leaves the KV. A leaf without a state is of no use and goes at once, and so on upwards.
host     what was copied outlives its device copy in the same tree; only leaves that are no longer on the device make room
"""

from __future__ import annotations

from stepwell.replay.peers.nodes import Node, Oldest, by_kv, by_state


class Radix:
    """The tree and the room of its pools: KV in pages, states in slots. `_low`: host."""

    def __init__(self, pages: int, states: int, pages_low: int, states_low: int) -> None:
        self.root = Node(None, [], 0)
        self.free, self.free_states = pages, states
        self.free_low, self.free_states_low = pages_low, states_low
        self.idle = self.idle_states = 0
        self._now = 0
        self._leaves = Oldest(lambda n: n.kv and not n.kids and not n.locks, by_kv)
        self._states = Oldest(lambda n: n.state and not n.state_locks, by_state)
        self._leaves_low = Oldest(lambda n: n.kv_low and not n.kv and not n.children and not n.locks, by_kv)
        self._states_low = Oldest(lambda n: n.state_low, by_state)

    def match(self, keys: list[int], most: int) -> list[Node]:
        """The nodes that `keys[:most]` pass through to their ends, from the top; one that they leave half-way is split."""
        node, path = self.root, []
        while node.end < most:
            child = node.children.get(keys[node.end])
            if child is None:
                break
            same = _same(child.keys, keys, node.end, min(len(child.keys), most - node.end))
            if same < len(child.keys):
                path.append(self._split(child, same))
                break
            path.append(child)
            node = child
        return path

    def touch(self, node: Node) -> None:
        """Used just now, down from the root: who is deeper counts as later."""
        path = list(node.up())
        for step in reversed(path):
            self._now += 1
            step.used = self._now
        node.state_used = self._now

    def lock(self, node: Node) -> None:
        for step in node.up():
            if not step.locks and step.kv:
                self.idle -= len(step.keys)
            step.locks += 1
        if not node.state_locks and node.state:
            self.idle_states -= 1
        node.state_locks += 1

    def unlock(self, node: Node) -> None:
        for step in node.up():
            step.locks -= 1
            if not step.locks and step.kv:
                self.idle += len(step.keys)
                self._leaves.offer(step)
            elif not step.locks:
                self._leaves_low.offer(step)
        node.state_locks -= 1
        if not node.state_locks and node.state:
            self.idle_states += 1
            self._states.offer(node)

    def take(self, pages: int, states: int) -> bool:
        """Make room and take it; False, and nothing done, where there is too little."""
        if self.free + self.idle < pages or self.free_states + self.idle_states < states:
            return False
        while self.free < pages:
            leaf = self._leaves.pop()
            assert leaf is not None, "idle pages are those of nodes without a lock, and some of them is a leaf"
            self._drop_leaf(leaf)
        while self.free_states < states:
            node = self._states.pop()
            assert node is not None, "idle states are those without a lock"
            if node.kids:
                self._drop_state(node)
            else:
                self._drop_leaf(node)
        self.free -= pages
        self.free_states -= states
        return True

    def insert(self, keys: list[int], end: int) -> tuple[Node, int]:
        """KV of `keys[:end]` is there; the node at its end, locked by nobody, and how many pages of it the tree takes over."""
        path = self.match(keys, end)
        node = path[-1] if path else self.root
        taken = 0
        for step in path:
            if not step.kv:
                self.revive(step)
                taken += len(step.keys)
        if node.end < end:
            child = Node(node, keys[node.end : end], self._now)
            node.children[child.keys[0]] = child
            self.revive(child)
            taken += len(child.keys)
            node = child
        self.touch(node)
        return node, taken

    def revive(self, node: Node) -> None:
        """The device has its KV (again): pages that the caller had taken."""
        node.kv = True
        assert node.parent is not None, "the root has no KV"
        node.parent.kids += 1
        if not node.locks:
            self.idle += len(node.keys)
            self._leaves.offer(node)

    def set_state(self, node: Node) -> None:
        """The device has its state: a slot that the caller had taken."""
        node.state = True
        if not node.state_locks:
            self.idle_states += 1
            self._states.offer(node)

    def copy_down(self, node: Node) -> tuple[int, bool]:
        """Copy to host what is not there yet, parents first: pages copied, and whether the state was."""
        pages = 0
        for step in reversed([step for step in node.up() if not step.kv_low]):
            if not self._room_low(len(step.keys)):
                return pages, False
            step.kv_low = True
            pages += len(step.keys)
        if node.state and not node.state_low and self._state_room_low():
            node.state_low = True
            self._states_low.offer(node)
            return pages, True
        return pages, False

    def _room_low(self, pages: int) -> bool:
        while self.free_low < pages:
            leaf = self._leaves_low.pop()
            if leaf is None:
                return False
            self._forget(leaf)
        self.free_low -= pages
        return True

    def _state_room_low(self) -> bool:
        if not self.free_states_low:
            node = self._states_low.pop()
            if node is None:
                return False
            node.state_low = False
            self.free_states_low += 1
        self.free_states_low -= 1
        return True

    def _drop_state(self, node: Node) -> None:
        node.state = False
        self.free_states += 1
        self.idle_states -= 1

    def _drop_leaf(self, node: Node) -> None:
        """Its KV and state leave the device, and so do leaves above it that have no state."""
        while True:
            if node.state:
                self._drop_state(node)
            node.kv = False
            self.free += len(node.keys)
            self.idle -= len(node.keys)
            parent = node.parent
            assert parent is not None, "the root is no leaf"
            parent.kids -= 1
            if node.kv_low:
                self._leaves_low.offer(node)
            else:
                self._forget(node)
            if parent is self.root or parent.kids or parent.locks or not parent.kv:
                return
            if parent.state:
                self._leaves.offer(parent)
                return
            node = parent

    def _forget(self, node: Node) -> None:
        """A node without children that is nowhere, or in host alone."""
        assert not node.children, "KV is copied down from the top, so nothing below it is in host alone"
        if node.state_low:
            self.free_states_low += 1
        if node.kv_low:
            self.free_low += len(node.keys)
        node.kv_low = node.state_low = False
        parent = node.parent
        assert parent is not None, "the root stays"
        del parent.children[node.keys[0]]
        if parent is not self.root:
            self._leaves_low.offer(parent)

    def _split(self, node: Node, at: int) -> Node:
        """Divide before its page `at`; the upper half, which has no state. Locks of requests below hold on both."""
        assert node.parent is not None, "the root is empty"
        upper = Node(node.parent, node.keys[:at], node.used)
        upper.kv, upper.kv_low, upper.locks = node.kv, node.kv_low, node.locks
        upper.kids = int(node.kv)
        node.parent.children[upper.keys[0]] = upper
        node.parent = upper
        node.keys = node.keys[at:]
        upper.children[node.keys[0]] = node
        return upper

    def check(self, private: int, private_states: int, sizes: tuple[int, int, int, int]) -> None:
        """Raise AssertionError unless all room is accounted for; `private`: what requests hold, `sizes`: as at the start."""
        nodes, stack = [], list(self.root.children.values())
        while stack:
            nodes.append(stack.pop())
            stack.extend(nodes[-1].children.values())
        assert self.idle == sum(len(n.keys) for n in nodes if n.kv and not n.locks)
        assert self.idle_states == sum(n.state and not n.state_locks for n in nodes)
        assert all(n.kids == sum(c.kv for c in n.children.values()) for n in nodes)
        used = (
            private + sum(len(n.keys) for n in nodes if n.kv),
            private_states + sum(n.state for n in nodes),
            sum(len(n.keys) for n in nodes if n.kv_low),
            sum(n.state_low for n in nodes),
        )
        free = (self.free, self.free_states, self.free_low, self.free_states_low)
        assert tuple(a + b for a, b in zip(used, free, strict=True)) == sizes


def _same(run: list[int], keys: list[int], start: int, most: int) -> int:
    """How many of `run` follow in `keys` from `start` on, at most `most`. Names of prefixes: once apart, apart for good."""
    if run[most - 1] == keys[start + most - 1]:
        return most
    low, high = 0, most - 1  # the first `low` are equal, that at `high` differs
    while low < high:
        middle = (low + high) // 2
        if run[middle] == keys[start + middle]:
            low = middle + 1
        else:
            high = middle
    return low
