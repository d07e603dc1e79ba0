"""The last minutes in short slices and the last day in long ones, for the dashboard. Memory depends on their number, not on the load."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from stepwell.base.clock import Clock
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.engine.process.messages import Stats

SECONDS = 2.0
"""Length of a slice."""
SLICES = 300
"""Slices that are kept: ten minutes."""
LONG_SECONDS = 60.0
LONG_SLICES = 1440
"""Long slices that are kept beside them: a day."""

_BOUNDS = tuple(0.0005 * 1.2**i for i in range(80))  # 0.5 ms to 15 minutes, 20 % apart
_RATE_SLICES = 15
_ALL_PAGES = ("free", "cached", "private")
_LONGEST_WAIT = 60
_SUMS = (
    "device",
    "host",
    "disk",
    "external",
    "recomputed",
    "saved",
    "admitted",
    "generated",
    "ended",
    "errors",
    "copied",
)


class Durations:
    """Times as counts by size: quantiles to within 20 %, whatever their number."""

    __slots__ = ("_counts", "count", "total")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0
        self.total = 0.0

    def add(self, seconds: float) -> None:
        at = bisect_left(_BOUNDS, seconds)
        self._counts[at] = self._counts.get(at, 0) + 1
        self.count += 1
        self.total += seconds

    def merge(self, other: Durations) -> None:
        """Add all that `other` has counted."""
        for at, count in other._counts.items():
            self._counts[at] = self._counts.get(at, 0) + count
        self.count += other.count
        self.total += other.total

    def mean(self) -> float | None:
        """Exact; None where there are none."""
        return self.total / self.count if self.count else None

    def quantile(self, share: float) -> float | None:
        """The time that `share` of all times do not exceed, rounded up to a bound; None where there are none."""
        left = max(1, ceil(share * self.count))
        for at in sorted(self._counts):
            left -= self._counts[at]
            if left <= 0:
                return _BOUNDS[min(at, len(_BOUNDS) - 1)]
        return None


@dataclass(slots=True)
class Slice:
    """What happened in one slice; `saved` are seconds of prefill, `used` is the share of each tier in use when it was last heard of."""

    number: int
    device: int = 0
    host: int = 0
    disk: int = 0
    external: int = 0
    recomputed: int = 0
    saved: float = 0.0
    admitted: int = 0
    generated: int = 0
    ended: int = 0
    errors: int = 0
    running: int = 0
    waiting: int = 0
    copied: int = 0
    used: dict[str, float] = field(default_factory=dict)
    first: Durations = field(default_factory=Durations)
    next: Durations = field(default_factory=Durations)

    def add(self, later: Slice) -> None:
        """Take in a part of the same time: sums of what happened, and the latest that the engine said of itself. O(1)."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(later, name))
        self.first.merge(later.first)
        self.next.merge(later.next)
        if later.used:
            self.running, self.waiting, self.used = later.running, later.waiting, later.used

    def point(self) -> dict[str, Any]:
        """As the dashboard reads it; times in seconds, `t` counts slices."""
        return {
            "t": self.number,
            "device": self.device,
            "host": self.host,
            "disk": self.disk,
            "external": self.external,
            "recomputed": self.recomputed,
            "saved": round(self.saved, 3),
            "admitted": self.admitted,
            "generated": self.generated,
            "ended": self.ended,
            "errors": self.errors,
            "running": self.running,
            "waiting": self.waiting,
            "copied": self.copied,
            "used": self.used,
            "firsts": self.first.count,
            "ttft": self.first.total,
            "ttft50": self.first.quantile(0.5),
            "ttft95": self.first.quantile(0.95),
            "itl50": self.next.quantile(0.5),
            "itl95": self.next.quantile(0.95),
        }


@dataclass(frozen=True, slots=True)
class Window:
    """The slices that make up the last so many seconds: `count` of `seconds` each, of which `now` is the present one."""

    now: int
    seconds: float
    count: int


class Recent:
    """Slices of both windows, the newest last. A slice in which nothing happened is not kept."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._present = Slice(self.now)
        self._end = (self.now + 1) * SECONDS
        self._slices: deque[Slice] = deque([self._present], maxlen=SLICES)
        self._long: deque[Slice] = deque(maxlen=LONG_SLICES)
        self._copied = 0

    @property
    def now(self) -> int:
        """Number of the present slice."""
        return int(self._clock.now() / SECONDS)

    def slice(self) -> Slice:
        """The present slice."""
        if self._clock.now() >= self._end:
            self._lengthen(self._present)
            number = self.now
            self._end = (number + 1) * SECONDS
            self._present = Slice(number)
            self._slices.append(self._present)
        return self._present

    def _lengthen(self, ended: Slice) -> None:
        """Add a short slice to the long one that it lies in."""
        number = int(ended.number * SECONDS / LONG_SECONDS)
        if not self._long or self._long[-1].number != number:
            self._long.append(Slice(number))
        self._long[-1].add(ended)

    def window(self, seconds: float) -> Window:
        """The slices that tell the last so many seconds: short ones where those are kept."""
        if seconds <= SECONDS * SLICES:
            return Window(self.now, SECONDS, max(1, ceil(seconds / SECONDS)))
        count = min(LONG_SLICES, ceil(seconds / LONG_SECONDS))
        return Window(int(self._clock.now() / LONG_SECONDS), LONG_SECONDS, count)

    def admitted(self, outcome: AdmissionOutcome, saved: float = 0.0) -> None:
        """A prompt was admitted, for which the cache saved so many seconds of prefill."""
        here = self.slice()
        here.admitted += 1
        here.saved += saved
        here.device += outcome.device
        here.host += outcome.host
        here.disk += outcome.disk
        here.external += outcome.external
        here.recomputed += outcome.recomputed

    def measured(self, stats: Stats) -> None:
        """Take the engine's own statistics."""
        here = self.slice()
        here.running = stats.queues.get("running", 0)
        here.waiting = stats.queues.get("waiting", 0) + stats.queues.get("parked", 0)
        copied = sum(stats.copied)
        here.copied += max(0, copied - self._copied)  # an engine that was started again counts from 0
        self._copied = copied
        for tier, pages in stats.pages.items():
            total = sum(pages.get(state, 0) for state in _ALL_PAGES)
            if total:
                here.used[tier] = round(1 - pages.get("free", 0) / total, 4)

    def points(self, window: Window, after: int = -1) -> list[dict[str, Any]]:
        """Slices of the window from number `after` on. The current long slice has what its ended short ones have."""
        slices = self._slices
        if window.seconds != SECONDS:
            self.slice()  # the last one has ended, though nothing may have happened since
            slices = self._long
        oldest = max(after, window.now - window.count + 1)
        return [s.point() for s in slices if s.number >= oldest]

    def last(self, seconds: float) -> Slice:
        """The slices of the last `seconds` as one: sums of what happened, and the latest that the engine said of itself."""
        lately = Slice(self.now)
        for part in self._slices:
            if part.number > lately.number - max(1, round(seconds / SECONDS)):
                lately.add(part)
        return lately

    def retry_after(self, waiting: int) -> int:
        """Whole seconds until a queue of `waiting` sequences has been admitted at the rate of the last half minute."""
        oldest = self.now - _RATE_SLICES
        admitted = sum(s.admitted for s in self._slices if s.number > oldest)
        if not admitted:
            return _LONGEST_WAIT if waiting else 1
        return min(_LONGEST_WAIT, max(1, ceil(waiting * _RATE_SLICES * SECONDS / admitted)))
