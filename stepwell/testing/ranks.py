"""The ranks of a test's engine: each with its own memory, its own mover and its own faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from stepwell.base.clock import Clock
from stepwell.base.geometry import Ints
from stepwell.cache.moves import Move, Report, Task, Tier, moves_of
from stepwell.sched.step import Mover
from stepwell.store.ranks import JointMover
from stepwell.testing.faults import FaultPlan, FaultyMover, InstantMover
from stepwell.testing.shelf import Shelf
from stepwell.testing.telltale import Memory

Carry = Callable[[Memory, Move], None]


class Ranks:
    """By rank: `memories`, `plans` (more faults may be added), `movers`; `mover` is what the loop is given.

    `carry` makes one rank's part of a copy.
    """

    def __init__(self, memories: Sequence[Memory], plans: Sequence[FaultPlan], clock: Clock, carry: Carry) -> None:
        self.memories = tuple(memories)
        self.plans = tuple(plans)
        self.movers = tuple(
            FaultyMover(InstantMover(partial(carry, memory)), plan, clock)
            for memory, plan in zip(memories, plans, strict=True)
        )
        self.mover: Mover = JointMover(self.movers) if len(self.movers) > 1 else self.movers[0]

    @property
    def lost(self) -> bool:
        """Whether a report was dropped, and not delivered since."""
        return any(mover.lost for mover in self.movers)

    def deliver(self) -> None:
        """Have every lost report in the next poll."""
        for mover in self.movers:
            lost, mover.lost = mover.lost, []
            for report in lost:
                mover.deliver(report)

    def poison(self, tier: Tier, slots: Ints) -> None:
        """Overwrite slots that nobody may read any more."""
        for memory in self.memories:
            memory.poison(tier, slots)


@dataclass(slots=True, eq=False)
class Watch:
    """A mover that notes what passes: copies under way, and what this step has reported. The shelf gets its orders here."""

    inner: Mover
    shelf: Shelf
    outstanding: set[int] = field(default_factory=set)
    reported: dict[int, bool] = field(default_factory=dict)

    def start(self, tasks: Sequence[Task]) -> None:
        self.outstanding |= {move.ticket for move in moves_of(tasks)}
        for task in tasks:
            if isinstance(task, Move):
                self.shelf.begin(task)
            else:
                self.shelf.obey(task)
            self.inner.start([task])

    def poll(self) -> list[Report]:
        self.shelf.adopted.clear()
        reports = self.inner.poll()
        for report in reports:
            if report.ticket in self.outstanding:
                self.reported[report.ticket] = report.ok
                self.outstanding.discard(report.ticket)
        return reports

    def wait(self, seconds: float) -> None:
        self.inner.wait(seconds)
