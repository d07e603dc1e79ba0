"""Copies that are not reported in time: requests continue without them.

An overdue copy may still be writing, so its pages, its slots and its live slot stay held until it is reported, as for an aborted request. A
request whose load is overdue starts again from what is left. An overdue copy down no longer counts as room to come
(`Directory.overdue`): room is made in other ways.
"""

from __future__ import annotations

from collections import deque

from stepwell.base.clock import Clock
from stepwell.cache.directory import Directory
from stepwell.cache.reuse.admission import give_up, legs_of
from stepwell.sched.build import preempt, release
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Draining, Job
from stepwell.sched.queues import Queues, enqueue
from stepwell.sched.request import Finished
from stepwell.sched.suspend import let_go, let_go_all


class Deadlines:
    """The time at which each copy becomes overdue, in order. `patience`: seconds that a copy may take; 0: for ever."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._due: deque[tuple[float, int]] = deque()

    def began(self, ticket: int, now: float) -> None:
        """Note that a copy has been handed to the mover."""
        if self._patience:
            self._due.append((now + self._patience, ticket))

    def turn(self, directory: Directory, now: float) -> None:
        """Mark overdue copies between tiers as missed. Amortised O(1) for each copy."""
        while self._due and self._due[0][0] <= now:
            directory.miss(self._due.popleft()[1])


def expire(queues: Queues, directory: Directory, config: SchedConfig, clock: Clock) -> None:
    """Give up loads without a report for `load_timeout`: their sources are condemned, and their requests wait again."""
    now = clock.now()
    for name, parked in list(queues.parked.items()):
        if not config.load_timeout or now - parked.heard < config.load_timeout:
            continue
        del queues.parked[name]
        parked.job.given_up = give_up(directory, parked.loading), parked.loading.option.boundary
        parked.job.given_legs += legs_of(parked.loading)
        queues.draining.append(Draining(parked.slot, parked.loading, now))
        if parked.suspended is not None:
            let_go(directory, parked.suspended)
        enqueue(queues, parked.job)


def refuse_stranded(queues: Queues, directory: Directory, config: SchedConfig, clock: Clock) -> None:
    """End the first waiting request if only overdue copies could let it start. Call it after admission."""
    if not queues.waiting or queues.asking or queues.probing or queues.running or queues.leaving:
        return
    if is_stranded(queues, directory, config, clock.now()):
        let_go_all(queues, directory)
        _end(queues, queues.waiting.pop(0).job, config)


def relieve(queues: Queues, directory: Directory, config: SchedConfig) -> None:
    """Free pages if no request can compute because overdue copies hold the promised ones.

    The youngest request is preempted. If it is the only one, suspended requests release what they kept; without any, it ends with an
    error.
    """
    youngest = queues.running[-1]
    if len(queues.running) > 1:
        preempt(queues, directory, youngest)
    elif not let_go_all(queues, directory):
        release(queues, directory, youngest)
        _end(queues, youngest.job, config)


def is_stranded(queues: Queues, directory: Directory, config: SchedConfig, now: float) -> bool:
    """True if nothing but overdue copies holds pages or slots. A load that was given up counts as overdue after another `load_timeout`."""
    if not config.load_timeout or queues.parked or directory.in_flight or directory.archive.lookups.put_off:
        return False
    if not (queues.draining or directory.overdue):
        return False
    return all(now - draining.since >= config.load_timeout for draining in queues.draining)


def _end(queues: Queues, job: Job, config: SchedConfig) -> None:
    message = f"copies that were not reported for {config.load_timeout:g} s hold the pages or the slot it needs"
    queues.events.append(Finished(job.request.id, "error", f"{message}: restart the engine"))
