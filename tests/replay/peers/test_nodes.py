"""Candidates by last use."""

from __future__ import annotations

from stepwell.replay.peers.nodes import Node, Oldest, by_kv


def test_the_oldest_goes_first_by_its_last_use_and_only_while_it_may() -> None:
    root = Node(None, [], 0)
    nodes = [Node(root, [i], used=i) for i in range(4)]
    oldest = Oldest(lambda node: not node.locks, by_kv)
    for node in nodes:
        oldest.offer(node)
        oldest.offer(node)
    nodes[0].used = 9
    nodes[1].locks = 1
    assert [oldest.pop() for _ in range(4)] == [nodes[2], nodes[3], nodes[0], None]
    nodes[1].locks = 0
    assert oldest.pop() is None, "who was passed over must be offered again"
    oldest.offer(nodes[1])
    assert oldest.pop() is nodes[1]
