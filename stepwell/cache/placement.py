"""Where rungs are placed: where a prompt leaves them, which older ones a new one supersedes, and the gap that a loss would leave.

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
    """Rungs that a new one at `node` supersedes: those above it, nearest first, at most `OLD`; and rungs of answers that the next turn
    did not repeat. Stops at a fork into other kinds of branches, or into too many."""
    above: list[Rung] = []
    answers: list[Rung] = []
    below = node
    while (parent := below.parent) is not None and len(above) < OLD:
        if len(parent.children) > 1:
            if len(parent.children) > _FEW:
                break
            others = [finished_answer(child) for child in parent.children.values() if child is not below]
            if None in others:
                break
            answers += [rung for rungs in others for rung in rungs or ()]
        if parent.rung is not None and parent.rung.kind != WAYPOINT:
            above.append(parent.rung)
        below = parent
    return above, answers


def finished_answer(node: Node) -> list[Rung] | None:
    """The rungs of a branch that consists of one finished answer: unleased, without a fork, and each node but the last ends at a waypoint.
    None for any other branch, and for one of more than `_FAR` nodes. O(its nodes)."""
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
    """The sibling branches of `node`, a new child, which its conversation has left: for each its nodes from the top, at most `_FAR`.

    Leaves out branches that are leased, were left before, or are an answer. Empty at the root, and where more than `_FEW` branches part.
    """
    parent = node.parent
    if parent is None or parent.parent is None or len(parent.children) > _FEW:
        return []
    others = [child for child in parent.children.values() if child is not node]
    return [_idle(one) for one in others if not (one.left or any(one.kv.locks)) and finished_answer(one) is None]


def _idle(top: Node) -> list[Node]:
    """The unlocked nodes from `top` down, at most `_FAR`."""
    found: list[Node] = []
    stack = [top]
    while stack and len(found) < _FAR:
        node = stack.pop()
        if not any(node.kv.locks):
            found.append(node)
            stack.extend(node.children.values())
    return found


def needed(rung: Rung, image_tokens: int) -> bool:
    """True if a fork of its line would recompute much without `rung`: more than an eighth of the line, and more than its image is large.

    False for the rung of an answer, and for a rung whose KV is in no tier. O(nodes between its neighbours), at most `_FAR` to each side.
    """
    node = rung.image.node
    if rung.kind in (ROLLING, WAYPOINT) or node.kv.best() is None:
        return False
    return gap(rung) > max(rung.line // 8, image_tokens)


def gap(rung: Rung) -> int:
    """Number of tokens between the rungs above and below `rung`; the start and end of the line stand in for missing ones."""
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
"""Most children of a node that are looked at one by one."""
_FAR = 512
"""Most nodes that are looked at one by one."""
