"""What the cache holds of the paths that were used last, for whoever watches: rungs, KV by tier, and where the last request resumed.

    0 ──────────┬─────────┬────────────────┬───── known       rungs: device, host, disk or gone
    ├ device ───────────┤ ├ host ──────────┤                   KV, by tier
                          ↑ boundary

Trails are noted as requests end, a few dozen at most, so that a look at them never walks the tree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from stepwell.cache.moves import Tier
from stepwell.cache.outcome import AdmissionOutcome
from stepwell.cache.tree import TIERS, Node, RungKind

GONE = "gone"
MOST_TRAILS = 64
_MOST_NODES = 2048  # of one path that are looked at, from its end up
_MOST_RUNGS = 256  # of one path that are told, the deepest ones


@dataclass(frozen=True, slots=True)
class Trail:
    """A request that has ended: under which salt and for which session, how it was resumed, and when it ended."""

    salt: str
    session: str | None
    outcome: AdmissionOutcome
    ended: float


@dataclass(frozen=True, slots=True)
class RungSeen:
    """Where a rung stands, or stood; `tier` is its fastest copy's, or `gone`; `kind` is empty where it is gone."""

    position: int
    tier: str
    kind: str


@dataclass(frozen=True, slots=True)
class Ladder:
    """One path.

    known    tokens of it that the tree knows, bytes or not
    kv       where its KV is: (tier, first token, end), ascending within a tier; copies may be in several
    outcome  how the last request that ended on it was resumed;  ago  seconds since it ended
    """

    session: str | None
    known: int
    rungs: tuple[RungSeen, ...]
    kv: tuple[tuple[str, int, int], ...]
    outcome: AdmissionOutcome
    ago: float


class Trails:
    """The ends of the paths that were used last. A path that goes on from another takes its place."""

    __slots__ = ("_at", "_most")

    def __init__(self, most: int = MOST_TRAILS) -> None:
        self._at: OrderedDict[Node, Trail] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._at)

    def left(self, tip: Node, trail: Trail) -> None:
        """A request ended, and what it published ends at `tip`. O(nodes of its path)."""
        if self._at:
            for node in islice(tip.up(), _MOST_NODES):
                self._at.pop(node, None)
        self._at[tip] = trail
        while len(self._at) > self._most:
            self._at.popitem(last=False)

    def latest(self, count: int, owner: str = "") -> list[tuple[Node, Trail]]:
        """Up to `count` of them, the last used first; only those of `owner`, where one is given: its salt, and those below it."""
        self._forget()
        mine = (tip for tip in reversed(self._at) if _belongs(self._at[tip].salt, owner))
        return [(tip, self._at[tip]) for tip in islice(mine, count)]

    def _forget(self) -> None:
        """Drop those that are no longer part of the tree."""
        for tip in [tip for tip in self._at if tip.parent is None]:
            del self._at[tip]


def ladders(trails: Trails, now: float, count: int, owner: str = "") -> tuple[Ladder, ...]:
    """The `count` paths that were used last. Changes nothing that anybody else sees; bounded by `count` and the lengths of paths."""
    return tuple(_ladder(tip, trail, now) for tip, trail in trails.latest(count, owner))


def _belongs(salt: str, owner: str) -> bool:
    return not owner or salt == owner or salt.startswith(f"{owner}:")


def _ladder(tip: Node, trail: Trail, now: float) -> Ladder:
    path = [node for node in islice(tip.up(), _MOST_NODES) if node.parent is not None][::-1]
    rungs = sorted((seen for node in path for seen in _rungs(node)), key=lambda seen: seen.position)
    kv = tuple(run for tier in TIERS for run in _runs(path, tier))
    return Ladder(trail.session, tip.end, tuple(rungs[-_MOST_RUNGS:]), kv, trail.outcome, max(0.0, now - trail.ended))


def _rungs(node: Node) -> list[RungSeen]:
    seen = [RungSeen(position, GONE, "") for position in node.lost]
    if node.rung is not None:
        tier = node.rung.image.best()
        kind = RungKind(node.rung.kind).name.lower()
        seen.append(RungSeen(node.end, GONE, "") if tier is None else RungSeen(node.end, tier.name.lower(), kind))
    return seen


def _runs(path: Sequence[Node], tier: Tier) -> list[tuple[str, int, int]]:
    """Runs of KV that may be read in `tier`, neighbours joined."""
    runs: list[tuple[str, int, int]] = []
    for node in path:
        if not node.kv.has(tier):
            continue
        start = runs.pop()[1] if runs and runs[-1][2] == node.start else node.start
        runs.append((tier.name.lower(), start, node.end))
    return runs
