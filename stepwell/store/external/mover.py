"""Threads that ask an external store beside the engine. Nothing that they wait for can hold up anything else.

look_up ──▶ ┌ finders ┐ ──▶ answers                       a call that is not back by its deadline counts as failed; what it
loads   ──▶ │ loaders │ ──▶ memory ─▶ verified ─▶ slots   brings later touches no slot, since its ticket has been closed
saves   ──▶ └ savers  ┘ ◀── copied from slots at once
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Generic, TypeVar

import numpy as np

from stepwell.base.clock import Clock, WallClock
from stepwell.base.errors import StoreError
from stepwell.cache.external.ledger import What
from stepwell.cache.external.query import Query, QueryAnswer
from stepwell.cache.moves import Extent, Move, Name, Report, Task, Tier, moves_of
from stepwell.store.arena import Rows
from stepwell.store.disk.gate import Fence, Gate
from stepwell.store.external import objects
from stepwell.store.external.backend import Backend
from stepwell.store.tickets import CopyTotal, Tickets, Way, describe

log = logging.getLogger("stepwell.store")


@dataclass(slots=True, eq=False)
class _Job:
    """A move under way, to be given up at `due`; not while it is `copying` between memory and slots, which waits for no store."""

    move: Move
    fence: Fence
    due: float
    began: float
    copying: bool = False


class ExternalMover:
    """A `Mover` for moves from and to an external store, and the `ExternalStore` of the loop (`stepwell.sched.probe`).

    `patience`: seconds after which a copy counts as failed, whatever the store is doing. Every ticket is reported once. `start`, `poll`,
    `wait`, `look_up`, `answers`, `release`, `forget` and `close` belong to the engine's thread; the backend is not closed with the mover.
    """

    def __init__(
        self,
        backend: Backend,
        gate: Gate,
        page_bytes: int,
        block: int,
        *,
        patience: float = 10.0,
        threads: int = 2,
        clock: Clock | None = None,
        rank: int = 0,
    ) -> None:
        """`rank`: whose slots these are; errors name it."""
        self._backend, self._gate = backend, gate
        self._page_bytes, self._block = page_bytes, block
        self._patience = patience
        self._rank = rank
        self._clock = clock or WallClock()
        self._tickets = Tickets(page_bytes)
        self._open: dict[int, _Job] = {}
        self._lock = threading.Lock()  # of `_open`, and of `copying`
        self._answers: queue.SimpleQueue[QueryAnswer] = queue.SimpleQueue()
        self._asked: dict[int, Query] = {}
        self._told_of: set[tuple[str, type]] = set()
        self._closing = False
        self._finds = _Pool("stepwell-external-find", threads, self._find)
        self._loads = _Pool("stepwell-external-load", threads, self._load)
        self._saves = _Pool("stepwell-external-save", 1, self._save)
        self._orders = _Pool("stepwell-external-order", 1, self._obey)

    def __enter__(self) -> ExternalMover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def queued(self) -> int:
        """Copies and lookups that no thread has begun, without those given up."""
        return len(self._finds) + len(self._loads) + len(self._saves)

    @property
    def busy(self) -> bool:
        """Whether anything is waited for, or has come that nobody has taken."""
        return bool(self._open or self._asked or self._tickets.has_reports)

    # ---- copies -------------------------------------------------------------------------------------------

    def start(self, tasks: Sequence[Task]) -> None:
        """Queue these; never waits. StoreError once the mover is closed."""
        if self._closing:
            raise StoreError("the external mover is closed: it takes no more moves")
        moves, now = moves_of(tasks), self._clock.now()
        self._tickets.open(moves)
        for move in moves:
            job = _Job(move, self._gate.fence(), now + self._patience, now)
            with self._lock:
                self._open[move.ticket] = job
            self._pool_of(move).put(job)

    def poll(self) -> list[Report]:
        """Reports since the last call; never waits. Copies that are overdue are given up here."""
        now = self._clock.now()
        for job in [job for job in list(self._open.values()) if job.due <= now]:
            self._give_up(job, f"{self._told(job)}: no answer within {self._patience:g} s")
        return self._tickets.poll()

    def wait(self, seconds: float) -> None:
        """Wait until `poll` would return something, at most `seconds`."""
        if self._answers.empty():
            self._tickets.wait(seconds)

    def totals(self) -> dict[Way, CopyTotal]:
        """Copies so far by (from, to); None is a live state."""
        return self._tickets.totals()

    def close(self, patience: float = 5.0) -> None:
        """Fail what is under way and end the threads; one that still waits for the store after `patience` seconds is left to itself."""
        self._closing = True
        for job in list(self._open.values()):
            self._give_up(job, "the external mover was closed")
        pools = (self._finds, self._loads, self._saves, self._orders)
        for pool in pools:
            pool.stop()
        end = time.monotonic() + patience
        for pool in pools:
            pool.join(end)

    # ---- questions ----------------------------------------------------------------------------------------

    def look_up(self, query: Query) -> None:
        """Begin to answer this."""
        self._asked[query.number] = query
        self._finds.put(query)

    def answers(self) -> Sequence[QueryAnswer]:
        """Answers since the last call."""
        found: list[QueryAnswer] = []
        while not self._answers.empty():
            found.append(self._answers.get())
        for answer in found:
            self._asked.pop(answer.number, None)
        return found

    def release(self, number: int) -> None:
        """End a lease, or give up a query that has not been answered; orders are carried out in turn, by a thread."""
        query = self._asked.pop(number, None)
        if query is not None:
            self._finds.discard(query)
        self._orders.put(lambda: self._backend.release(number))

    def forget(self, what: What, names: Sequence[Name]) -> None:
        """Drop these objects."""
        self._orders.put(lambda: self._backend.forget(what, names))

    # ---- what the threads do ------------------------------------------------------------------------------

    def _find(self, query: Query) -> None:
        """Answer this, unless it has been given up: then nothing stays leased, and nothing is told."""

        def is_waited_for() -> bool:
            return query.number in self._asked and not self._closing

        if not is_waited_for():
            return
        try:
            answer = self._backend.find(query, is_waited_for)
        except Exception as error:
            self._complain("a lookup", error)
            answer = QueryAnswer(query.number, query.start, 0)
        if not is_waited_for():
            self._obey(lambda: self._backend.release(query.number))
            return
        self._answers.put(answer)
        with self._tickets.changed:
            self._tickets.changed.notify_all()

    def _obey(self, order: Callable[[], None]) -> None:
        try:
            order()
        except Exception as error:
            self._complain(
                "an order", error
            )  # what is not forgotten fails again when it is next loaded; what is not released ends by the store's own time

    def _complain(self, what: str, error: Exception) -> None:
        """Log an unexpected error of the store, once for each type: a lasting failure would else look like a cache that never hits."""
        if not isinstance(error, StoreError) and (what, type(error)) not in self._told_of:
            self._told_of.add((what, type(error)))
            log.warning("%s of the external store failed: %s; others like it are not told of", what, describe(error))

    def _load(self, job: _Job) -> None:
        """Bring all of a move into memory, verify it, and only then into its slots: as long as the ticket is open."""
        if job.move.ticket not in self._open:
            return
        move, at = job.move, 0
        try:
            parts: list[Rows] = []
            for name in move.names:
                pages = (name.end - name.start) // self._block or len(move.source.slots)
                found = self._backend.get(move.what, name)
                parts.append(objects.read(found, move.what, name, pages, self._page_bytes, self._rank))
                at += pages
            more = at - len(move.source.slots)  # pages of the first chunk that the device has already
            if not 0 <= more < len(parts[0]):
                raise StoreError(f"{at} pages named, {len(move.source.slots)} asked for")
            rows = (parts[0] if len(parts) == 1 else np.concatenate(parts))[more:]
            if not self._claim(job):
                return
            self._gate.deliver(move.target, rows, job.fence)
        except Exception as error:
            self._end(job, describe(error))
        else:
            self._end(job)

    def _save(self, job: _Job) -> None:
        """Copy the slots while the ticket is open, which holds them; then the store may take its time."""
        move = job.move
        try:
            if not self._claim(job):
                return
            rows = np.array(self._gate.fetch(move.source, job.fence), copy=True)
            job.copying = False
            (name,) = move.names
            self._backend.put(move.what, name, rows)
        except Exception as error:
            self._end(job, describe(error))
        else:
            self._end(job)

    def _pool_of(self, move: Move) -> _Pool[_Job]:
        return self._loads if move.source.tier == Tier.EXTERNAL else self._saves

    def _claim(self, job: _Job) -> bool:
        """Whether the ticket is still open; if so, nobody gives it up while its slots are being copied."""
        with self._lock:
            job.copying = job.move.ticket in self._open
        return job.copying

    def _give_up(self, job: _Job, error: str) -> None:
        with self._lock:
            if job.copying or self._open.pop(job.move.ticket, None) is None:
                return
        self._pool_of(job.move).discard(job)
        self._report(job, error)

    def _end(self, job: _Job, error: str = "") -> None:
        """Report the ticket, unless that has been done."""
        with self._lock:
            if self._open.pop(job.move.ticket, None) is None:
                return
        self._report(job, error)

    def _report(self, job: _Job, error: str) -> None:
        """Say what has become of a move; of one that failed, which leg, tokens and rank it was is in the log."""
        if error and not self._closing:
            up = job.move.source.tier == Tier.EXTERNAL
            log.warning("%s the external store failed: %s", "a load from" if up else "a copy into", error)
        self._tickets.end(job.move, error, self._clock.now() - job.began)

    def _told(self, job: _Job) -> str:
        whole = replace(job.move.names[-1], start=job.move.names[0].start)
        return objects.describe(job.move.what, whole, self._rank)


JobT = TypeVar("JobT", bound=Hashable)


class _Pool(Generic[JobT]):
    """Threads that carry out what is put in, in order. They are daemons: a store that never answers keeps no process alive."""

    def __init__(self, name: str, threads: int, work: Callable[[JobT], None]) -> None:
        self._jobs: dict[JobT, None] = {}  # in their order
        self._changed = threading.Condition()
        self._stopped = False
        self._work = work
        self._threads = [threading.Thread(target=self._run, name=f"{name}-{i}", daemon=True) for i in range(threads)]
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        """Jobs that no thread has begun."""
        return len(self._jobs)

    def put(self, job: JobT) -> None:
        with self._changed:
            self._jobs[job] = None
            self._changed.notify()

    def discard(self, job: JobT) -> None:
        """Forget a job that no thread has begun; any other is ignored."""
        with self._changed:
            self._jobs.pop(job, None)

    def stop(self) -> None:
        """End the threads once they have done what was put in."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def join(self, end: float) -> None:
        """Wait for the threads until `end`, by the monotonic clock."""
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._jobs or self._stopped)
                if not self._jobs:
                    return
                job = next(iter(self._jobs))
                del self._jobs[job]
            self._work(job)


def is_external(move: Move) -> bool:
    """Whether a move reads from an external store, or writes to it."""
    return move.source.tier == Tier.EXTERNAL or (isinstance(move.target, Extent) and move.target.tier == Tier.EXTERNAL)
