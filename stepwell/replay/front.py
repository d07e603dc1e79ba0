"""What stands between a client and the engine: reading a prompt takes time, and calls that come together share whoever reads them.

A burst of calls therefore reaches the scheduler in another order than it was sent in: short prompts first. In a closed loop of lanes
that decides which of them are computed early, and with it what the cache holds later.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

from stepwell.base.errors import ConfigError
from stepwell.replay.lanes import Source, TraceRequest


@dataclass(frozen=True, slots=True)
class Front:
    """call_s       a call alone, from sending to the scheduler and back from its first token, whatever its prompt
    token_s      of that, for each token of the prompt, on top
    shared       share of both that calls at once take from each other: what one thread does; the rest goes on side by side
    """

    call_s: float = 0.0
    token_s: float = 0.0
    shared: float = 1.0

    def __post_init__(self) -> None:
        if self.call_s < 0 or self.token_s < 0 or not 0 <= self.shared <= 1:
            raise ConfigError(f"a front end takes no time below 0 and shares from 0 to 1 of it, not {self}")

    def alone(self, prompt: int) -> float:
        """Seconds of a call with a prompt of so many tokens while there is no other."""
        return self.call_s + self.token_s * prompt


class Fronted:
    """A source whose requests come as late as `front` makes them. Their `time` stays that of sending.

    The shared part is served to all calls alike, as threads of one processor are (processor sharing).
    """

    __slots__ = ("_front", "_inner", "_now", "_reading", "_ready", "_serial", "_served")

    def __init__(self, inner: Source, front: Front) -> None:
        self._inner = inner
        self._front = front
        self._now = 0.0
        self._served = 0.0  # seconds that a call which was there from the start would have been served by now
        self._reading: list[tuple[float, int, TraceRequest]] = []  # by what `_served` is when it ends
        self._ready: list[tuple[float, int, TraceRequest]] = []
        self._serial = 0

    def due(self, now: float) -> list[TraceRequest]:
        for request in self._inner.due(now):
            self._read_until(request.time)
            ends = self._served + self._front.shared * self._front.alone(request.turn.prompt)
            heappush(self._reading, (ends, self._serial, request))
            self._serial += 1
        self._read_until(now)
        found: list[TraceRequest] = []
        while self._ready and self._ready[0][0] <= now:
            found.append(heappop(self._ready)[2])
        return found

    def next_time(self) -> float | None:
        """A time by which to ask again; where calls come meanwhile, those that are being read come later."""
        times = [time for time in (self._inner.next_time(),) if time is not None]
        times += [ready[0] for ready in self._ready[:1]]
        if self._reading:
            times.append(self._now + (self._reading[0][0] - self._served) * len(self._reading))
        return min(times, default=None)

    def finished(self, request: TraceRequest, now: float) -> None:
        self._inner.finished(request, now)

    def _read_until(self, when: float) -> None:
        """Serve all who are being read up to `when`, a time that never goes back."""
        while self._reading:
            ends, serial, request = self._reading[0]
            over = self._now + (ends - self._served) * len(self._reading)
            if over > when:
                self._served += max(0.0, when - self._now) / len(self._reading)
                break
            heappop(self._reading)
            self._now, self._served = over, ends
            heappush(self._ready, (over + self._beside(request), serial, request))
        self._now = max(self._now, when)

    def _beside(self, request: TraceRequest) -> float:
        return (1 - self._front.shared) * self._front.alone(request.turn.prompt)
