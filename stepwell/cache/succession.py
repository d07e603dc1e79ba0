"""Which rungs a new one makes less valuable: those it supersedes, and those of answers that its path has left out."""

from __future__ import annotations

from collections.abc import Iterator

from stepwell.cache.tree import Node, Rung, RungKind


def supersede(node: Node) -> Rung | None:
    """The rung that the new rung at `node` supersedes: the second rung above it, unless another prompt branches off in between.

    Keeping two rungs a path on the device serves resumes of the last turn and of the one before.
    """
    above = [parent.rung for parent, _ in _last_turns(node) if parent.rung is not None]
    return above[1] if len(above) == 2 else None


def passed_over(node: Node) -> list[Rung]:
    """Rungs of answers that the path to `node` has left out: the next turn has come, and did not repeat them."""
    return [answer.rung for _, answers in _last_turns(node) for answer in answers if answer.rung is not None]


def _last_turns(node: Node) -> Iterator[tuple[Node, list[Node]]]:
    """The nodes above `node` up to the second with a rung, each with the answers that branch off there; ends before a branch of
    another kind, or one of too many to look at."""
    rungs, path = 0, node.up()
    below = next(path)
    for parent in path:
        others = (
            [child for child in parent.children.values() if child is not below] if len(parent.children) <= _FEW else []
        )
        if len(parent.children) > _FEW or not all(map(is_answer, others)):
            return
        yield parent, others
        rungs += parent.rung is not None
        if rungs == 2:
            return
        below = parent


def is_answer(node: Node) -> bool:
    """Whether nobody but the one who was answered has been there, and nobody is now: a leaf with no rung but a rolling one."""
    kind = None if node.rung is None else node.rung.kind
    return not node.children and kind in (None, RungKind.ROLLING) and not any(node.kv.locks) and not node.awaited


_FEW = 8
"""Children of a node that are looked at one by one."""
