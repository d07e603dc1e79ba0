"""One mover out of two: what touches an external store goes to its own threads, the rest where it went without one."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.cache.moves import Move, Report, Task
from stepwell.sched.step import Mover
from stepwell.store.external.mover import ExternalMover, is_external

POLL_S = 0.002
"""How long the loop waits for the other mover before it looks again, while the external store is waited for."""


class ExternalRoute:
    """A `Mover` (see `stepwell.sched.step`) over two. Neither is closed with it."""

    def __init__(self, native: Mover, external: ExternalMover) -> None:
        self._native = native
        self._external = external

    def start(self, tasks: Sequence[Task]) -> None:
        """Begin these, each list in its order; never waits."""
        far = [task for task in tasks if isinstance(task, Move) and is_external(task)]
        near = [task for task in tasks if not (isinstance(task, Move) and is_external(task))]
        if near:
            self._native.start(near)
        if far:
            self._external.start(far)

    def poll(self) -> list[Report]:
        """Reports since the last call, of both; never waits."""
        return self._native.poll() + self._external.poll()

    def wait(self, seconds: float) -> None:
        """Wait until `poll` would return something, at most `seconds`; less where the external store is waited for."""
        if self._external.busy:
            self._external.wait(min(seconds, POLL_S))
        else:
            self._native.wait(seconds)
