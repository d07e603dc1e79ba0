"""One mover for all ranks: a copy is good only if every rank has made its part of it.

              ┌─▶ rank 0 ─┐
    task ─────┼─▶ rank 1 ─┼─▶ report, once all have ended it
              └─▶ rank 2 ─┘

Every rank holds its shard of an entry in the same slot, so one task serves them all, and ranks cannot come to differ in what
they hold. Needs no tensors: a rank's mover may be a thread of this process or stand for another process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from stepwell.cache.moves import Report, Task, moves_of
from stepwell.sched.step import Mover

_SLICE = 0.002
"""Seconds to sleep on one rank while others owe a report as well: theirs is heard at most this late."""


@dataclass(frozen=True, slots=True)
class RankCount:
    """One rank's moves so far, and those it has not ended; `ignored` counts reports that nobody waited for.

    late   seconds between the first rank's report and this one's, over all moves of which this one was the last to report
    """

    done: int = 0
    failed: int = 0
    ignored: int = 0
    open: int = 0
    late: float = 0.0


@dataclass(slots=True)
class _Joint:
    """One ticket: the ranks that have not ended it, the time of the slowest that has, when the first had, and what went wrong."""

    waiting: set[int]
    seconds: float = 0.0
    first: float | None = None
    errors: dict[int, str] = field(default_factory=dict)

    def report(self, ticket: int) -> Report:
        if not self.errors:
            return Report(ticket, True, seconds=self.seconds)
        said = "; ".join(f"rank {rank}: {error or 'failed'}" for rank, error in sorted(self.errors.items()))
        return Report(ticket, False, said, self.seconds)


class JointMover:
    """A `Mover` (see `stepwell.sched.step`) over the movers of all ranks, rank 0 first.

    A ticket that one rank has failed is still reported only after the last rank: until then the others write its target. A
    rank with no part in a move reports it all the same. Its first report of a ticket counts; any other is ignored.
    """

    def __init__(self, movers: Sequence[Mover], now: Callable[[], float] = float) -> None:
        """`now` tells the time, in seconds; without it, no rank is late."""
        assert movers, "there is at least one rank"
        self._now = now
        self._movers = tuple(movers)
        self._open: dict[int, _Joint] = {}
        self._counts = [RankCount() for _ in movers]

    def start(self, tasks: Sequence[Task]) -> None:
        """Hand these to every rank, in order. A ticket must not be open already."""
        ranks = range(len(self._movers))
        for move in moves_of(tasks):
            assert move.ticket not in self._open, f"ticket {move.ticket} is already in flight"
            self._open[move.ticket] = _Joint(set(ranks))
        for mover in self._movers:
            mover.start(tasks)

    def poll(self) -> list[Report]:
        """Tickets that the last rank has ended since the last call; never waits."""
        heard = [(rank, report) for rank, mover in enumerate(self._movers) for report in mover.poll()]
        return [ended for rank, report in heard if (ended := self._hear(rank, report)) is not None]

    def wait(self, seconds: float) -> None:
        """Wait for a rank that owes a report, at most this long; less where several do, since only one can be slept on."""
        owing = sorted({rank for joint in self._open.values() for rank in joint.waiting})
        if owing:
            self._movers[owing[0]].wait(seconds if len(owing) == 1 else min(seconds, _SLICE))

    def counts(self) -> tuple[RankCount, ...]:
        """By rank."""
        waiting = [rank for joint in self._open.values() for rank in joint.waiting]
        return tuple(replace(count, open=waiting.count(rank)) for rank, count in enumerate(self._counts))

    def _hear(self, rank: int, report: Report) -> Report | None:
        joint, count = self._open.get(report.ticket), self._counts[rank]
        if joint is None or rank not in joint.waiting:
            self._counts[rank] = replace(count, ignored=count.ignored + 1)
            return None
        joint.waiting.discard(rank)
        joint.seconds = max(joint.seconds, report.seconds)
        now = self._now()
        joint.first = now if joint.first is None else joint.first
        if report.ok:
            self._counts[rank] = replace(count, done=count.done + 1)
        else:
            self._counts[rank] = replace(count, failed=count.failed + 1)
            joint.errors[rank] = report.error
        if joint.waiting:
            return None
        self._counts[rank] = replace(self._counts[rank], late=self._counts[rank].late + now - joint.first)
        del self._open[report.ticket]
        return joint.report(report.ticket)
