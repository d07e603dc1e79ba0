"""Time, injected. Nothing below the engine reads a clock that it was not given."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Seconds since an arbitrary start; never goes backwards."""

    def now(self) -> float: ...


class WallClock:
    """The monotonic clock of this process."""

    __slots__ = ()

    def now(self) -> float:
        return time.monotonic()


class VirtualClock:
    """A clock that moves only when told to: simulator and tests."""

    __slots__ = ("_now",)

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        if seconds < 0:
            raise ValueError(f"time cannot go back by {-seconds} s")
        self._now += seconds

    def advance_to(self, when: float) -> None:
        self._now = max(self._now, when)
