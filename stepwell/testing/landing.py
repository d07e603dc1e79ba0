"""Law 6 where it shows: the step in which a load ends, well or not, or is given up."""

from __future__ import annotations

from collections.abc import Mapping

from stepwell.sched.job import Parked
from stepwell.sched.loop import EngineLoop
from stepwell.testing.laws import check_condemned, require
from stepwell.testing.outside import check_forgotten
from stepwell.testing.ranks import Watch


def check_landing(
    loop: EngineLoop, before: Parked, watch: Watch, entered: Mapping[tuple[str, int], int], now: float
) -> None:
    """Judge what became of a request that was waiting for its load when this step began.

    watch    what has passed in this step     entered  where each request began, by name and admission
    now      the time at which the step was taken
    """
    loading, name, reports = before.loading, before.job.request.id, watch.reported
    after = loop.queues.parked.get(name)
    if not loading.waiting <= reports.keys():
        heard = now if loading.waiting & reports.keys() else before.heard
        if 0 < loop.config.load_timeout <= now - heard:
            _check_given_up(loop, before, watch)
        else:
            same = after is not None and after.loading.index == loading.index
            require(6, same, f"{name} went on before its load ended")
        return
    bad = [*loading.failed, *(m for m in loading.moves if not reports.get(m.ticket, True))]
    failed = bool(bad)
    check_condemned(loop, bad, watch.shelf.adopted)
    check_forgotten(loop, bad)
    index = loading.index + failed
    option = loading.held.plan.options[index]
    if failed and option.loads:
        require(6, after is not None and after.loading.index == index, f"{name} does not try {option} next")
        return
    require(6, after is None, f"{name} still waits after its load has ended")
    boundary = option.boundary if before.suspended is None or index else before.suspended.computed
    running = loop.queues.find_running(name)
    starts = max((s for n, s in entered if n == name), default=0)
    if running is not None and running.job.starts > starts:
        require(6, running.computed == boundary, f"{name} is at {running.computed}, not {boundary}")
    elif before.job.starts == starts:
        at = entered[name, starts]
        require(6, at == boundary, f"{name} resumed at {at}, not {boundary}")


def _check_given_up(loop: EngineLoop, before: Parked, watch: Watch) -> None:
    """The request no longer waits for this load; nobody finds what was not reported, and its pages stay held."""
    loading, name = before.loading, before.job.request.id
    after = loop.queues.parked.get(name)
    require(6, after is None or after.loading.held is not loading.held, f"{name} waits for a load that is overdue")
    held = any(draining.loading.held is loading.held for draining in loop.queues.draining)
    require(5, held, f"pages that a copy for {name} may be writing are let go")
    check_condemned(loop, [m for m in loading.moves if m.ticket in loading.waiting], watch.shelf.adopted)
