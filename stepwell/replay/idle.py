"""Dead time cut short: where nothing is under way, whatever comes next comes within a given time."""

from __future__ import annotations

from dataclasses import replace

from stepwell.replay.lanes import Source, TraceRequest


class CappedIdle:
    """A source whose pending requests all move forward where the system would idle for more than `cap` s.

    Gaps between the requests of one conversation are as they were, as long as anything else is under way.
    """

    __slots__ = ("_cap", "_inner", "_now", "_open", "_shift")

    def __init__(self, inner: Source, cap: float) -> None:
        self._inner = inner
        self._cap = cap
        self._shift = 0.0
        self._now = 0.0
        self._open = 0

    def due(self, now: float) -> list[TraceRequest]:
        self._now = now
        found = self._inner.due(now + self._shift)
        self._open += len(found)
        return [replace(request, time=request.time - self._shift) for request in found]

    def next_time(self) -> float | None:
        upcoming = self._inner.next_time()
        if upcoming is None:
            return None
        if not self._open:
            self._shift += max(0.0, upcoming - self._shift - self._now - self._cap)
        return upcoming - self._shift

    def finished(self, request: TraceRequest, now: float) -> None:
        self._now = now
        self._open -= 1
        self._inner.finished(request, now + self._shift)
