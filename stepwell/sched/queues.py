"""Who waits, loads, runs and is being let go: the scheduler's whole state beside the directory."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.external.offer import Offer, Probe
from stepwell.cache.ladder import Trails
from stepwell.cache.moves import Move
from stepwell.cache.tally import Tally
from stepwell.sched.board import Board
from stepwell.sched.drafts import DraftCounts
from stepwell.sched.job import Draining, Job, Kept, Leaving, Parked, Running, Waiting
from stepwell.sched.lineup import Lineup
from stepwell.sched.order import Order
from stepwell.sched.request import Event

NOBODY: Ints = np.empty(0, np.int32)
"""No live slots."""


@dataclass(slots=True, eq=False)
class Queues:
    """`waiting` and `running` are in the order of `Job.order`; `slots` are the live states that nobody holds.

    asking   of those who wait: the disk is still being asked, since then, what an earlier process left of their prompts; not planned yet
    probing  of those who wait: an external store is still being asked; not planned yet (`stepwell.sched.probe`)
    offers   of those who wait and have been asked for: what the external store offers; None: nothing that would gain enough
    drafting answers draft now, where the runner can
    board    where those who run stand      lineup   the decodes of the last step, as long as the same requests run
    """

    slots: list[int]
    order: Order
    board: Board
    waiting: list[Waiting] = field(default_factory=list)
    asking: dict[Job, float] = field(default_factory=dict)
    probing: dict[Job, Probe] = field(default_factory=dict)
    offers: dict[Job, Offer | None] = field(default_factory=dict)
    parked: dict[str, Parked] = field(default_factory=dict)
    draining: list[Draining] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    lineup: Lineup | None = None
    _line: Ints | None = None
    leaving: list[Leaving] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    drafts: DraftCounts = field(default_factory=DraftCounts)
    moves: list[Move] = field(default_factory=list)
    trails: Trails = field(default_factory=Trails)
    tally: Tally = field(default_factory=Tally)
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
        """Whether answers draft from now on: who begins to is looked at by itself in each step."""
        if on and not self.drafting:
            self.board.calm[:] = 0
        self.drafting = on

    def regroup(self) -> None:
        """Others run from now on."""
        self.lineup = self._line = None

    def find_running(self, request_id: str) -> Running | None:
        return next((r for r in self.running if r.job.request.id == request_id), None)

    def is_leaving(self, running: Running) -> bool:
        """Whether `running` has ended and is only held for a launched step."""
        return any(leaving.running is running for leaving in self.leaving)

    def find_waiting(self, request_id: str) -> Waiting | None:
        return next((w for w in self.waiting if w.job.request.id == request_id), None)


def enter(queues: Queues, running: Running) -> None:
    """Let `running` run, at its place."""
    at = len(queues.running)
    while at and queues.running[at - 1].job.order > running.job.order:
        at -= 1
    queues.running.insert(at, running)
    queues.regroup()


def leave(queues: Queues, running: Running) -> None:
    """`running` runs no longer."""
    queues.running.remove(running)
    queues.regroup()


def enqueue(queues: Queues, job: Job, kept: Kept | None = None) -> None:
    """Put `job` at its place; a preempted one comes back before whoever came after it."""
    at = len(queues.waiting)
    while at and queues.waiting[at - 1].job.order > job.order:
        at -= 1
    queues.waiting.insert(at, Waiting(job, kept))


def withdraw(queues: Queues, waiting: Waiting) -> None:
    """Take out one who gives up; if it has not been served at all, who came after it closes up."""
    queues.waiting.remove(waiting)
    queues.asking.pop(waiting.job, None)
    queues.probing.pop(waiting.job, None)
    gone, order = waiting.job, queues.order
    if gone.starts or gone.given_up is not None:
        return
    order.withdrawn(gone.request)
    for job in (other.job for other in queues.waiting):
        if job.order > gone.order:
            job.order = order.closed_up(gone.request, job.request, job.order)
    queues.waiting.sort(key=lambda other: other.job.order)
