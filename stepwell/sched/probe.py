"""Asking an external store, before requests are planned, what it could serve of their prompts.

    waiting ──▶ probing: asked, not answered yet ──┬──▶ an offer: leased until the load has ended, or nothing comes of it
                others overtake it meanwhile       └──▶ nothing: planned without; so too when no answer comes in time

No turn waits for an answer. An answer that comes too late is released as it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""Of those who wait, the first so many are asked for: an answer is leased, and should not wait long for its request."""


class ExternalStore(Protocol):
    """A store with an index of its own, on all ranks. Nothing here waits: whatever takes time is done beside the engine. Its bytes move as
    those of any other tier, by a `Mover`."""

    def look_up(self, query: Query) -> None:
        """Begin to answer this. What is found is leased, on all ranks, until `release`."""

    def answers(self) -> Sequence[Answer]:
        """Answers since the last call, in any order."""

    def release(self, number: int) -> None:
        """The lease of query `number` ends, once it has been answered. Unknown numbers are ignored."""

    def forget(self, what: What, names: Sequence[Name]) -> None:
        """A load of these has failed: nobody is to be offered them again before they have been stored anew."""


def probe(queues: Queues, directory: Directory, config: SchedConfig, store: ExternalStore | None, now: float) -> None:
    """Take in the answers that have come, give up those that are overdue, and ask for whoever is next in line."""
    if store is None:
        return
    for answer in store.answers():
        _take_in(queues, directory, config, store, answer, now)
    for job in [job for job, asked in queues.probing.items() if asked.due <= now]:
        del queues.probing[job]
        queues.offers[job] = None
    _forget_those_who_left(queues, directory)
    for waiting in queues.waiting[:AHEAD]:
        job = waiting.job
        offer = queues.offers.get(job)
        if offer is not None and offer.until <= now:
            _let_go(directory, offer)
            del queues.offers[job]
        if job not in queues.offers and job not in queues.probing:
            _ask(queues, directory, config, store, waiting, now)


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


def _ask(
    queues: Queues, directory: Directory, config: SchedConfig, store: ExternalStore, waiting: Waiting, now: float
) -> None:
    job, external = waiting.job, directory.external
    assert external is not None
    asks = config.cache and job.request.read_cache and waiting.kept is None and job.given_up is None
    made = question(directory, external.number(), job.request.salt, job.tokens.view.copy()) if asks else None
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


def _forget_those_who_left(queues: Queues, directory: Directory) -> None:
    """Let go of what was offered to requests that wait no longer."""
    if not (queues.offers or queues.probing):
        return
    waiting = {one.job for one in queues.waiting}
    for job in [job for job in queues.probing if job not in waiting]:
        del queues.probing[job]
    for job in [job for job in queues.offers if job not in waiting]:
        offer = queues.offers.pop(job)
        if offer is not None:
            _let_go(directory, offer)


def _let_go(directory: Directory, offer: Offer) -> None:
    assert directory.external is not None
    directory.external.let_go(offer.number)
