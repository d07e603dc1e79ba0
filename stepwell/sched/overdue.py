"""Loads that are never reported: whoever waits for one is served otherwise.

A copy that has not been reported may still be writing its pages and its live slot, so these stay held until it is, as for an
aborted request; the request starts again on others.
"""

from __future__ import annotations

from stepwell.base.clock import Clock
from stepwell.cache.admission import give_up
from stepwell.cache.directory import Directory
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Draining
from stepwell.sched.queues import Queues, enqueue
from stepwell.sched.request import Finished
from stepwell.sched.suspend import let_go, let_go_all


def expire(queues: Queues, directory: Directory, config: SchedConfig, clock: Clock) -> None:
    """Give up the loads that have not been heard of for `load_timeout`: their sources are condemned, their requests wait again."""
    now = clock.now()
    for name, parked in list(queues.parked.items()):
        if not config.load_timeout or now - parked.heard < config.load_timeout:
            continue
        del queues.parked[name]
        parked.job.given_up = give_up(directory, parked.loading), parked.loading.option.boundary
        queues.draining.append(Draining(parked.slot, parked.loading, now))
        if parked.kept is not None:
            let_go(directory, parked.kept)
        enqueue(queues, parked.job)


def refuse_stranded(queues: Queues, directory: Directory, config: SchedConfig, clock: Clock) -> None:
    """End the requests that only an overdue copy could let start: after admission, with `load_timeout` gone by once more."""
    if not (config.load_timeout and queues.waiting and queues.draining):
        return
    if queues.running or queues.leaving or queues.parked or directory.in_flight:
        return
    now = clock.now()
    let_go_all(queues, directory)
    if all(now - draining.since >= config.load_timeout for draining in queues.draining):
        for waiting in queues.waiting:
            message = f"copies that were not reported for {config.load_timeout:g} s hold the pages or the slot it needs"
            queues.events.append(Finished(waiting.job.request.id, "error", f"{message}: restart the engine"))
        queues.waiting.clear()
