"""What the cache tells those who watch, as plain data. Nothing here changes anything.

`explain` says what a prompt would get if it came now: the survey, the plan, and how its admission would end. `ladders` shows the paths
that were used last: their rungs, their KV by tier, and where the last request resumed.

    0 ──────────┬─────────┬────────────────┬───── known       rungs: device, host, disk or gone
    ├ device ───────────┤ ├ host ──────────┤                   KV, by tier
                          ↑ boundary

Paths are noted as requests end, a few dozen at most, so that a look at them never walks the tree.
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
    rungs          where the state could be had, as (position, fastest tier)
    lost_rungs     where it once could
    starts         the aim, then what it would fall back on; empty where the request would wait for room
    pages_needed   beyond what is shared; pages_available is told where the request would wait
    outcome        how the admission would end if nothing failed
    waits_for      tokens that another request is computing and that it would wait for; None where it would not
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
MOST_TRAILS = 64
_MOST_NODES = 2048  # of one path that are looked at, from its end up
_MOST_RUNGS = 256  # of one path that are told, the deepest ones


@dataclass(frozen=True, slots=True)
class PathUse:
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


class RecentPaths:
    """The ends of the paths that were used last. A path that goes on from another takes its place."""

    __slots__ = ("_at", "_most")

    def __init__(self, most: int = MOST_TRAILS) -> None:
        self._at: OrderedDict[Node, PathUse] = OrderedDict()
        self._most = most

    def __len__(self) -> int:
        return len(self._at)

    def left(self, tip: Node, trail: PathUse) -> None:
        """A request ended, and what it published ends at `tip`. O(nodes of its path)."""
        if self._at:
            for node in islice(tip.up(), _MOST_NODES):
                self._at.pop(node, None)
        self._at[tip] = trail
        while len(self._at) > self._most:
            self._at.popitem(last=False)

    def latest(self, count: int, owner: str = "") -> list[tuple[Node, PathUse]]:
        """Up to `count` of them, the last used first; only those of `owner`, where one is given: its salt, and those below it."""
        self._forget()
        mine = (tip for tip in reversed(self._at) if _belongs(self._at[tip].salt, owner))
        return [(tip, self._at[tip]) for tip in islice(mine, count)]

    def _forget(self) -> None:
        """Drop those that are no longer part of the tree."""
        for tip in [tip for tip in self._at if tip.parent is None]:
            del self._at[tip]


def ladders(trails: RecentPaths, now: float, count: int, owner: str = "") -> tuple[Ladder, ...]:
    """The `count` paths that were used last. Changes nothing that anybody else sees; bounded by `count` and the lengths of paths."""
    return tuple(_ladder(tip, trail, now) for tip, trail in trails.latest(count, owner))


def _belongs(salt: str, owner: str) -> bool:
    return not owner or salt == owner or salt.startswith(f"{owner}:")


def _ladder(tip: Node, trail: PathUse, now: float) -> Ladder:
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
