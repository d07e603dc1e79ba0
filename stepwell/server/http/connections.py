"""Closes connections without calls: a client that sends nothing, or never ends a header, would otherwise keep one for ever."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


def patient_for(seconds: float) -> type[asyncio.Protocol]:
    """HTTP as uvicorn speaks it, on connections that are closed where a header is not whole within `seconds`. Between two calls
    uvicorn's own time for idle connections counts."""
    return cast(type[asyncio.Protocol], partial(_Patient, seconds))


class _Patient(HttpToolsProtocol):
    def __init__(self, seconds: float, **parts: Any) -> None:
        super().__init__(**parts)
        self._seconds = seconds
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait()

    def on_headers_complete(self) -> None:
        self._stop()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._stop()
        self._timer = self.loop.call_later(self._seconds, self.transport.close)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
