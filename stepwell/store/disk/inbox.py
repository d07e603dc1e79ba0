"""What the engine's thread wants done, in an order in which the writer can take it literally.

A record that is adopted takes its slots at once; that those slots were to be forgotten before may be told only later, because
orders travel with the moves. The inbox knows which slots are taken, so it sees that, has them forgotten first, and swallows the
late orders.

    directory   forget 7 (in its outbox) ▸ adopt 7 ▸ … ▸ outbox: Divide 6 7, Forget 7
    writer                                 forget 7, adopt 7
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints
from stepwell.cache.moves import DiskNote, Divide, Extent, Forget, Move, Task, Tier, Touch
from stepwell.store.disk.gate import Fence


@dataclass(frozen=True, slots=True)
class Copy:
    """A move to disk, and the mark of the moment at which it was asked for."""

    move: Move
    fence: Fence


@dataclass(frozen=True, slots=True, eq=False)
class Adopt:
    """The record's pages are these slots; `twice`: another's as well, so that it needs a row of its own."""

    record: int
    slots: Ints
    twice: bool


@dataclass(frozen=True, slots=True)
class Drop:
    """These records are not to be found again."""

    records: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Strike:
    """What these slots hold, if it is still in the record at this place, has failed a check."""

    slots: Ints
    segment: int
    offset: int


DiskTask: TypeAlias = Copy | Adopt | Drop | Strike | DiskNote


class Inbox:
    """`submit` and `adopt` belong to the engine's thread, `take` to the writer's, `drop` and `strike` to anyone.

    limit   moves at most that wait; with as many jobs waiting, touches are left out
    """

    def __init__(self, slots: int, limit: int) -> None:
        self.changed = threading.Condition()
        self._limit = limit
        self._jobs: deque[DiskTask] = deque()
        self._copies = 0
        self._taken: npt.NDArray[np.bool_] = np.zeros(slots, np.bool_)
        self._late: dict[int, int] = {}  # slot → orders to forget it that are still to come and have been carried out

    def __len__(self) -> int:
        return len(self._jobs)

    def submit(self, tasks: Sequence[Task], fence: Callable[[], Fence]) -> list[Move]:
        """Queue these. Returns the moves there is no room for; `fence` is called once if there are others."""
        jobs: list[DiskTask] = []
        refused: list[Move] = []
        mark: Fence = None
        marked = False
        room = self._limit - self._copies
        for task in tasks:
            if isinstance(task, Move):
                assert isinstance(task.target, Extent) and task.target.tier == Tier.DISK
                self._note(task.target.slots, True)
                if room <= 0:
                    refused.append(task)
                    continue
                room -= 1
                if not marked:
                    mark, marked = fence(), True
                jobs.append(Copy(task, mark))
            else:
                order = self._in_time(task)
                jobs += () if order is None else (order,)
        self._put(jobs)
        return refused

    def adopt(self, record: int, slots: Ints, twice: bool) -> None:
        """Queue an adoption. Slots that are still taken are forgotten first, as an order to come will say."""
        early = slots[self._taken[slots]]
        for slot in early.tolist():
            self._late[slot] = self._late.get(slot, 0) + 1
        self._note(slots, True)
        adoption = Adopt(record, slots, twice)
        self._put([Forget(early), adoption] if len(early) else [adoption])

    def drop(self, *records: int) -> None:
        if records:
            self._put([Drop(records)])

    def strike(self, slots: Ints, segment: int, offset: int) -> None:
        self._put([Strike(slots, segment, offset)])

    def take(self, limit_bytes: int, page_bytes: int, limit_jobs: int = 4096) -> list[DiskTask]:
        """The next jobs, in order: at most so many, and moves of so many bytes unless the first alone has more."""
        jobs: list[DiskTask] = []
        size = 0
        with self.changed:
            while self._jobs and len(jobs) < limit_jobs:
                job = self._jobs[0]
                if isinstance(job, Copy):
                    more = len(job.move.source.slots) * page_bytes
                    if size and size + more > limit_bytes:
                        break
                    size += more
                    self._copies -= 1
                jobs.append(self._jobs.popleft())
        return jobs

    def _put(self, jobs: Sequence[DiskTask]) -> None:
        with self.changed:
            self._jobs.extend(jobs)
            self._copies += sum(isinstance(job, Copy) for job in jobs)
            self.changed.notify_all()

    def _in_time(self, order: DiskNote) -> DiskNote | None:
        """The order without the slots that it comes too late for."""
        if isinstance(order, Divide):
            known = min(order.last, order.first) >= 0 and max(order.last, order.first) < len(self._taken)
            return order if known and order.last not in self._late and order.first not in self._late else None
        slots = self._within(order.slots)
        late = [slot for slot in slots.tolist() if slot in self._late] if self._late else []
        slots = slots[~np.isin(slots, late)] if late else slots
        if isinstance(order, Touch):
            behind = len(self._jobs) >= self._limit  # a hint, not worth memory while the writer hangs
            return Touch(slots) if len(slots) and not behind else None
        for slot in late:
            self._late[slot] -= 1
            if not self._late[slot]:
                del self._late[slot]
        self._taken[slots] = False
        return Forget(slots) if len(slots) else None

    def _note(self, slots: Ints, taken: bool) -> None:
        self._taken[self._within(slots)] = taken

    def _within(self, slots: Ints) -> Ints:
        """Those that exist: a move to others is refused where it is carried out."""
        return slots[(slots >= 0) & (slots < len(self._taken))]
