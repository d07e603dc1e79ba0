"""Share prefill: wait for a request already computing the same prefix when that is faster than computing it again.

    leader     0 ═════ computed ─────────────▶ rung ─────▶          runs, or is parked; never waits itself
    follower   0 ══ boundary ── same tokens ──── ┤ other tokens     waits until the leader has passed the rung

A follower holds nothing. Its leader leaves a rung where the two prompts part, if it has not got there yet. Once the leader has passed
that rung, or has gone (ended, aborted, failed, preempted, load given up), the follower is planned afresh, at its old place in the queue.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.base.geometry import Ints
from stepwell.base.units import floor_to
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.reuse.plan import Option, Plan, expected_seconds
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import BRANCH
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Following, Job, Parked, Running
from stepwell.sched.queues import Queues

MOST_WAITS = 8
"""Most leaders that one request waits for, so that it is served even if all of them fail."""

_SLACK = 1.0  # s: reports are read between two steps, however short the copy was
_MOST_COMPARED = 16  # leaders whose prompts are compared token by token


@dataclass(frozen=True, slots=True)
class Lead:
    """If a prompt waits for the owner of `table` to pass `position`, it is computed after `seconds`."""

    table: BlockTable
    position: int
    seconds: float


def is_following(following: Following | None, come: dict[BlockTable, int]) -> bool:
    """True if there is still something to wait for; `come` says how far leaders have computed."""
    return following is not None and come.get(following.table, following.position) < following.position


def ask_for_rungs(queues: Queues, running: Running) -> None:
    """Add the rungs that followers of `running` wait for, once it has been loaded and its own rungs are known."""
    for waiting in queues.waiting:
        if waiting.following is not None and waiting.following.table is running.table:
            _ask(running, waiting.following.position)


def _ask(running: Running, position: int) -> None:
    if position > running.launched and all(p != position for p, _ in running.rungs):
        running.rungs = tuple(sorted((*running.rungs, (position, BRANCH))))


@dataclass(frozen=True, slots=True)
class Coalescing:
    """Which running and parked requests can be waited for at `now`. Only `follow` changes anything."""

    queues: Queues
    rules: CacheConfig
    config: SchedConfig
    costs: Costs
    now: float

    def come(self) -> dict[BlockTable, int]:
        """Tokens computed so far by each request that may be waited for; those that load count as 0."""
        if not self.queues.waiting:
            return {}
        loading = {p.loading.held.table: 0 for p in self.queues.parked.values() if self._in_time(p)}
        return loading | {running.table: running.computed for running in self.queues.running}

    def follow(self, job: Job, plan: Plan) -> Following | None:
        """Let `job`, which could start by `plan`, wait for another request if that is faster, and ask that for the rung. None if not."""
        if job.waits >= MOST_WAITS or not job.request.read_cache:
            return None
        lead = self.find(job.request.salt, job.tokens.view, job.order, plan)
        if lead is None:
            return None
        if job.waits == 0:
            job.alone = plan.aim.boundary
        job.waits += 1
        for running in self.queues.running:
            if running.table is lead.table:
                _ask(running, lead.position)
        return Following(lead.table, lead.position)

    def find(self, salt: str, tokens: Ints, order: tuple[float, int], plan: Plan) -> Lead | None:
        """The leader by which `tokens` are computed soonest. None if `plan` is at least as fast.

        A running prompt continues from where it is, behind those that the step budget serves first. O(leaders · tokens).
        """
        grid, count, boundary = self.rules.geometry.rung_grid, len(tokens), plan.aim.boundary
        if not (self.config.coalesce and self.config.cache) or floor_to(count - 1, grid) <= boundary:
            return None
        leaders = [x for x in self._leaders(salt) if _alike(x.job.tokens.view, tokens, boundary, grid)]
        if not leaders:
            return None
        line, costs = _Line.of(self.queues, self.costs), self.costs
        before = line.before(order)
        best, soonest = None, before + line.loading(order) + self._seconds(plan.aim, count)
        for leader in leaders[:_MOST_COMPARED]:
            known = leader.job.tokens.view
            position = floor_to(min(_common(known, tokens), len(known) - 1, count - 1), grid)
            if isinstance(leader, Running):
                position = _rung_to_come(leader, position)
            if position <= max(boundary, _start(leader)):
                continue
            if isinstance(leader, Running):
                table, rest = leader.table, costs.prefill_seconds(leader.computed, position)
            else:
                table, rest = leader.loading.held.table, self._seconds(leader.loading.option, position)
            passed = line.before(leader.job.order) + rest
            whole = max(passed, before) + costs.prefill_seconds(position, count)
            if whole < soonest:
                best, soonest = Lead(table, position, whole), whole
        return best

    def _leaders(self, salt: str) -> list[Running | Parked]:
        """Requests that compute, or load, a prompt under `salt` and publish it."""
        running = [r for r in self.queues.running if r.uncollected > 1 and _shares(r.job, salt)]
        return [*running, *(p for p in self.queues.parked.values() if _shares(p.job, salt) and self._in_time(p))]

    def _in_time(self, parked: Parked) -> bool:
        """True if its load may be waited for: its last report is not older than twice the expected time of the whole load, and a second."""
        option = parked.loading.option
        return self.now - parked.heard <= 2 * self._seconds(option, option.boundary) + _SLACK

    def _seconds(self, option: Option, tokens: int) -> float:
        return expected_seconds(option, tokens, self.rules, self.costs)


def _shares(job: Job, salt: str) -> bool:
    return job.request.salt == salt and job.request.write_cache


def _start(leader: Running | Parked) -> int:
    return leader.computed if isinstance(leader, Running) else leader.loading.option.boundary


def _rung_to_come(leader: Running, position: int) -> int:
    """The deepest boundary up to `position` where the leader can still leave a rung, or is about to; 0 if there is none."""
    if position > leader.launched:
        return position
    return max((p for p, _ in leader.rungs if leader.computed < p <= position), default=0)


def _alike(known: Ints, tokens: Ints, boundary: int, grid: int) -> bool:
    """Quick check whether two prompts may agree up to the first rung past `boundary`; compares one grid at the start and one token."""
    least = floor_to(boundary, grid) + grid
    if len(known) <= least or known[least - 1] != tokens[least - 1]:
        return False
    return bool((known[:grid] == tokens[:grid]).all())


def _common(a: Ints, b: Ints) -> int:
    """Length of the common prefix."""
    size = min(len(a), len(b))
    differs = a[:size] != b[:size]
    first = int(differs.argmax())
    return first if differs[first] else size


@dataclass(frozen=True, slots=True)
class _Line:
    """Seconds of prefill still to be computed, by place in the order: of running and of parked requests."""

    running: tuple[tuple[tuple[float, int], float], ...]
    parked: tuple[tuple[tuple[float, int], float], ...]

    @classmethod
    def of(cls, queues: Queues, costs: Costs) -> _Line:
        ours = [(r.job, r.computed) for r in queues.running if r.uncollected > 1]
        theirs = [(p.job, p.loading.option.boundary) for p in queues.parked.values()]
        running, parked = (
            tuple((job.order, costs.prefill_seconds(start, len(job.tokens))) for job, start in some)
            for some in (ours, theirs)
        )
        return cls(running, parked)

    def before(self, order: tuple[float, int]) -> float:
        """Seconds of running prompts that get the step budget before a request at `order`."""
        return sum(seconds for place, seconds in self.running if place < order)

    def loading(self, order: tuple[float, int]) -> float:
        """Seconds of parked prompts that will run before a request at `order`."""
        return sum(seconds for place, seconds in self.parked if place < order)
