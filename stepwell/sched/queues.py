"""The state of the scheduler beside the directory: requests that wait (and in what order), load, run and end.

`ServingOrder` serves by priority, then by arrival, or by turns among salts. The place of a request is a number that is set on arrival, so
the queue is sorted again only if a request is withdrawn:

    place = start + priority · ageing       start: time of arrival; with turns among salts, the end of its salt's work so far

Waiting for `ageing` seconds is worth one step of priority, so every request is served in the end, whatever comes after it.

`Lineup` holds the decodes of a step row by row, with everything that stays the same from one step to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints
from stepwell.cache.disk.names import tenant_of
from stepwell.cache.external.query import ExternalHit, OpenQuery
from stepwell.cache.moves import Move
from stepwell.cache.reuse.explain import RecentPaths
from stepwell.cache.reuse.outcome import AdmissionCounts
from stepwell.sched.board import Board
from stepwell.sched.drafts import DraftCounts
from stepwell.sched.job import Draining, Job, Parked, Running, Suspended, Waiting
from stepwell.sched.request import Event, Request, SamplingParams


@dataclass(frozen=True, slots=True, eq=False)
class Lineup:
    """Rows of `Decodes`, in their order; its columns as there.

    runs   the requests of the rows         at    row of each live slot
    tails  lists that take their new tokens, see `stepwell.sched.job.KnownTokens`
    ends   tokens that may end one of the answers; the params of each answer decide
    """

    runs: tuple[Running, ...]
    slots: Ints
    at: dict[int, int]
    names: tuple[str, ...]
    params: tuple[SamplingParams, ...]
    roots: npt.NDArray[np.int64]
    prompts: Ints
    tails: tuple[list[int], ...]
    ends: frozenset[int]

    @classmethod
    def of(cls, runs: Sequence[Running], board: Board, eos: tuple[int, ...]) -> Lineup:
        """The lineup of `runs`. O(n) objects."""
        numbers = [running.slot for running in runs]
        slots = np.array(numbers, np.int32)
        jobs = [running.job for running in runs]
        params = tuple([job.request.params for job in jobs])
        return cls(
            tuple(runs),
            slots,
            dict(zip(numbers, range(len(numbers)), strict=True)),
            tuple([job.request.id for job in jobs]),
            params,
            board.roots[slots],
            board.prompts[slots],
            tuple([job.tokens.tail for job in jobs]),
            frozenset(eos).union(*{p.stop_token_ids for p in params}),
        )


_REMEMBERED = 4096  # (salt, priority) pairs; those whose work has been served are forgotten


class ServingOrder:
    """Gives places in the queue. With `fair`, places are counted in work: seconds of prefill (start-time fair queueing).

        salt a   ├── 9 s ──┼── 9 s ──┼── 9 s ──┤      a request starts where the one before of its salt ends, but not before
        salt b        ├ 2 ┼ 2 ┼ 2 ┤                   the start of the request that was admitted last

    So salts that wait at one priority get equal shares of prefill, whatever they send, and a single salt is served in order of arrival.
    Salts with the same tenant (`tenant_of`) count as one.
    """

    __slots__ = ("_ageing", "_count", "_ends", "_fair", "_most", "_now", "_tokens_per_s")

    def __init__(self, ageing: float, fair: bool = False, tokens_per_s: float = 1.0) -> None:
        self._ageing = ageing
        self._fair = fair
        self._tokens_per_s = tokens_per_s
        self._count = 0
        self._now = 0.0
        self._ends: dict[tuple[str, int], float] = {}
        self._most = _REMEMBERED

    def place(self, request: Request, now: float) -> tuple[float, int]:
        """The place of `request`, which arrives at `now`; lower is served sooner. Amortised O(1)."""
        self._count += 1
        start = self._start(request) if self._fair else now
        return start + request.priority * self._ageing, self._count

    def served(self, request: Request, place: tuple[float, int]) -> None:
        """Note that a request has left the queue to be served: later arrivals do not start before it."""
        if self._fair:
            self._now = max(self._now, place[0] - request.priority * self._ageing)

    def withdrawn(self, request: Request) -> None:
        """Note that a request has left the queue unserved: later requests of its salt no longer wait for its work."""
        key = _key(request)
        if key in self._ends:
            self._ends[key] -= self._work(request)

    def closed_up(self, gone: Request, later: Request, place: tuple[float, int]) -> tuple[float, int]:
        """The place of `later`, which came after `gone` and was at `place`, now that `gone` is withdrawn: sooner by the work of `gone` if
        that had the same salt and priority, but not before requests that have been served."""
        if not self._fair or _key(gone) != _key(later):
            return place
        shift = later.priority * self._ageing
        start = place[0] - shift
        return max(start - self._work(gone), min(start, self._now)) + shift, place[1]

    def _start(self, request: Request) -> float:
        key = _key(request)
        start = max(self._now, self._ends.get(key, 0.0))
        if len(self._ends) >= self._most:
            self._ends = {known: end for known, end in self._ends.items() if end > self._now}
            self._most = max(_REMEMBERED, 2 * len(self._ends))
        self._ends[key] = start + self._work(request)
        return start

    def _work(self, request: Request) -> float:
        return len(request.prompt) / self._tokens_per_s


def _key(request: Request) -> tuple[str, int]:
    return tenant_of(request.salt), request.priority


NOBODY: Ints = np.empty(0, np.int32)
"""No live slots."""


@dataclass(slots=True, eq=False)
class Queues:
    """`waiting` and `running` are in the order of `Job.order`; `slots` are the free live slots.

    asking   waiting requests whose prompts are being looked up on disk, and since when; they are not planned yet
    probing  waiting requests that an external store is being asked for; they are not planned yet (`stepwell.sched.probe`)
    leaving  ended requests that a launched step still names; they keep what they hold until it has been collected
    external_hits  of waiting requests that were asked for: what the external store has; None: nothing that gains enough
    drafting answers draft now, if the runner can
    board    positions of running requests  lineup   the decodes of the last step, as long as the same requests run
    """

    slots: list[int]
    order: ServingOrder
    board: Board
    waiting: list[Waiting] = field(default_factory=list)
    asking: dict[Job, float] = field(default_factory=dict)
    probing: dict[Job, OpenQuery] = field(default_factory=dict)
    external_hits: dict[Job, ExternalHit | None] = field(default_factory=dict)
    parked: dict[str, Parked] = field(default_factory=dict)
    draining: list[Draining] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    lineup: Lineup | None = None
    _line: Ints | None = None
    leaving: list[Running] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    drafts: DraftCounts = field(default_factory=DraftCounts)
    moves: list[Move] = field(default_factory=list)
    trails: RecentPaths = field(default_factory=RecentPaths)
    tally: AdmissionCounts = field(default_factory=AdmissionCounts)
    rungs_left: int = 0
    rungs_skipped: int = 0
    preemptions: int = 0
    returns: int = 0
    drafting: bool = False

    def line(self) -> Ints:
        """Live slots of `running`, in that order."""
        if self._line is None:
            self._line = np.array([running.slot for running in self.running], np.int32)
        return self._line

    def draft(self, on: bool) -> None:
        """Switch drafting on or off for all answers. No decode is calm while answers draft."""
        if on and not self.drafting:
            self.board.calm[:] = 0
        self.drafting = on

    def regroup(self) -> None:
        """Forget the lineup: the set of running requests has changed."""
        self.lineup = self._line = None

    def find_running(self, request_id: str) -> Running | None:
        return next((r for r in self.running if r.job.request.id == request_id), None)

    def is_leaving(self, running: Running) -> bool:
        """True if `running` has ended and is only held for a launched step."""
        return running in self.leaving

    def find_waiting(self, request_id: str) -> Waiting | None:
        return next((w for w in self.waiting if w.job.request.id == request_id), None)


def enter(queues: Queues, running: Running) -> None:
    """Add `running` to the running requests, at its place."""
    at = len(queues.running)
    while at and queues.running[at - 1].job.order > running.job.order:
        at -= 1
    queues.running.insert(at, running)
    queues.regroup()


def leave(queues: Queues, running: Running) -> None:
    """Remove `running` from the running requests."""
    queues.running.remove(running)
    queues.regroup()


def enqueue(queues: Queues, job: Job, suspended: Suspended | None = None) -> None:
    """Add `job` to the waiting requests, at its place: a preempted request comes before those that arrived after it."""
    at = len(queues.waiting)
    while at and queues.waiting[at - 1].job.order > job.order:
        at -= 1
    queues.waiting.insert(at, Waiting(job, suspended))


def withdraw(queues: Queues, waiting: Waiting) -> None:
    """Remove a waiting request that is aborted. If it has not been served at all, later ones of its salt move up."""
    queues.waiting.remove(waiting)
    queues.asking.pop(waiting.job, None)
    gone, order = waiting.job, queues.order
    if gone.starts or gone.given_up is not None:
        return
    order.withdrawn(gone.request)
    for job in (other.job for other in queues.waiting):
        if job.order > gone.order:
            job.order = order.closed_up(gone.request, job.request, job.order)
    queues.waiting.sort(key=lambda other: other.job.order)
