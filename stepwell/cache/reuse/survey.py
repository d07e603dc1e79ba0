"""What the tree holds of one prompt: a read-only walk down the tree."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.base.units import floor_to
from stepwell.cache.life import HERE
from stepwell.cache.moves import DEVICE, Tier
from stepwell.cache.tree import TOKEN_BYTES, Node, Rung, Tree


class ResumePoint(NamedTuple):
    """A rung on the prompt's path with a readable image; `tier` is the fastest that has one."""

    position: int
    rung: Rung
    tier: Tier


class Survey(NamedTuple):
    """What the tree holds of a prompt of `tokens` tokens.

        0 ── hit ── device ──── union ──── matched ── tokens
        device   KV on the device without a gap          union    KV without a gap: to there on the device, then in any tier below it
        matched  known tokens, bytes or not

    path         nodes from the top whose tokens match; the last may match in part (up to `matched`)
    lost_rungs   positions ≤ matched where a rung once stood
    diverged_at  first token that differs from the closest known continuation, if there is one
    """

    tokens: int
    path: tuple[Node, ...]
    matched: int
    device: int
    union: int
    lost_rungs: tuple[int, ...]
    diverged_at: int | None

    @property
    def hit(self) -> ResumePoint | None:
        """The deepest resume point that the device alone serves, as the tree is now. None if there is none. O(nodes past it)."""
        for node in reversed(self.path):
            rung, end = node.rung, node.end
            if rung is not None and end <= self.device and end < self.tokens and rung.image.life[0] >= HERE:
                return ResumePoint(end, rung, DEVICE)
        return None

    @property
    def resume_points(self) -> tuple[ResumePoint, ...]:
        """All resume points up to `union` and below the last token, ascending, as the tree is now. O(path)."""
        return self.resume_points_past(0)

    def resume_points_past(self, position: int) -> tuple[ResumePoint, ...]:
        """The resume points past `position`, ascending. O(nodes past it)."""
        found: list[ResumePoint] = []
        for node in reversed(self.path):
            rung, end = node.rung, node.end
            if end <= position:
                break
            if rung is not None and end <= self.union and end < self.tokens and (tier := rung.image.best()) is not None:
                found.append(ResumePoint(end, rung, tier))
        return tuple(reversed(found))


def survey(tree: Tree, salt: str, prompt: Ints) -> Survey:
    """Look up `prompt` under `salt`, comparing tokens, not hashes. O(prompt) bytes compared, O(path) steps in Python."""
    node: Node | None = tree.roots.get(salt)
    count, block = len(prompt), tree.block
    raw = prompt.tobytes()
    path: list[Node] = []
    matched = 0
    diverged: int | None = None
    while node is not None and matched + block <= count:
        child = node.children.get(raw[matched * TOKEN_BYTES : (matched + block) * TOKEN_BYTES])
        if child is None:
            diverged = _divergence(node, prompt, matched)
            break
        path.append(child)
        if not raw.startswith(child.raw, matched * TOKEN_BYTES):
            common = _common(child.tokens, prompt[matched : child.end])
            if matched + common < count:
                diverged = matched + common
            matched += floor_to(common, block)
            break
        matched = child.end
        node = child
    return _measure(tuple(path), matched, count, diverged)


def _measure(path: tuple[Node, ...], matched: int, count: int, diverged: int | None) -> Survey:
    device = union = 0
    whole_device = whole = True
    lost: list[int] = []
    top = DEVICE
    for node in path:
        kv, end = node.kv, node.end
        if end > matched:
            end = matched
        whole_device = whole_device and kv.life[top] >= HERE
        if whole_device:
            device = union = end
        elif whole and kv.best(below=top) is not None:
            union = end
        else:
            whole = False
        if node.lost:
            lost.extend(p for p in node.lost if p <= matched)
    return Survey(count, path, matched, device, union, tuple(lost), diverged)


def _common(a: Ints, b: Ints) -> int:
    """Length of the common prefix."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    first = int(differs.argmax()) if size else 0
    return first if size and differs[first] else size


def _divergence(node: Node, prompt: Ints, at: int) -> int | None:
    """Position of the first token after `at` that differs from the closest of a few continuations of `node`; None if it has none."""
    best = -1
    for _, child in zip(range(8), node.children.values(), strict=False):
        best = max(best, _common(child.tokens, prompt[at:]))
    return at + best if best >= 0 else None


def kv_nodes(path: tuple[Node, ...], start: int, end: int) -> list[tuple[Node, int, int]]:
    """The nodes of `path` that overlap [start, end), each with the range of the overlap."""
    if start >= end:
        return []  # not an empty part of the node around it
    return [(n, max(start, n.start), min(end, n.end)) for n in path if n.start < end and n.end > start]


def slots_between(node: Node, tier: Tier, start: int, end: int, block: int) -> Ints:
    """Slots in `tier` of the KV of [start, end) ∩ node."""
    slots = node.kv.at[tier]
    assert slots is not None
    return slots[(start - node.start) // block : (end - node.start) // block]


def gather(path: tuple[Node, ...], tier: Tier, start: int, end: int, block: int) -> Ints:
    """Slots in `tier` of the KV of [start, end), in order."""
    parts: list[Ints] = []
    for node in path:
        first, last = node.start, node.end
        if last <= start or first >= end:
            continue
        slots = node.kv.at[tier]
        assert slots is not None
        whole = first >= start and last <= end
        parts.append(slots if whole else slots_between(node, tier, max(start, first), min(end, last), block))
    return np.concatenate(parts) if parts else np.empty(0, np.int32)
