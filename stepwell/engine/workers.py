"""What control is given of its workers, in this process or in others: a runner, a mover, and what was measured and taken at the start."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.cache.config import Costs
from stepwell.engine.owned import Counting, Growing
from stepwell.engine.wire.link import WiredMover, WiredRunner
from stepwell.engine.worker.build import Worker
from stepwell.engine.worker.sizes import Sizes
from stepwell.sched.probe import ExternalStore
from stepwell.sched.step import Mover, Runner
from stepwell.store.device import DeviceArena


@dataclass(frozen=True, slots=True)
class Workers:
    """The runner and the mover of all workers; their sizes and speeds; names of the kernels and of what copies, for people.

    pinning  says how much of host can be used by now; None: all
    counts   counters that are kept beside the steps
    arena    the device's pages, where they are in this process: control has no use for them, evaluations tamper with them
    external  who is asked what an external store has, if there is one
    rest     seconds that an idle engine may be left alone; None: for ever
    """

    runner: Runner
    mover: Mover
    sizes: Sizes
    costs: Costs
    kernels: tuple[str, ...]
    copies: str
    pinning: Growing | None
    counts: Counting
    arena: DeviceArena | None = None
    rest: float | None = None
    external: ExternalStore | None = None

    @classmethod
    def of(cls, worker: Worker) -> Workers:
        """From a worker in this process. Steps and moves reach it as bytes, as they would reach one in another process."""
        w = worker
        runner, mover = WiredRunner(w.endpoint), WiredMover(w.endpoint)
        return cls(
            runner, mover, w.sizes, w.costs, w.kernels, w.copies, w.pinning, w.counts, w.arena, external=w.external
        )
