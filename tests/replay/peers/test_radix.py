"""The tree's accounts, and the order in which it lets go."""

from __future__ import annotations

import random

from stepwell.replay.peers.job import Keys
from stepwell.replay.peers.nodes import Node
from stepwell.replay.peers.radix import Radix
from tests.replay.peers.play import text

PAGES = 40
SIZES = (PAGES, 6, 60, 5)


def keys(seed: int, pages: int) -> list[int]:
    return Keys(4).of(text(seed, 4 * pages))


def put(tree: Radix, names: list[int], state: bool = True) -> Node | None:
    """Cache all of `names`, as if computed; None without room."""
    path = tree.match(names, len(names))
    last = path[-1] if path else tree.root
    if not tree.take(len(names), int(state)):
        return None
    node, taken = tree.insert(names, len(names))
    tree.free += len(names) - taken
    assert last.end <= node.end
    if state and not node.state:
        tree.set_state(node)
    elif state:
        tree.free_states += 1
    return node


def test_a_prompt_that_leaves_a_run_half_way_splits_it() -> None:
    tree, names = Radix(*SIZES), keys(1, 10)
    put(tree, names)
    other = names[:4] + keys(2, 10)[4:]
    path = tree.match(other, 10)
    assert [(node.end, node.kv, node.state) for node in path] == [(4, True, False)]
    assert [node.end for node in tree.match(names, 10)] == [4, 10]
    tree.check(0, 0, SIZES)


def test_a_leaf_takes_its_state_along_and_parents_of_no_use_follow() -> None:
    tree, names = Radix(*SIZES), keys(1, 10)
    put(tree, names)
    tree.match(names[:4], 4)  # splits: the upper half has no state
    assert tree.take(PAGES, 0)
    assert not tree.root.children
    tree.check(PAGES, 0, SIZES)


def test_a_state_inside_the_tree_goes_by_itself() -> None:
    tree, names = Radix(*SIZES), keys(1, 10)
    inner = put(tree, names[:5])
    outer = put(tree, names)
    assert tree.take(0, 5)
    assert inner is not None
    assert outer is not None
    assert (inner.kv, inner.state, outer.state) == (True, False, True)
    tree.check(0, 5, SIZES)


def test_what_was_copied_down_outlives_the_device_and_leaves_leaf_by_leaf() -> None:
    tree, names = Radix(*SIZES), keys(1, 10)
    put(tree, names[:5])
    node = put(tree, names)
    assert node is not None
    assert tree.copy_down(node) == (10, True)
    assert tree.take(PAGES, 0)
    path = tree.match(names, 10)
    assert [(n.kv, n.kv_low, n.state_low) for n in path] == [(False, True, False), (False, True, True)]
    tree.check(PAGES, 0, SIZES)


def test_all_room_is_accounted_for_whatever_happens() -> None:
    dice, tree = random.Random(5), Radix(*SIZES)
    trunk, locked = keys(0, 12), []
    for step in range(1500):
        names = (
            trunk[: dice.randrange(1, 12)]
            if dice.random() < 0.4
            else trunk[: dice.randrange(1, 6)] + keys(step % 40, 12)[6:]
        )
        match dice.randrange(3):
            case 0:
                node = put(tree, names)
                if node is not None:
                    tree.copy_down(node)
            case 1:
                path = [n for n in tree.match(names, len(names)) if n.kv]
                if path and len(locked) < 3:
                    tree.lock(path[-1])
                    locked.append(path[-1])
            case 2 if locked:
                tree.unlock(locked.pop(0))
        tree.check(0, 0, SIZES)
