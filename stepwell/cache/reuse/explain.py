"""What the cache tells observers, as plain data. Nothing here changes any state.

`explain` tells what would be reused of a prompt if it came now: the lookup, the plan, and the outcome. `ladders` shows the paths that were
used last: their rungs, their KV by tier, and where the last request resumed.

    0 ──────────┬─────────┬────────────────┬───── known       rungs: device, host, disk or gone
    ├ device ───────────┤ ├ host ──────────┤                   KV, by tier
                          ↑ boundary

Paths are noted when requests end, a few dozen at most, so that showing them never walks the tree.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from stepwell.base.geometry import Ints
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.admission import outcome_of
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.cache.reuse.plan import Option, Plan, Wait
from stepwell.cache.tree import TIERS, Node, RungKind


@dataclass(frozen=True, slots=True)
class PlannedStart:
    """One option of a plan.

    state  tier of the image; None at boundary 0
    legs   KV to be copied, as (tier, first token, end)
    """

    boundary: int
    shared: int
    state: str | None
    legs: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a prompt would be resumed where it would.

    matched        tokens of the prompt that are known, cached or not
    device, union  KV without a gap: on the device, in all tiers together
    hit            what the device alone could resume
    rungs          resume points, as (position, fastest tier)
    lost_rungs     positions of evicted rungs
    starts         the aim, then its fallbacks; empty if the request would wait for room
    pages_needed   beyond what is shared; pages_available: only if the request would wait
    outcome        outcome of the admission if no load failed; None if the request would wait
    waits_for      position up to which it would wait for another request to compute; None if it would not wait
    """

    tokens: int
    matched: int
    device: int
    union: int
    hit: int
    rungs: tuple[tuple[int, str], ...]
    lost_rungs: tuple[int, ...]
    diverged_at: int | None
    starts: tuple[PlannedStart, ...]
    pages_needed: int
    pages_available: int | None
    outcome: AdmissionOutcome | None
    waits_for: int | None = None


def explain(directory: Directory, salt: str, prompt: Ints, answer: Plan | Wait) -> Explanation:
    """What `answer`, just planned for `prompt` under `salt`, means."""
    found = answer.survey if isinstance(answer, Plan) else directory.survey(salt, prompt)
    planned = answer if isinstance(answer, Plan) else None
    grid = directory.config.geometry.rung_grid
    return Explanation(
        tokens=found.tokens,
        matched=found.matched,
        device=found.device,
        union=found.union,
        hit=found.hit.position if found.hit is not None else 0,
        rungs=tuple((f.position, _name(f.tier)) for f in found.resume_points),
        lost_rungs=found.lost_rungs,
        diverged_at=found.diverged_at,
        starts=tuple(map(_start, planned.options)) if planned else (),
        pages_needed=answer.need if isinstance(answer, Plan) else answer.needed,
        pages_available=None if isinstance(answer, Plan) else answer.available,
        outcome=outcome_of(planned, "", grid, 0, planned.reason, planned.skipped) if planned else None,
    )


def _start(option: Option) -> PlannedStart:
    state = None if option.resume_point is None else _name(option.resume_point.tier)
    legs = tuple((_name(source.tier), source.start, source.end) for source in option.leg)
    return PlannedStart(option.boundary, option.shared, state, legs)


def _name(tier: Tier) -> str:
    return tier.name.lower()


GONE = "gone"
MOST_PATHS = 64
_MOST_NODES = 2048  # of one path, from its end up
_MOST_RUNGS = 256  # of one path, the deepest ones


@dataclass(frozen=True, slots=True)
class PathUse:
    """The salt, session and outcome of a request that has ended, and when."""

    salt: str
    session: str | None
    outcome: AdmissionOutcome
    ended: float


@dataclass(frozen=True, slots=True)
class RungSeen:
    """A rung, or a place of one that was evicted: then `tier` is `gone` and `kind` empty. `tier` is that of its fastest copy."""

    position: int
    tier: str
    kind: str


@dataclass(frozen=True, slots=True)
class Ladder:
    """One path.

    known    tokens of it in the tree, cached or not
    kv       where its KV is: (tier, first token, end), ascending within a tier; copies may be in several
    outcome  how the last request that ended on it was resumed;  ago  seconds since it ended
    """

    session: str | None
    known: int
    rungs: tuple[RungSeen, ...]
    kv: tuple[tuple[str, int, int], ...]
    outcome: AdmissionOutcome
    ago: float


class RecentPaths:
    """The ends of the paths that were used last. A path that goes on from another takes its place."""

    __slots__ = ("_at", "_most")

    def __init__(self, most: int = MOST_PATHS) -> None:
        self._at: OrderedDict[Node, PathUse] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._at)

    def left(self, tip: Node, use: PathUse) -> None:
        """Note a request that has ended; what it published ends at `tip`. O(nodes of its path)."""
        if self._at:
            for node in islice(tip.up(), _MOST_NODES):
                self._at.pop(node, None)
        self._at[tip] = use
        while len(self._at) > self._most:
            self._at.popitem(last=False)

    def latest(self, count: int, owner: str = "") -> list[tuple[Node, PathUse]]:
        """Up to `count` of them, the last used first. With `owner`, only those of its salt and of salts below it."""
        self._forget()
        mine = (tip for tip in reversed(self._at) if _belongs(self._at[tip].salt, owner))
        return [(tip, self._at[tip]) for tip in islice(mine, count)]

    def _forget(self) -> None:
        """Drop those that are no longer part of the tree."""
        for tip in [tip for tip in self._at if tip.parent is None]:
            del self._at[tip]


def ladders(paths: RecentPaths, now: float, count: int, owner: str = "") -> tuple[Ladder, ...]:
    """The `count` paths that were used last. O(count · nodes of a path)."""
    return tuple(_ladder(tip, use, now) for tip, use in paths.latest(count, owner))


def _belongs(salt: str, owner: str) -> bool:
    return not owner or salt == owner or salt.startswith(f"{owner}:")


def _ladder(tip: Node, use: PathUse, now: float) -> Ladder:
    path = [node for node in islice(tip.up(), _MOST_NODES) if node.parent is not None][::-1]
    rungs = sorted((seen for node in path for seen in _rungs(node)), key=lambda seen: seen.position)
    kv = tuple(run for tier in TIERS for run in _runs(path, tier))
    return Ladder(use.session, tip.end, tuple(rungs[-_MOST_RUNGS:]), kv, use.outcome, max(0.0, now - use.ended))


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
