"""Which rungs a new one makes less valuable: those above it on its path, and those of answers that the path has left out."""

from __future__ import annotations

from stepwell.cache.tree import OLD, Node, Rung, RungKind


def overtaken(node: Node) -> tuple[list[Rung], list[Rung]]:
    """The rungs above a new one at `node`, nearest first, `OLD` of them at most; and those of answers that its path has left out: the
    next turn has come, and did not repeat them. Neither reaches past a fork: a branch of another kind, or one of too many to look at."""
    above: list[Rung] = []
    answers: list[Rung] = []
    below = node
    while (parent := below.parent) is not None and len(above) < OLD:
        if len(parent.children) > 1:
            if len(parent.children) > _FEW:
                break
            others = [child for child in parent.children.values() if child is not below]
            if not all(map(is_answer, others)):
                break
            answers += [other.rung for other in others if other.rung is not None]
        if parent.rung is not None:
            above.append(parent.rung)
        below = parent
    return above, answers


def is_answer(node: Node) -> bool:
    """Whether nobody but the one who was answered has been there, and nobody is now: a leaf with no rung but a rolling one."""
    kind = None if node.rung is None else node.rung.kind
    return not node.children and kind in (None, RungKind.ROLLING) and not any(node.kv.locks) and not node.awaited


_FEW = 8
"""Children of a node that are looked at one by one."""
