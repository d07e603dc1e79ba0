"""Runner and mover of control over all ranks: what the loop has in place of a worker in its own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepwell.base.clock import WallClock
from stepwell.cache.external.ledger import What
from stepwell.cache.external.query import Query, QueryAnswer
from stepwell.cache.moves import Name, Report, Task
from stepwell.engine.compute.sampler import Masks
from stepwell.engine.ranks.catalogue import joint_stats
from stepwell.engine.ranks.masks import write_masks
from stepwell.engine.ranks.processes import RankProcesses
from stepwell.engine.ranks.wire import (
    GIVE_WAY,
    OUTSIDE,
    STEP,
    TASKS,
    LookUp,
    Lose,
    Release,
    State,
    decode_answers,
    encode,
)
from stepwell.engine.wire.moves import read_reports, write_tasks
from stepwell.engine.wire.steps import StepWriter, read_result
from stepwell.sched.step import Step, StepResult
from stepwell.store.disk.health import DiskStats
from stepwell.store.ranks import JointMover, RankCount


@dataclass(frozen=True, slots=True)
class _Asked:
    processes: RankProcesses

    def result(self) -> StepResult:
        return read_result(self.processes.result())


class RanksRunner:
    """A `Runner` that has all ranks compute; the first one's result counts, and `Watch` sees that the others have the same."""

    def __init__(self, processes: RankProcesses, masks: Masks) -> None:
        self._processes = processes
        self._masks = masks
        self._writer = StepWriter()

    def launch(self, step: Step) -> _Asked:
        self._processes.send(STEP, self._writer.write(step), write_masks(step, self._masks))
        return _Asked(self._processes)


class _ReportsOfRank:
    """One rank's reports as a `Mover`: what is to be moved has been told to all at once."""

    def __init__(self, processes: RankProcesses, rank: int) -> None:
        self._processes = processes
        self._rank = rank

    def start(self, tasks: Sequence[Task]) -> None:
        return

    def poll(self) -> list[Report]:
        heard, self._processes.reports[self._rank] = self._processes.reports[self._rank], []
        return [report for data in heard for report in read_reports(data)]

    def wait(self, seconds: float) -> None:
        raise AssertionError("all ranks are heard at once")


class RanksMover:
    """A `Mover` that has all ranks copy."""

    def __init__(self, processes: RankProcesses) -> None:
        self._processes = processes
        self._joint = JointMover(
            [_ReportsOfRank(processes, rank) for rank in range(len(processes.ready))], WallClock().now
        )

    def start(self, tasks: Sequence[Task]) -> None:
        self._joint.start(tasks)
        self._processes.send(TASKS, write_tasks(tasks))

    def poll(self) -> list[Report]:
        self._processes.hear(0)
        return self._joint.poll()

    def wait(self, seconds: float) -> None:
        self._processes.hear(seconds)

    def counts(self) -> tuple[RankCount, ...]:
        """By rank."""
        return self._joint.counts()


class RanksStores:
    """The external stores of all ranks (see `stepwell.store.external.joint`). Their answers are heard with the ranks' reports."""

    def __init__(self, processes: RankProcesses) -> None:
        self._processes = processes

    def look_up(self, query: Query, ranks: int) -> None:
        self._processes.send(OUTSIDE, encode(LookUp(query, ranks)))

    def answers(self) -> Sequence[tuple[int, QueryAnswer]]:
        found, self._processes.found = self._processes.found, []
        return [(rank, answer) for rank, data in found for answer in decode_answers(data)]

    def release(self, number: int) -> None:
        self._processes.send(OUTSIDE, encode(Release(number)))

    def forget(self, what: What, names: Sequence[Name]) -> None:
        self._processes.send(OUTSIDE, encode(Lose(what, list(names))))


class RanksCounts:
    """What all ranks count, for one engine: kernels of the first, memory of the fullest."""

    def __init__(self, processes: RankProcesses, mover: RanksMover) -> None:
        self._processes = processes
        self._mover = mover

    def compiled(self) -> Mapping[str, int]:
        return self._processes.states[0].compiled

    def device_bytes(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for state in self._processes.states:
            for kind, count in state.device_bytes.items():
                found[kind] = max(count, found.get(kind, 0))
        return found

    def ranks(self) -> tuple[Mapping[str, float], ...]:
        return tuple(map(_counted, self._processes.states, self._mover.counts()))


def _counted(state: State, copies: RankCount) -> dict[str, float]:
    """By the names that metrics show."""
    counts: dict[str, float] = {f"device_{kind}_bytes": count for kind, count in state.device_bytes.items()}
    if state.host_ready is not None:
        counts["host_ready_slots"] = state.host_ready
    told = {"done": copies.done, "failed": copies.failed, "open": copies.open}
    return counts | {f"copies_{name}": count for name, count in told.items()} | {"late_seconds": copies.late}


class RanksPinning:
    """How much of host all ranks can use by now."""

    def __init__(self, processes: RankProcesses) -> None:
        self._processes = processes
        self._wanted = False

    @property
    def ready(self) -> int:
        return min(state.host_ready or 0 for state in self._processes.states)

    @property
    def ended(self) -> bool:
        return all(state.host_ended for state in self._processes.states)

    def give_way(self, wanted: bool) -> None:
        if wanted != self._wanted:
            self._wanted = wanted
            self._processes.send(GIVE_WAY, b"1" if wanted else b"0")


class RanksDisk:
    """The stores of all ranks, as control sees them."""

    def __init__(self, processes: RankProcesses) -> None:
        self._processes = processes

    @property
    def slots(self) -> int:
        return self.stats().slots

    def stats(self) -> DiskStats:
        return joint_stats([state.disk for state in self._processes.states if state.disk is not None])
