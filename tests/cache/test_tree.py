"""The shape of the tree: runs, splits, joins, roots."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.cache.disk.names import root_number
from stepwell.cache.life import ABSENT, CONDEMNED, HERE, REFUSED, Life, Pending
from stepwell.cache.moves import Tier
from stepwell.cache.tree import Item, Rung, RungKind, Tree
from tests.cache.builders import join, numbers


def pages(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int32)


def put(item: Item, tier: Tier, slots: np.ndarray | None, life: Life = HERE) -> None:
    item.life[tier], item.at[tier] = ABSENT if slots is None else life, slots


def tree_of(count: int = 16) -> tuple[Tree, np.ndarray]:
    tree = Tree(4)
    tokens = numbers(count)
    node = tree.attach(tree.root("", 0.0), tokens, 1.0)
    put(node.kv, Tier.DEVICE, np.arange(count // 4, dtype=np.int32))
    return tree, tokens


class TestSplit:
    def test_both_halves_hold_their_share_of_every_extent(self) -> None:
        tree, tokens = tree_of()
        (node,) = tree.nodes()
        put(node.kv, Tier.HOST, pages(10, 11, 12, 13))
        upper = tree.split(node, 12)
        assert (upper.start, upper.end, node.start, node.end) == (0, 12, 12, 16)
        assert upper.kv.at[Tier.DEVICE].tolist() == [0, 1, 2] and node.kv.at[Tier.DEVICE].tolist() == [3]  # type: ignore[union-attr]
        assert upper.kv.at[Tier.HOST].tolist() == [10, 11, 12] and node.kv.at[Tier.HOST].tolist() == [13]  # type: ignore[union-attr]
        assert join(upper.tokens, node.tokens).tolist() == tokens.tolist()
        assert node.parent is upper and list(upper.children.values()) == [node]

    def test_leases_rung_children_and_identity_stay_with_the_lower_half(self) -> None:
        tree, _ = tree_of()
        (node,) = tree.nodes()
        node.rung = Rung(node, RungKind.INTERVAL, 1.0)
        node.kv.locks[Tier.DEVICE] = 2
        child = tree.attach(node, numbers(4, 5), 1.0)
        upper = tree.split(node, 8)
        assert node.rung is not None and upper.rung is None and child.parent is node
        assert upper.kv.locks == node.kv.locks, "a lease down to the end holds all above it"

    def test_a_copy_in_flight_belongs_to_both_halves(self) -> None:
        tree, _ = tree_of()
        (node,) = tree.nodes()
        node.kv.pending = Pending(7, Tier.DEVICE, Tier.HOST, pages(20, 21, 22, 23))
        upper = tree.split(node, 4)
        assert upper.kv.pending is not None and node.kv.pending is not None
        assert (upper.kv.pending.ticket, upper.kv.pending.slots.tolist()) == (7, [20])
        assert (node.kv.pending.ticket, node.kv.pending.slots.tolist()) == (7, [21, 22, 23])

    def test_what_was_lost_stays_where_it_stood(self) -> None:
        tree, _ = tree_of()
        (node,) = tree.nodes()
        node.lost = (4, 8, 12)
        upper = tree.split(node, 8)
        assert upper.lost == (4, 8) and node.lost == (12,)

    @pytest.mark.parametrize("at", [0, 16, 6, -4])
    def test_only_inside_and_on_the_block_grid(self, at: int) -> None:
        tree, _ = tree_of()
        (node,) = tree.nodes()
        with pytest.raises(AssertionError):
            tree.split(node, at)


class TestJoin:
    def test_joining_undoes_a_split(self) -> None:
        tree, tokens = tree_of()
        (node,) = tree.nodes()
        node.lost = (4, 12)
        assert tree.split(node, 8).lost == (4,)
        assert tree.joinable(node)
        tree.join(node)
        assert list(tree.nodes()) == [node]
        assert (node.start, node.end, node.lost) == (0, 16, (4, 12))
        assert node.tokens.tolist() == tokens.tolist() and node.kv.at[Tier.DEVICE].tolist() == [0, 1, 2, 3]  # type: ignore[union-attr]

    @pytest.mark.parametrize("difference", ["rung", "lock", "tier", "pending", "condemned", "refused", "sibling"])
    def test_never_over_a_difference(self, difference: str) -> None:
        tree, _ = tree_of()
        (node,) = tree.nodes()
        upper = tree.split(node, 8)
        match difference:
            case "rung":
                upper.rung = Rung(upper, RungKind.BRANCH, 0.0)
            case "lock":
                upper.kv.locks[Tier.DEVICE] += 1
            case "tier":
                put(upper.kv, Tier.HOST, pages(1, 2))
            case "pending":
                node.kv.pending = Pending(1, Tier.DEVICE, Tier.HOST, pages(1, 2))
            case "condemned":
                upper.kv.life[Tier.DEVICE] = CONDEMNED
            case "refused":
                node.kv.life[Tier.HOST] = REFUSED
            case "sibling":
                tree.attach(upper, numbers(4, 9), 0.0)
        assert not tree.joinable(node)

    def test_a_first_run_is_never_joined_to_the_root(self) -> None:
        tree, _ = tree_of()
        (node,) = tree.nodes()
        assert not tree.joinable(node)

    def test_the_later_use_counts(self) -> None:
        tree, _ = tree_of()
        (node,) = tree.nodes()
        upper = tree.split(node, 8)
        upper.used = 9.0
        tree.join(node)
        assert node.used == 9.0


class TestShape:
    def test_each_salt_has_a_root_of_its_own(self) -> None:
        tree = Tree(4)
        assert tree.root("a", 0.0) is tree.root("a", 5.0)
        assert tree.root("a", 0.0) is not tree.root("b", 0.0)
        assert root_number("a") != root_number("b") == root_number("b")

    def test_runs_hold_copies_of_their_tokens(self) -> None:
        tree = Tree(4)
        tokens = numbers(8)
        node = tree.attach(tree.root("", 0.0), tokens, 0.0)
        before = node.tokens.tolist()
        tokens[:] = 0
        assert node.tokens.tolist() == before

    def test_nodes_come_parents_first(self) -> None:
        tree, _ = tree_of()
        (node,) = tree.nodes()
        tree.split(node, 8)
        tree.split(node, 12)
        tree.attach(node, numbers(4, 3), 0.0)
        seen = list(tree.nodes())
        assert all(n.parent in seen[:i] or n.parent in tree.roots.values() for i, n in enumerate(seen))
        assert [n.end for n in node.up()] == [16, 12, 8, 0]

    def test_only_leaves_are_taken_out(self) -> None:
        tree, _ = tree_of()
        (node,) = tree.nodes()
        upper = tree.split(node, 8)
        with pytest.raises(AssertionError):
            tree.detach(upper)
        tree.detach(node)
        assert list(tree.nodes()) == [upper] and node.parent is None

    def test_what_is_taken_out_keeps_no_tokens(self) -> None:
        """Sessions, trails and stale offers remember nodes that have gone: not the prompts of them."""
        tree, _ = tree_of()
        (node,) = tree.nodes()
        upper = tree.split(node, 8)
        tree.join(node)
        tree.detach(node)
        assert len(upper.tokens) == len(node.tokens) == 0

    def test_the_fastest_readable_copy_is_the_best(self) -> None:
        tree, _ = tree_of()
        (node,) = tree.nodes()
        item = node.kv
        put(item, Tier.HOST, pages(1, 2, 3, 4))
        assert item.best() is Tier.DEVICE and item.best(below=Tier.DEVICE) is Tier.HOST
        put(item, Tier.DEVICE, None)
        assert item.best() is Tier.HOST
        item.life[Tier.HOST] = CONDEMNED
        assert item.best() is None and not item.has(Tier.HOST) and item.size(Tier.HOST) == 4
