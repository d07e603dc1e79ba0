"""The copy workers: a thread for each direction, which carries out its moves in order while the engine computes."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Extent, LiveState, Move, Report, Task, moves_of
from stepwell.store.copier import BegunCopy, Copier
from stepwell.store.tickets import CopyTotal, Tickets, Way, describe

IN_FLIGHT = 4
"""One copies, the others are queued behind it, so that a thread that is late leaves no gap: of an H200's link, two of 64 MiB reach 0.938
up and 0.935 down, three 0.951 and 0.938, four 0.961 and 0.942 (docs/numbers.md)."""

FIRST = 4
"""The first call of a lane that rests is shorter by this factor, so that the link has something to do while the next one is made."""
SWITCH_SECONDS = 5e-4
"""For `sys.setswitchinterval` of a process with a mover. A thread that has copies to begin waits so long for the interpreter at most; with
Python's own 5 ms a link of 50 GiB/s would rest for 250 MiB."""


@dataclass(slots=True, eq=False)
class _Whole:
    """A move, as far as its parts have ended."""

    move: Move
    left: int
    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """What is begun at a time of a move that is too long to stand in a link's queue: a move of its own, of some of the slots."""

    move: Move
    of: _Whole


@dataclass(frozen=True, slots=True, eq=False)
class _InFlight:
    parts: list[_Part]
    flight: BegunCopy


class CopyMover:
    """A `Mover` (see `stepwell.sched.step`) with two lanes, so that no load waits behind a save. Each: first come, first served.

        start ─┬▶ up    into the device:  worker: begin … land ─┬▶ reports ──▶ poll
               └▶ down  out of it:        worker: begin … land ─┘
                                             └─ at most `in_flight` begun and not landed ─┘

    Every ticket is reported exactly once, whatever happens: an exception becomes a report with its text, and closing
    the mover fails what had not begun. `start`, `poll`, `wait`, `drain` and `close` belong to one thread, the
    engine's.

    A copier that completes each copy as it begins it (memory to memory) has one in flight; on a CUDA stream several
    overlap.
    """

    def __init__(self, copier: Copier, *, in_flight: int = IN_FLIGHT) -> None:
        assert in_flight >= 1
        self._tickets = Tickets(copier.page_bytes)
        self._up, self._down = (_Lane(name, copier, self._tickets, in_flight) for name in ("up", "down"))
        self._closing = False

    def __enter__(self) -> CopyMover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def listen(self, ring: Callable[[], None]) -> None:
        """Have `ring` called, on a worker's thread, after each report."""
        self._tickets.listen(ring)

    def start(self, tasks: Sequence[Task]) -> None:
        """Queue these copies. A ticket must not be open already. StoreError once the mover is closed."""
        moves = moves_of(tasks)
        if self._closing:
            raise StoreError("the copy worker is closed: it takes no more moves")
        self._tickets.open(moves)
        self._down.put([move for move in moves if _goes_down(move)])
        self._up.put([move for move in moves if not _goes_down(move)])

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
        """Finish what has begun, fail what has not, end the threads. Reports can still be polled. Twice does no harm."""
        self._closing = True
        for lane in (self._up, self._down):
            lane.close()
        for lane in (self._up, self._down):
            lane.join()

    @property
    def closing(self) -> bool:
        """True once `close` has been called: nothing more will begin."""
        return self._closing

    def totals(self) -> dict[Way, CopyTotal]:
        """Copies so far by (from, to); None is a live state. Bytes over seconds is the measured speed of that way."""
        return self._tickets.totals()


class _Lane:
    """One direction: a queue and the thread that works it off."""

    def __init__(self, name: str, copier: Copier, tickets: Tickets, in_flight: int) -> None:
        self._copier = copier
        self._tickets = tickets
        self._limit = in_flight
        self._pages = copier.together // copier.page_bytes
        self._parts: deque[_Part] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name=f"stepwell-copies-{name}", daemon=True)
        self._thread.start()

    def put(self, moves: Sequence[Move]) -> None:
        parts = [_Part(move, _Whole(move, 1)) for move in moves]
        with self._changed:
            self._parts.extend(parts)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()

    def join(self) -> None:
        self._thread.join()

    def _work(self) -> None:
        flying: deque[_InFlight] = deque()
        while True:
            parts = self._take(wait=not flying)
            if parts:
                self._begin(parts, flying)
            elif not flying:
                return
            must_wait = not parts or len(flying) >= self._limit
            while flying and (must_wait or _arrived(flying[0].flight)):
                self._land(flying.popleft())
                must_wait = False

    def _take(self, wait: bool) -> list[_Part]:
        """The next parts that go together, cut where the call is full. None: nothing is queued, and with `wait`, which whoever has
        nothing under way asks for, nothing ever will be."""
        with self._changed:
            if wait:
                self._changed.wait_for(lambda: self._parts or self._closing)
            taken: list[_Part] = []
            room = max(1, self._pages // FIRST) if wait and self._pages and self._limit > 1 else self._pages
            while self._parts and (not taken or self._joins(taken[0], room)):
                part = self._parts.popleft()
                if 0 < room < len(part.move.source.slots) and _can_part(part.move):
                    part, rest = _cut(part, room)
                    self._parts.appendleft(rest)
                taken.append(part)
                room -= len(part.move.source.slots)
            return taken

    def _joins(self, first: _Part, room: int) -> bool:
        """Whether the next part, or as much of it as there is room for, goes together with `first`."""
        move = self._parts[0].move
        return _alike(first.move, move) and (len(move.source.slots) <= room or (room > 0 and _can_part(move)))

    def _begin(self, parts: list[_Part], flying: deque[_InFlight]) -> None:
        why = "the copy worker was closed before this copy began" if self._closing else ""
        for part in parts:
            if error := part.of.error or why:
                self._end(part, error)
        parts = [part for part in parts if not part.of.error]
        if not parts:
            return
        try:
            flight = self._copier.begin([part.move for part in parts])
        except Exception as error:
            if len(parts) == 1:
                self._end(parts[0], describe(error))
            else:  # it is one of them: the others go on
                for part in parts:
                    self._begin([part], flying)
            return
        flying.append(_InFlight(parts, flight))

    def _land(self, copy: _InFlight) -> None:
        try:
            seconds = copy.flight.land()
        except Exception as error:
            for part in copy.parts:
                self._end(part, describe(error))
            return
        pages = sum(len(part.move.source.slots) for part in copy.parts)
        for part in copy.parts:
            self._end(part, "", seconds * len(part.move.source.slots) / max(1, pages))

    def _end(self, part: _Part, error: str, seconds: float = 0.0) -> None:
        """A part has ended; with the last one its move has. A move of which a part has failed begins no more of them."""
        whole = part.of
        whole.left -= 1
        whole.seconds += seconds
        whole.error = whole.error or error
        if not whole.left:
            self._tickets.end(whole.move, whole.error, 0.0 if whole.error else whole.seconds)


def _can_part(move: Move) -> bool:
    """Whether a move may be copied in parts: an image that goes to a live state may not, nor what cannot be copied at all."""
    return not isinstance(move.target, LiveState) and len(move.target.slots) == len(move.source.slots)


def _cut(part: _Part, pages: int) -> tuple[_Part, _Part]:
    """The first `pages` pages of a part, and the rest: two parts of the same whole."""
    part.of.left += 1
    return _sliced(part, slice(None, pages)), _sliced(part, slice(pages, None))


def _sliced(part: _Part, some: slice) -> _Part:
    move = part.move
    assert isinstance(move.target, Extent)
    source, target = (Extent(side.tier, side.slots[some]) for side in (move.source, move.target))
    return _Part(replace(move, source=source, target=target), part.of)


def _alike(one: Move, other: Move) -> bool:
    """Whether two moves lead from the same tier to the same other."""
    ends = one.target, other.target
    if isinstance(ends[0], LiveState) or isinstance(ends[1], LiveState):
        return False
    return (one.source.tier, ends[0].tier) == (other.source.tier, ends[1].tier)


def _goes_down(move: Move) -> bool:
    """Whether a move leads to a lower tier."""
    return not isinstance(move.target, LiveState) and move.target.tier > move.source.tier


def _arrived(flight: BegunCopy) -> bool:
    """Whether `land` is due: at once for a flight that has broken, so that landing it reports why."""
    try:
        return flight.arrived()
    except Exception:
        return True
