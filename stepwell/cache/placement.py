"""Where rungs stand: where a prompt leaves them, which of them a new one makes less valuable, and the gap that a loss would leave.

    0 ──────── above ──────── rung ──────── below ──────── line      a fork between `rung` and `below` would start at `above`
                 └───────────── gap ──────────┘

Pure questions to the tree; the recurrent op hands states out at no extra pass, so rungs cost memory alone.
"""

from __future__ import annotations

from math import lcm

from stepwell.base.units import floor_to
from stepwell.cache.config import CacheConfig
from stepwell.cache.tree import BRANCH, INTERVAL, OLD, PROMPT_END, ROLLING, WAYPOINT, Node, Rung, RungKind


def prompt_rungs(
    tokens: int, resumed: int, branch: int | None, config: CacheConfig, places: tuple[int, ...] = ()
) -> tuple[tuple[int, RungKind], ...]:
    """Positions in (resumed, tokens] where a prompt of `tokens` tokens leaves a rung, ascending.

    prompt end   the last grid boundary at or below the end: the next turn resumes there
    interval     insurance against branches and compaction; for a prompt that ends on the grid also one grid above its end: the same
                 prompt sent again resumes there, since its last token is always computed
    places       where the caller knows that prompts tend to part: the last grid boundary at or below each
    branch       the last grid boundary shared with the path that the prompt left at `branch`: besides the others
    """
    grid = config.geometry.rung_grid
    wanted: dict[int, RungKind] = {}
    first = floor_to(resumed, config.interval) + config.interval
    for position in range(first, tokens, config.interval):
        wanted[position] = INTERVAL
    for place in places:
        if 0 < place < tokens:
            wanted[floor_to(place, grid)] = INTERVAL
    if branch is not None:
        wanted[floor_to(branch, grid)] = BRANCH
    wanted[floor_to(tokens, grid)] = PROMPT_END
    wanted.setdefault(floor_to(tokens - 1, grid), INTERVAL)
    if config.whole_chunks:
        wanted.setdefault(floor_to(tokens - 1, lcm(config.chunk, grid)), PROMPT_END)
    if config.external_chunk:
        wanted.setdefault(floor_to(tokens - 1, lcm(config.external_chunk, grid)), PROMPT_END)
    return tuple(sorted((p, kind) for p, kind in wanted.items() if resumed < p))


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
            others = [answer_rungs(child) for child in parent.children.values() if child is not below]
            if None in others:
                break
            answers += [rung for rungs in others for rung in rungs or ()]
        if parent.rung is not None and parent.rung.kind != WAYPOINT:
            above.append(parent.rung)
        below = parent
    return above, answers


def answer_rungs(node: Node) -> list[Rung] | None:
    """The rungs of a branch that a finished answer alone left behind: unleased, without a fork, each node but the last one ending at a
    waypoint. None for any other branch, and for one of too many nodes to look at. O(its nodes)."""
    found: list[Rung] = []
    for _ in range(_FAR):
        if any(node.kv.locks) or node.awaited or len(node.children) > 1:
            return None
        if node.rung is not None:
            if node.rung.kind not in (ROLLING, WAYPOINT):
                return None
            found.append(node.rung)
        if not node.children:
            return found
        if node.rung is None or node.rung.kind != WAYPOINT:
            return None
        (node,) = node.children.values()
    return None


def left_by(node: Node) -> list[list[Node]]:
    """The branches at the parent of `node`, a new child, that its path has left: for each its nodes, `_FAR` at most, from the top.

    A branch that is in use, has been left before, or is an answer does not count, nor does any where many paths part or at the root.
    """
    parent = node.parent
    if parent is None or parent.parent is None or len(parent.children) > _FEW:
        return []
    others = [child for child in parent.children.values() if child is not node]
    return [_idle(one) for one in others if not (one.left or any(one.kv.locks)) and answer_rungs(one) is None]


def _idle(top: Node) -> list[Node]:
    """The nodes from `top` down that nobody holds, `_FAR` at most."""
    found: list[Node] = []
    stack = [top]
    while stack and len(found) < _FAR:
        node = stack.pop()
        if not any(node.kv.locks):
            found.append(node)
            stack.extend(node.children.values())
    return found


def needed(rung: Rung, image_tokens: int) -> bool:
    """Whether forks of the line would lose much without `rung`: more than an eighth of the line, and more than its image is large.

    Where it is not, dropping it leaves no fork that loses more than an eighth. False for the rung of an answer, and for one whose KV is
    nowhere. O(nodes between its neighbours), `_FAR` at most to each side.
    """
    node = rung.image.node
    if rung.kind in (ROLLING, WAYPOINT) or node.kv.best() is None:
        return False
    return gap(rung) > max(rung.line // 8, image_tokens)


def gap(rung: Rung) -> int:
    """Tokens from the rung above `rung`, or the line's start, to the one below it, or the line's end."""
    node = rung.image.node
    end = max(rung.line, node.end)
    start = 0
    above = node.parent
    for _ in range(1, _FAR):
        if above is None:
            break
        start = above.end
        if above.rung is not None and above.rung.image.best() is not None:
            break
        above = above.parent
    for _ in range(_FAR):
        count = len(node.children)
        if not 0 < count <= _FEW:
            break
        node = next(iter(node.children.values())) if count == 1 else max(node.children.values(), key=_used)
        if node.rung is not None and node.rung.image.best() is not None:
            end = node.end
            break
    return end - start


def _used(node: Node) -> float:
    return node.used


_FEW = 8
"""Children of a node that are looked at one by one."""
_FAR = 512
"""Nodes that are looked at one by one."""
