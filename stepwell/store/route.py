"""One mover out of two: copies in memory here, what touches the disk there."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING

from stepwell.cache.moves import LiveState, Move, Report, Task, Tier
from stepwell.store.mover import CopyMover
from stepwell.store.tickets import CopyTotal, Way

if TYPE_CHECKING:
    from stepwell.store.disk.mover import DiskMover


class RoutingMover:
    """A `Mover` (see `stepwell.sched.step`): moves that touch the disk and all orders go to one mover, the rest to the other."""

    def __init__(self, copies: CopyMover, disk: DiskMover) -> None:
        self._copies = copies
        self._disk = disk
        self._bell = threading.Event()
        copies.listen(self._bell.set)
        disk.listen(self._bell.set)
        self._heard: list[Report] = []

    def __enter__(self) -> RoutingMover:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, tasks: Sequence[Task]) -> None:
        """Begin these, each list in its order; never waits. StoreError once closed."""
        near = [task for task in tasks if isinstance(task, Move) and not touches_disk(task)]
        far = [task for task in tasks if not isinstance(task, Move) or touches_disk(task)]
        if near:
            self._copies.start(near)
        if far:
            self._disk.start(far)

    def poll(self) -> list[Report]:
        """Reports since the last call, of both; never waits."""
        self._bell.clear()
        heard, self._heard = self._heard, []
        return heard + self._copies.poll() + self._disk.poll()

    def wait(self, seconds: float) -> None:
        """Wait until `poll` would return something, at most `seconds`."""
        self._heard = self.poll()
        if not self._heard:
            self._bell.wait(seconds)

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until everything started so far has ended. False if one of the two did not within `seconds`."""
        return self._copies.drain(seconds) and self._disk.drain(seconds)

    def close(self) -> None:
        """Close both. Reports can still be polled. Twice does no harm."""
        self._copies.close()
        self._disk.close()

    def totals(self) -> dict[Way, CopyTotal]:
        """Copies so far by (from, to); None is a live state."""
        return self._copies.totals() | self._disk.totals()


def touches_disk(move: Move) -> bool:
    """Whether a move reads or writes disk slots."""
    return Tier.DISK in (move.source.tier, None if isinstance(move.target, LiveState) else move.target.tier)
