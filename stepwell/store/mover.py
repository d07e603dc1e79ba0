"""The copy worker: a thread that carries out moves in order while the engine computes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType

from stepwell.base.clock import Clock, WallClock
from stepwell.base.errors import StoreError
from stepwell.cache.moves import Move, Report, Task, Tier, moves_of
from stepwell.store.copier import Copier, Fence, Flight
from stepwell.store.tickets import CopyTotal, Tickets, Way, describe


@dataclass(frozen=True, slots=True)
class _Job:
    move: Move
    fence: Fence


@dataclass(frozen=True, slots=True)
class _InFlight:
    move: Move
    flight: Flight
    begun: float


class CopyMover:
    """A `Mover` (see `stepwell.sched.step`) with one worker thread: first come, first served.

        start ──▶ jobs ──▶ worker: begin … land ──▶ reports ──▶ poll
                             └─ at most `in_flight` begun and not landed ─┘

    Every ticket is reported exactly once, whatever happens: an exception becomes a report with its text, and closing
    the mover fails what had not begun. `start`, `poll`, `wait`, `drain` and `close` belong to one thread, the
    engine's.

    A copier that completes each copy as it begins it (memory to memory) has one in flight; on a CUDA stream several
    overlap.
    """

    def __init__(self, copier: Copier, *, in_flight: int = 4, clock: Clock | None = None) -> None:
        assert in_flight >= 1
        self._copier = copier
        self._limit = in_flight
        self._clock = clock or WallClock()
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._tickets = Tickets(copier.page_bytes)
        self._closing = False
        self._landed: dict[Tier, float] = {}  # when the last copy out of a tier ended
        self._thread = threading.Thread(target=self._work, name="stepwell-copies", daemon=True)
        self._thread.start()

    def __enter__(self) -> CopyMover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def listen(self, ring: Callable[[], None]) -> None:
        """Have `ring` called, on the worker's thread, after each report."""
        self._tickets.listen(ring)

    def start(self, tasks: Sequence[Task]) -> None:
        """Queue these copies. A ticket must not be open already. StoreError once the mover is closed."""
        moves = moves_of(tasks)
        if self._closing:
            raise StoreError("the copy worker is closed: it takes no more moves")
        if not moves:
            return
        fence = self._copier.fence()
        self._tickets.open(moves)
        for move in moves:
            self._jobs.put(_Job(move, fence))

    def poll(self) -> list[Report]:
        """Reports since the last call, in the order in which the copies ended; never waits."""
        return self._tickets.poll()

    def wait(self, seconds: float) -> None:
        """Wait until `poll` would return something, at most `seconds`."""
        self._tickets.wait(seconds)

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until every move started so far has ended; `poll` still returns the reports. False if time ran out."""
        return self._tickets.drain(seconds)

    def close(self) -> None:
        """Finish what has begun, fail what has not, end the thread. Reports can still be polled. Twice does no harm."""
        self._closing = True
        self._jobs.put(None)
        self._thread.join()

    @property
    def closing(self) -> bool:
        """True once `close` has been called: nothing more will begin."""
        return self._closing

    def totals(self) -> dict[Way, CopyTotal]:
        """Copies so far by (from, to); None is a live state. Bytes over seconds is the measured speed of that way."""
        return self._tickets.totals()

    def _work(self) -> None:
        flying: deque[_InFlight] = deque()
        while True:
            stop, job = self._next(wait=not flying)
            if job is not None:
                self._begin(job, flying)
            must_wait = job is None or len(flying) >= self._limit
            while flying and (must_wait or _arrived(flying[0].flight)):
                self._land(flying.popleft())
                must_wait = False
            if stop and not flying:
                return

    def _next(self, wait: bool) -> tuple[bool, _Job | None]:
        """The next job, if there is one; True once the mover is closing and nothing is queued."""
        try:
            job = self._jobs.get(block=wait)
        except Empty:
            return self._closing, None
        return job is None, job

    def _begin(self, job: _Job, flying: deque[_InFlight]) -> None:
        if self._closing:
            self._tickets.end(job.move, "the copy worker was closed before this copy began")
            return
        begun = self._clock.now()
        try:
            flight = self._copier.begin(job.move, job.fence)
        except Exception as error:
            self._tickets.end(job.move, describe(error))
            return
        flying.append(_InFlight(job.move, flight, begun))

    def _land(self, copy: _InFlight) -> None:
        try:
            copy.flight.land()
        except Exception as error:
            self._tickets.end(copy.move, describe(error))
            return
        now, source = self._clock.now(), copy.move.source.tier
        # copies out of a tier follow each other: this one has moved since the one before it ended
        began = max(copy.begun, self._landed.get(source, copy.begun))
        self._landed[source] = now
        self._tickets.end(copy.move, "", now - began)


def _arrived(flight: Flight) -> bool:
    """Whether `land` is due: at once for a flight that has broken, so that landing it reports why."""
    try:
        return flight.arrived()
    except Exception:
        return True
