"""Asking an external store, before requests are planned, what it could serve of their prompts.

    waiting ──▶ probing: asked, not answered yet ──┬──▶ an offer: leased until the load has ended, or nothing comes of it
                others overtake it meanwhile       └──▶ nothing: planned without; so too when no answer comes in time

No turn waits for an answer. A question that is given up is released at once, so that whoever works on it may stop; an answer that comes
all the same is released as it comes.
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Protocol

from stepwell.cache.directory import Directory
from stepwell.cache.external.ledger import What
from stepwell.cache.external.offer import Answer, Offer, Probe, Query
from stepwell.cache.external.question import question
from stepwell.cache.moves import Name
from stepwell.cache.reuse.plan import Plan
from stepwell.sched.config import SchedConfig
from stepwell.sched.job import Job, Waiting
from stepwell.sched.queues import Queues

AHEAD = 8
"""At most the free live slots and so many requests more are asked for at a time: each answer holds a lease, which should not wait long for
its request. Those that wait for another's prompt to be computed do not count: they would keep all others from being asked for."""


class ExternalStore(Protocol):
    """A store with an index of its own, on all ranks. Nothing here waits: whatever takes time is done beside the engine. Its bytes move as
    those of any other tier, by a `Mover`."""

    def look_up(self, query: Query) -> None:
        """Begin to answer this. What is found is leased, on all ranks, until `release`."""

    def answers(self) -> Sequence[Answer]:
        """Answers since the last call, in any order."""

    def release(self, number: int) -> None:
        """The lease of query `number` ends; where it has not been answered, nobody waits for that any more. Unknown numbers are
        ignored."""

    def forget(self, what: What, names: Sequence[Name]) -> None:
        """A load of these has failed: nobody is to be offered them again before they have been stored anew."""


def probe(queues: Queues, directory: Directory, config: SchedConfig, store: ExternalStore | None, now: float) -> None:
    """Take in the answers that have come, give up those that are overdue, and ask for whoever is next in line."""
    if store is None:
        return
    for answer in store.answers():
        _take_in(queues, directory, config, store, answer, now)
    offered = 0
    if queues.offers or queues.probing:
        waits = {one.job: one for one in queues.waiting}
        _give_up(queues, directory, store, waits, now)
        _withdraw_offers(queues, directory, waits, now)
        offered = sum(offer is not None and waits[job].behind is None for job, offer in queues.offers.items())
    room = AHEAD + len(queues.slots) - len(queues.probing) - offered
    for waiting in queues.waiting:
        if waiting.job in queues.offers or waiting.job in queues.probing:
            continue
        if not _asks(directory, config, waiting):
            queues.offers[waiting.job] = None
        elif room > 0:
            _ask(queues, directory, config, store, waiting, now)
            room -= 1


def taken(queues: Queues, directory: Directory, job: Job, plan: Plan) -> None:
    """`job` has been admitted by `plan`: its offer is part of that, or is let go."""
    offer = queues.offers.pop(job, None)
    if offer is not None and plan.aim.offer is None:
        _let_go(directory, offer)


def tell(directory: Directory, store: ExternalStore | None) -> None:
    """Tell the store which leases have ended, and what it is to forget."""
    external = directory.external
    if external is None or store is None:
        return
    for what, name in external.forgotten:
        store.forget(what, (name,))
    for number in external.released:
        store.release(number)
    external.forgotten, external.released = [], []


def _asks(directory: Directory, config: SchedConfig, waiting: Waiting) -> bool:
    """Whether the store could serve this request at all, as far as that can be said without a look at its prompt. O(1)."""
    job, external = waiting.job, directory.external
    assert external is not None
    may = config.cache and job.request.read_cache and waiting.kept is None and job.given_up is None
    return may and len(job.tokens.view) > external.least


def _ask(
    queues: Queues, directory: Directory, config: SchedConfig, store: ExternalStore, waiting: Waiting, now: float
) -> None:
    job, external = waiting.job, directory.external
    assert external is not None
    made = question(directory, external.number(), job.request.salt, job.tokens.view.copy())
    if made is None:
        queues.offers[job] = None
        return
    query, trail = made
    queues.probing[job] = Probe(query, trail, now + config.lookup_timeout)
    store.look_up(query)


def _take_in(
    queues: Queues, directory: Directory, config: SchedConfig, store: ExternalStore, answer: Answer, now: float
) -> None:
    job = next((job for job, asked in queues.probing.items() if asked.query.number == answer.number), None)
    if job is None:
        store.release(answer.number)  # too late
        return
    external, asked = directory.external, queues.probing.pop(job)
    assert external is not None
    query, reach, boundary = asked.query, answer.reach, answer.boundary
    external.saw("kv", (name for name in query.kv if name.end <= reach), answer.number)
    external.missed("kv", (name for name in query.kv if name.end > reach))
    external.missed("image", (name for name in query.images if boundary < name.end <= reach))
    if not boundary:
        queues.offers[job] = None
        return
    external.hold(answer.number)
    until = now + config.offer_seconds
    queues.offers[job] = Offer(answer.number, asked.trail, query.start, boundary, external.least, until)


def _give_up(queues: Queues, directory: Directory, store: ExternalStore, waits: Container[Job], now: float) -> None:
    """Release the questions that are overdue, those of requests that wait no longer, and those whose answer would not be trusted."""
    external = directory.external
    if external is None:
        return
    for job, asked in list(queues.probing.items()):
        overdue = asked.due <= now
        if overdue or job not in waits or external.is_distrusted(job.request.salt, asked.trail):
            store.release(asked.query.number)
            del queues.probing[job]
            if overdue:
                queues.offers[job] = None


def _withdraw_offers(queues: Queues, directory: Directory, waits: Container[Job], now: float) -> None:
    """Let go of what was offered to requests that wait no longer, what has been offered for too long, and what is not trusted any more;
    those who wait are asked for again."""
    for job, offer in list(queues.offers.items()):
        stale = directory.is_distrusted(job.request.salt, offer) or (offer is not None and offer.until <= now)
        if stale or job not in waits:
            del queues.offers[job]
            if offer is not None:
                _let_go(directory, offer)


def _let_go(directory: Directory, offer: Offer) -> None:
    assert directory.external is not None
    directory.external.let_go(offer.number)
