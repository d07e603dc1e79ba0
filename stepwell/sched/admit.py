"""From waiting to running, by way of a load where one pays."""

from __future__ import annotations

from dataclasses import replace

from stepwell.base.clock import Clock
from stepwell.cache.config import Costs
from stepwell.cache.copies import copy_landed
from stepwell.cache.directory import Directory
from stepwell.cache.disk.learn import learn_some
from stepwell.cache.evict.make_room import make_room
from stepwell.cache.moves import Report
from stepwell.cache.placement import prompt_rungs
from stepwell.cache.reuse.admission import Loading, Runnable, abandon, commit, reported, settle
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.cache.reuse.plan import Plan, Wait, pinned_images, pinned_kv
from stepwell.cache.tree import RungKind
from stepwell.sched.coalesce import Coalescing, ask_for_rungs, is_following
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Job, Parked, Running, Waiting
from stepwell.sched.probe import taken
from stepwell.sched.queues import Queues, enqueue, enter
from stepwell.sched.request import Admitted, Finished, Loads
from stepwell.sched.step import Carry, Fresh, FromImage, StateStart
from stepwell.sched.suspend import any_suspended, attach, free_slot, let_go, let_go_all, let_go_at


def admit(queues: Queues, directory: Directory, config: SchedConfig, costs: Costs, clock: Clock) -> None:
    """Start waiting requests, in their order, while there are live slots and room. Followers and lookups under way may be overtaken."""
    coalescing = Coalescing(queues, directory.config, config, costs, clock.now())
    come, at = coalescing.come(), 0
    while at < len(queues.waiting):
        waiting = queues.waiting[at]
        if (
            waiting.job in queues.asking
            or _is_unasked(queues, directory, waiting)
            or is_following(waiting.following, come)
        ):
            at += 1
            continue
        if not (queues.slots or waiting.suspended or any_suspended(queues)):
            return
        answer = _plan(queues, directory, config, costs, waiting)
        if answer is None:  # resuming at a rung is better
            let_go_at(queues, directory, at)
            continue
        if isinstance(answer, Wait):
            if _may_end(queues, directory):
                return
            if not let_go_all(queues, directory):
                _refuse(queues, at, answer)
            continue
        following = None if waiting.suspended else coalescing.follow(waiting.job, answer)
        if following is not None:
            queues.waiting[at] = replace(waiting, following=following)
            at += 1
            continue
        if not (queues.slots or waiting.suspended):
            free_slot(queues, directory)
            continue
        if _must_wait(queues, directory, answer, costs, clock.now()):
            return
        if answer.epoch != directory.epoch:
            continue  # making room did not help, but has changed the directory: plan again
        queues.waiting.pop(at)
        if queues.external_hits:
            taken(queues, directory, waiting.job, answer)
        queues.order.served(waiting.job.request, waiting.job.order)
        slot = queues.slots.pop() if waiting.suspended is None else waiting.suspended.slot
        job, now, tokens = waiting.job, clock.now(), waiting.job.tokens.view
        if answer.aim.loads:
            tokens = tokens.copy()  # the tokens of a job may move in memory while its load is in flight
        state = commit(directory, _giving_reason(answer, job.given_up), job.request.id, tokens, slot, now)
        _enter(queues, directory, config, waiting, slot, state, now)


def _is_unasked(queues: Queues, directory: Directory, waiting: Waiting) -> bool:
    """True if this request still waits for the external store's answer (at most `lookup_timeout`); it is planned afterwards."""
    return directory.external is not None and waiting.suspended is None and waiting.job not in queues.external_hits


def look_up(queues: Queues, directory: Directory, config: SchedConfig, now: float) -> None:
    """Look up in the index of the disk what it holds of waiting prompts, in their order of arrival, at most `records_a_turn` records in
    one call, since a lookup takes the time of this thread. After `load_timeout` a request starts with what has been found."""
    left = config.records_a_turn
    for job, since in list(queues.asking.items()):
        if left <= 0:
            return
        found = learn_some(directory, job.request.salt, job.request.prompt, now, left)
        left -= max(1, found.records)  # a lookup takes time even if it finds nothing
        if found.more and not 0 < config.load_timeout <= now - since:
            return
        del queues.asking[job]


def _may_end(queues: Queues, directory: Directory) -> bool:
    """True if pages may become free without a new decision: something runs, loads or is being copied."""
    held = queues.running or queues.leaving or queues.parked or queues.draining
    return bool(held or directory.in_flight or directory.overdue)


def _plan(
    queues: Queues, directory: Directory, config: SchedConfig, costs: Costs, waiting: Waiting
) -> Plan | Wait | None:
    """How the request would start. None for a suspended one that should resume at a rung instead."""
    request, tokens, suspended = waiting.job.request, waiting.job.tokens.view, waiting.suspended
    if suspended is None:
        external_hit = queues.external_hits.get(waiting.job)
        return directory.plan(request.salt, tokens, costs, config.cache and request.read_cache, external_hit)
    if suspended.condemnations != directory.condemnations:
        return None
    return directory.plan_return(request.salt, tokens, suspended.computed, costs)


def _refuse(queues: Queues, at: int, answer: Wait) -> None:
    """End the request at `at` in the queue with an error: there will never be room for it."""
    job = queues.waiting.pop(at).job
    message = f"{len(job.tokens)} tokens need {answer.needed} pages, an idle engine offers {answer.available}"
    message += ": shorten the prompt or raise --device-memory"
    queues.events.append(Finished(job.request.id, "error", message))


def _giving_reason(plan: Plan, given_up: tuple[Reason, int] | None) -> Plan:
    """`plan`, with the reason of a load that was given up, if it reaches no further for that."""
    if given_up is None or plan.aim.boundary >= given_up[1]:
        return plan
    return plan._replace(reason=given_up[0], skipped=max(plan.skipped, given_up[1]))


def _must_wait(queues: Queues, directory: Directory, plan: Plan, costs: Costs, now: float) -> bool:
    """Make room for the target pages of a load. True if copies under way will free them without dropping only copies: wait for these."""
    pages = (plan.aim.leg_end - plan.aim.shared) // directory.tree.block
    # pages that the plan itself will lease are not available to it
    pinned = pinned_kv(plan.survey, directory.tree.block) + pinned_images(plan.options)
    instant = directory.room().instant - pinned
    if pages == 0 or pages <= instant:
        return False
    making = make_room(directory, pages - instant, costs, now)
    queues.moves.extend(making.moves)
    return making.coming


def land(queues: Queues, directory: Directory, config: SchedConfig, report: Report, clock: Clock) -> None:
    """Handle the end of one copy. Ignores reports of unknown tickets."""
    if copy_landed(directory, report):
        return
    for parked in list(queues.parked.values()):
        if report.ticket in parked.loading.waiting:
            _advance(queues, directory, config, parked, reported(parked.loading, report), clock)
            return
    for index, draining in enumerate(queues.draining):
        if report.ticket in draining.loading.waiting:
            rest = reported(draining.loading, report)
            queues.draining[index] = replace(draining, loading=rest)
            if not rest.waiting:
                del queues.draining[index]
                abandon(directory, rest.held)
                queues.slots.append(draining.slot)
            return


def _advance(
    queues: Queues, directory: Directory, config: SchedConfig, parked: Parked, loading: Loading, clock: Clock
) -> None:
    request_id = parked.job.request.id
    if loading.waiting:
        queues.parked[request_id] = replace(parked, loading=loading, heard=clock.now())
        return
    del queues.parked[request_id]
    if _condemned(directory, parked):
        _start_over(queues, directory, parked)
        return
    now = clock.now()
    waiting = Waiting(parked.job, parked.suspended)
    _enter(queues, directory, config, waiting, parked.slot, settle(directory, loading, now), now)


def _condemned(directory: Directory, parked: Parked) -> bool:
    """True if what its load read, or what it would continue from, has been condemned meanwhile."""
    held, suspended = parked.loading.held, parked.suspended
    if directory.is_distrusted(parked.job.request.salt, held.plan.aim.external_hit):
        return True
    if suspended is not None and suspended.condemnations != directory.condemnations:
        return True
    return any(directory.tree.is_condemned(lease.item.node) for lease in (*held.leases, held.path))


def _start_over(queues: Queues, directory: Directory, parked: Parked) -> None:
    """Release everything and let the request wait again, to be planned afresh."""
    if parked.suspended is not None:
        let_go(directory, parked.suspended)
    abandon(directory, parked.loading.held)
    queues.slots.append(parked.slot)
    enqueue(queues, parked.job)


def _enter(
    queues: Queues,
    directory: Directory,
    config: SchedConfig,
    waiting: Waiting,
    slot: int,
    state: Runnable | Loading,
    now: float,
) -> None:
    """Park the request while it loads, or let it run."""
    job, suspended = waiting.job, waiting.suspended
    if isinstance(state, Loading):
        queues.moves.extend(state.moves)
        queues.parked[job.request.id] = Parked(job, slot, state, now, suspended)
        if job.starts == 0:
            queues.events.append(Loads(job.request.id, now))
        return
    gained = max(0, state.boundary - job.alone) if job.waits and not job.starts else 0
    outcome = replace(state.outcome, readmission=job.starts > 0, coalesced=gained)
    if job.given_legs:
        outcome, job.given_legs = replace(outcome, legs=(*job.given_legs, *outcome.legs)), ()
    job.given_up = None
    if not job.internal:
        queues.tally.add(outcome)
    if job.starts == 0:
        job.resumed = outcome
        queues.events.append(Admitted(job.request.id, outcome, now))
    job.starts += 1
    queues.board.begin(slot, state.boundary, job.tokens.view, len(job.request.prompt), job.root)
    running = Running(
        job,
        slot,
        queues.board,
        state.table,
        state.path,
        state.image,
        state.shared,
        _start(state),
        _rungs(directory, config, job, outcome),
    )
    if suspended is not None and state.option == 0:
        attach(directory, running, suspended)
        queues.returns += 1
    elif suspended is not None:
        let_go(directory, suspended)
        # its plan counted on these pages: reserve as many
        directory.promise(state.table, state.table.promised + len(suspended.pages))
    ask_for_rungs(queues, running)
    enter(queues, running)


def _start(state: Runnable) -> StateStart:
    if state.image is not None:
        pages = state.image.item.at[state.image.tier]
        assert pages is not None, "a leased image stays where it is"
        return FromImage(pages)
    return Carry() if state.state_loaded else Fresh()


def _rungs(
    directory: Directory, config: SchedConfig, job: Job, outcome: AdmissionOutcome
) -> tuple[tuple[int, RungKind], ...]:
    if not config.cache or not job.request.write_cache:
        return ()
    places = job.request.places
    return prompt_rungs(len(job.tokens), outcome.boundary, outcome.diverged_at, directory.config, places)
