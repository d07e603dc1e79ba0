"""From waiting to running, by way of a load where one pays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from stepwell.base.clock import Clock
from stepwell.cache.admission import Loading, Ready, abandon, commit, reported, settle
from stepwell.cache.config import Costs
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Move, Report
from stepwell.cache.outcome import AdmissionOutcome, Reason
from stepwell.cache.placement import prompt_rungs
from stepwell.cache.plan import Plan, Wait, pinned_images, pinned_kv
from stepwell.cache.shed import demote, landed
from stepwell.cache.tally import Tally
from stepwell.cache.tree import RungKind
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Draining, Job, Parked, Running, Waiting
from stepwell.sched.request import Admitted, Event, Finished
from stepwell.sched.step import Carry, Fresh, FromImage, StateStart


@dataclass(slots=True, eq=False)
class Queues:
    """The scheduler's whole state beside the directory. `waiting` and `running` are in order of arrival."""

    slots: list[int]
    waiting: list[Waiting] = field(default_factory=list)
    parked: dict[str, Parked] = field(default_factory=dict)
    draining: list[Draining] = field(default_factory=list)
    running: list[Running] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    rungs_left: int = 0
    rungs_skipped: int = 0
    preemptions: int = 0

    def find_running(self, request_id: str) -> Running | None:
        return next((r for r in self.running if r.job.request.id == request_id), None)

    def find_waiting(self, request_id: str) -> Waiting | None:
        return next((w for w in self.waiting if w.job.request.id == request_id), None)


def enqueue(queues: Queues, job: Job) -> None:
    """Put `job` where its arrival says; a preempted one comes back before whoever came after it."""
    at = len(queues.waiting)
    while at and queues.waiting[at - 1].job.order > job.order:
        at -= 1
    queues.waiting.insert(at, Waiting(job))


def admit(queues: Queues, directory: Directory, config: SchedConfig, costs: Costs, clock: Clock) -> None:
    """Start whoever waits, first come first served, while there is a live slot and room."""
    while queues.waiting and queues.slots:
        job = queues.waiting[0].job
        request, tokens = job.request, job.tokens.view
        answer = directory.plan(request.salt, tokens, costs, read=config.cache and request.read_cache)
        if isinstance(answer, Wait):
            if not (queues.running or queues.parked or queues.draining or directory.in_flight):
                queues.waiting.pop(0)
                message = f"{len(tokens)} tokens need {answer.needed} pages, an idle engine offers {answer.available}"
                message += ": shorten the prompt or raise --device-memory"
                queues.events.append(Finished(request.id, "error", message))
                continue
            return
        if _must_wait(queues, directory, answer):
            return
        queues.waiting.pop(0)
        slot = queues.slots.pop()
        # a copy: the tokens of a job may move while its load is in flight, a plan's may not
        now = clock.now()
        state = commit(directory, _giving_reason(answer, job.given_up), request.id, tokens.copy(), slot, now)
        _enter(queues, directory, config, job, slot, state, now)


def _giving_reason(plan: Plan, given_up: tuple[Reason, int] | None) -> Plan:
    """`plan`, saying so where it reaches no further because a load was given up."""
    if given_up is None or plan.aim.boundary >= given_up[1]:
        return plan
    return replace(plan, reason=given_up[0], skipped=max(plan.skipped, given_up[1]))


def _must_wait(queues: Queues, directory: Directory, plan: Plan) -> bool:
    """Whether the target pages of a load become free without a loss once copies downwards have ended."""
    pages = (plan.aim.leg_end - plan.aim.shared) // directory.tree.block
    pinned = pinned_kv(plan.survey) + pinned_images(plan.options)  # what the plan itself will hold is no room for it
    instant = directory.room().instant - pinned
    if pages == 0 or pages <= instant:
        return False
    queues.moves.extend(demote(directory, pages - instant))
    return bool(directory.in_flight)


def land(queues: Queues, directory: Directory, config: SchedConfig, report: Report, clock: Clock) -> None:
    """Act on the end of one copy. A report that no one waits for any more is ignored."""
    if landed(directory, report):
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
    now = clock.now()
    _enter(queues, directory, config, parked.job, parked.slot, settle(directory, loading, now), now)


def _enter(
    queues: Queues, directory: Directory, config: SchedConfig, job: Job, slot: int, state: Ready | Loading, now: float
) -> None:
    """Park `job` or let it run."""
    if isinstance(state, Loading):
        queues.moves.extend(state.moves)
        queues.parked[job.request.id] = Parked(job, slot, state, now)
        return
    outcome = replace(state.outcome, readmission=job.starts > 0)
    job.given_up = None
    if not job.internal:
        queues.tally.add(outcome)
    if job.starts == 0:
        queues.events.append(Admitted(job.request.id, outcome))
    job.starts += 1
    running = Running(
        job,
        slot,
        state.table,
        state.path,
        state.image,
        state.boundary,
        state.shared,
        _start(state),
        _rungs(directory, config, job, outcome),
    )
    at = len(queues.running)
    while at and queues.running[at - 1].job.order > job.order:
        at -= 1
    queues.running.insert(at, running)


def _start(state: Ready) -> StateStart:
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
    return prompt_rungs(len(job.tokens), outcome.boundary, outcome.diverged_at, directory.config)
