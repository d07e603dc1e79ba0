"""Asks an external store what it has of prompts, before their requests are planned.

    waiting ──▶ probing: asked, not answered yet ──┬──▶ an ExternalHit: leased until the load has ended, or it is not used
                others overtake it meanwhile       └──▶ nothing: planned without; the same if no answer comes in time

No turn waits for an answer. A question that is given up is released at once, so that whoever works on it may stop; an answer that comes
all the same is released as it comes.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

from stepwell.cache.directory import Directory
from stepwell.cache.external.ledger import What
from stepwell.cache.external.query import ExternalHit, OpenQuery, Query, QueryAnswer, question
from stepwell.cache.moves import Name
from stepwell.cache.reuse.plan import Plan
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Job, Waiting
from stepwell.sched.queues import Queues

AHEAD = 8
"""At most so many requests more than there are free live slots are asked for at a time: each answer holds a lease, which should not wait
long for its request. Followers do not count, or they would keep other requests from being asked for."""


class ExternalStore(Protocol):
    """A store with an index of its own, on all ranks. No method waits: slow work is done beside the engine. A `Mover` copies its bytes, as
    for any tier."""

    def look_up(self, query: Query) -> None:
        """Begin to answer `query`. What is found is leased, on all ranks, until `release`."""

    def answers(self) -> Sequence[QueryAnswer]:
        """Answers since the last call, in any order."""

    def release(self, number: int) -> None:
        """End the lease of query `number`; if it has not been answered, its answer is not waited for any more. Unknown numbers are
        ignored."""

    def forget(self, what: What, names: Sequence[Name]) -> None:
        """Drop these objects, of which a load has failed: lookups must not find them until they are stored again."""


def probe(queues: Queues, directory: Directory, config: SchedConfig, store: ExternalStore | None, now: float) -> None:
    """Handle answers that have come, give up queries that are overdue, and ask for the next waiting requests."""
    if store is None:
        return
    for answer in store.answers():
        _take_in(queues, directory, config, store, answer, now)
    leased = 0
    if queues.external_hits or queues.probing:
        waits = {one.job: one for one in queues.waiting}
        _give_up(queues, directory, store, waits, now)
        _drop_stale_hits(queues, directory, waits, now)
        leased = sum(
            external_hit is not None and waits[job].following is None
            for job, external_hit in queues.external_hits.items()
        )
    room = AHEAD + len(queues.slots) - len(queues.probing) - leased
    for waiting in queues.waiting:
        if waiting.job in queues.external_hits or waiting.job in queues.probing:
            continue
        if not _asks(directory, config, waiting):
            queues.external_hits[waiting.job] = None
        elif room > 0:
            _ask(queues, directory, config, store, waiting, now)
            room -= 1


def taken(queues: Queues, directory: Directory, job: Job, plan: Plan) -> None:
    """Note that `job` has been admitted by `plan`: releases its hit if the plan does not use it."""
    external_hit = queues.external_hits.pop(job, None)
    if external_hit is not None and plan.aim.external_hit is None:
        _let_go(directory, external_hit)


def tell(directory: Directory, store: ExternalStore | None) -> None:
    """Tell the store which leases have ended, and which objects to drop."""
    external = directory.external
    if external is None or store is None:
        return
    for what, name in external.forgotten:
        store.forget(what, (name,))
    for number in external.released:
        store.release(number)
    external.forgotten, external.released = [], []


def _asks(directory: Directory, config: SchedConfig, waiting: Waiting) -> bool:
    """True if the store may help this request, judged without its prompt. O(1)."""
    job, external = waiting.job, directory.external
    assert external is not None
    may = config.cache and job.request.read_cache and waiting.suspended is None and job.given_up is None
    return may and len(job.tokens.view) > external.least


def _ask(
    queues: Queues, directory: Directory, config: SchedConfig, store: ExternalStore, waiting: Waiting, now: float
) -> None:
    job, external = waiting.job, directory.external
    assert external is not None
    made = question(directory, external.number(), job.request.salt, job.tokens.view.copy())
    if made is None:
        queues.external_hits[job] = None
        return
    query, trail = made
    queues.probing[job] = OpenQuery(query, trail, now + config.lookup_timeout)
    store.look_up(query)


def _take_in(
    queues: Queues, directory: Directory, config: SchedConfig, store: ExternalStore, answer: QueryAnswer, now: float
) -> None:
    job = next((job for job, asked in queues.probing.items() if asked.query.number == answer.number), None)
    if job is None:
        store.release(answer.number)  # it came too late
        return
    external, asked = directory.external, queues.probing.pop(job)
    assert external is not None
    query, reach, boundary = asked.query, answer.reach, answer.boundary
    external.saw("kv", (name for name in query.kv if name.end <= reach), answer.number)
    external.missed("kv", (name for name in query.kv if name.end > reach))
    external.missed("image", (name for name in query.images if boundary < name.end <= reach))
    if not boundary:
        queues.external_hits[job] = None
        return
    external.hold(answer.number)
    until = now + config.external_lease_s
    queues.external_hits[job] = ExternalHit(answer.number, asked.trail, query.start, boundary, external.least, until)


def _give_up(queues: Queues, directory: Directory, store: ExternalStore, waits: Container[Job], now: float) -> None:
    """Release queries that are overdue, of requests that no longer wait, and whose answers would not be trusted."""
    external = directory.external
    if external is None:
        return
    for job, asked in list(queues.probing.items()):
        overdue = asked.due <= now
        if overdue or job not in waits or external.is_distrusted(job.request.salt, asked.trail):
            store.release(asked.query.number)
            del queues.probing[job]
            if overdue:
                queues.external_hits[job] = None


def _drop_stale_hits(queues: Queues, directory: Directory, waits: Container[Job], now: float) -> None:
    """Release hits of requests that wait no longer, hits that have been leased for too long, and hits that are not trusted any more;
    waiting requests are asked for again."""
    for job, external_hit in list(queues.external_hits.items()):
        stale = directory.is_distrusted(job.request.salt, external_hit) or (
            external_hit is not None and external_hit.until <= now
        )
        if stale or job not in waits:
            del queues.external_hits[job]
            if external_hit is not None:
                _let_go(directory, external_hit)


def _let_go(directory: Directory, external_hit: ExternalHit) -> None:
    assert directory.external is not None
    directory.external.let_go(external_hit.number)
