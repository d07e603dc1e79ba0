"""Runner and mover of control over all ranks: what the loop has in place of a worker in its own process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepwell.base.clock import WallClock
from stepwell.cache.moves import Report, Task
from stepwell.engine.ranks.catalogue import joint_stats
from stepwell.engine.ranks.crew import Crew
from stepwell.engine.ranks.masks import write_masks
from stepwell.engine.ranks.wire import GIVE_WAY, STEP, TASKS, State
from stepwell.engine.sampler import Masks
from stepwell.engine.wire import StepWriter, read_result
from stepwell.engine.wire_moves import read_reports, write_tasks
from stepwell.sched.step import Step, StepResult
from stepwell.store.disk.stats import DiskStats
from stepwell.store.ranks import JointMover, RankCount


@dataclass(frozen=True, slots=True)
class _Asked:
    crew: Crew

    def result(self) -> StepResult:
        return read_result(self.crew.result())


class CrewRunner:
    """A `Runner` that has all ranks compute; the first one's result counts, and `Watch` sees that the others have the same."""

    def __init__(self, crew: Crew, masks: Masks) -> None:
        self._crew = crew
        self._masks = masks
        self._writer = StepWriter()

    def launch(self, step: Step) -> _Asked:
        self._crew.send(STEP, self._writer.write(step), write_masks(step, self._masks))
        return _Asked(self._crew)


class _Ear:
    """One rank's reports as a `Mover`: what is to be moved has been told to all at once."""

    def __init__(self, crew: Crew, rank: int) -> None:
        self._crew = crew
        self._rank = rank

    def start(self, tasks: Sequence[Task]) -> None:
        return

    def poll(self) -> list[Report]:
        heard, self._crew.reports[self._rank] = self._crew.reports[self._rank], []
        return [report for data in heard for report in read_reports(data)]

    def wait(self, seconds: float) -> None:
        raise AssertionError("all ranks are heard at once")


class CrewMover:
    """A `Mover` that has all ranks copy."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._joint = JointMover([_Ear(crew, rank) for rank in range(len(crew.ready))], WallClock().now)

    def start(self, tasks: Sequence[Task]) -> None:
        self._joint.start(tasks)
        self._crew.send(TASKS, write_tasks(tasks))

    def poll(self) -> list[Report]:
        self._crew.hear(0)
        return self._joint.poll()

    def wait(self, seconds: float) -> None:
        self._crew.hear(seconds)

    def counts(self) -> tuple[RankCount, ...]:
        """By rank."""
        return self._joint.counts()


class CrewCounts:
    """What all ranks count, for one engine: kernels of the first, memory of the fullest."""

    def __init__(self, crew: Crew, mover: CrewMover) -> None:
        self._crew = crew
        self._mover = mover

    def compiled(self) -> Mapping[str, int]:
        return self._crew.states[0].compiled

    def device_bytes(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for state in self._crew.states:
            for kind, count in state.device_bytes.items():
                found[kind] = max(count, found.get(kind, 0))
        return found

    def ranks(self) -> tuple[Mapping[str, float], ...]:
        return tuple(map(_counted, self._crew.states, self._mover.counts()))


def _counted(state: State, copies: RankCount) -> dict[str, float]:
    """By the names that metrics show."""
    counts: dict[str, float] = {f"device_{kind}_bytes": count for kind, count in state.device_bytes.items()}
    if state.host_ready is not None:
        counts["host_ready_slots"] = state.host_ready
    told = {"done": copies.done, "failed": copies.failed, "open": copies.open}
    return counts | {f"copies_{name}": count for name, count in told.items()} | {"late_seconds": copies.late}


class CrewPinning:
    """How much of host all ranks can use by now."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew
        self._wanted = False

    @property
    def ready(self) -> int:
        return min(state.host_ready or 0 for state in self._crew.states)

    @property
    def ended(self) -> bool:
        return all(state.host_ended for state in self._crew.states)

    def give_way(self, wanted: bool) -> None:
        if wanted != self._wanted:
            self._wanted = wanted
            self._crew.send(GIVE_WAY, b"1" if wanted else b"0")


class CrewDisk:
    """The stores of all ranks, as control sees them."""

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    @property
    def slots(self) -> int:
        return self.stats().slots

    def stats(self) -> DiskStats:
        return joint_stats([state.disk for state in self._crew.states if state.disk is not None])
