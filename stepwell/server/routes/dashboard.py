"""GET /dashboard/events: the numbers that the dashboard shows, as server-sent events.

Numbers, the beginnings of request ids, digests of sessions and the name of the model: no text, no salts, no sessions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import orjson
from fastapi import Request, Response

from stepwell.base.errors import RequestError
from stepwell.engine.process.stats import COPIES
from stepwell.server.http.gate import caller_of
from stepwell.server.http.parts import Parts
from stepwell.server.http.streams import EventStream
from stepwell.server.observe.ladders import Ladders
from stepwell.server.observe.recent import LONG_SECONDS, LONG_SLICES, SECONDS, SLICES, Window

_EVERY = 1.0  # seconds between two events
_ROWS = 40
_SHORT, _LONGEST = SECONDS * SLICES, LONG_SECONDS * LONG_SLICES


class DashboardRoutes:
    """One method a route."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._began = parts.clock.now()
        self._ladders = Ladders(parts.client, parts.clock)

    async def events(self, request: Request, window: str = f"{_SHORT:g}") -> Response:
        return EventStream(self._states(caller_of(request).salt, _seconds(window)), _nothing, {})

    async def _states(self, owner: str, seconds: float) -> AsyncIterator[bytes]:
        """The whole window first, then what has changed since; ends with the server. If every key has a cache of its own, paths and
        requests are those of `owner` alone; all else are sums over all callers."""
        seen = -1
        while True:
            ladders = await self._ladders.rows(owner)
            window = self._parts.metrics.recent.window(seconds)
            yield b"data: " + orjson.dumps({**self._state(window, seen, owner), "ladders": ladders}) + b"\n\n"
            if self._parts.client.dead is not None:
                return
            seen = window.now - 1
            await asyncio.sleep(_EVERY)

    def _state(self, window: Window, after: int, owner: str) -> dict[str, Any]:
        parts, stats = self._parts, self._parts.client.stats
        copied = stats.copied or [0] * len(COPIES)
        return {
            "model": parts.facts.model,
            "dead": parts.client.dead,
            "draining": not parts.door.open,
            "seconds": round(parts.clock.now() - self._began),
            "slice": {"now": window.now, "seconds": window.seconds, "count": window.count},
            "points": parts.metrics.recent.points(window, after),
            "pages": stats.pages,
            "page_bytes": stats.gauges.get("page_bytes", 0),
            "queues": stats.queues,
            "gauges": stats.gauges,
            "counters": stats.counters,
            "copied": [[source, target, count] for (source, target), count in zip(COPIES, copied, strict=True)],
            "totals": parts.metrics.totals(),
            "joint": stats.joint,
            "requests": parts.client.in_flight.rows(_ROWS, owner),
            "open": parts.client.open,
        }


def _nothing() -> None:
    """A page that is closed leaves nothing behind."""


def _seconds(window: str) -> float:
    """Raises RequestError."""
    try:
        seconds = float(window)
    except ValueError:
        seconds = 0.0
    if not SECONDS <= seconds <= _LONGEST:
        raise RequestError(f"window must be from {SECONDS:g} to {_LONGEST:g} seconds, not {window[:20]!r}", "window")
    return seconds
