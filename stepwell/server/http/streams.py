"""Work that ends when its client goes away, streamed or not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from fastapi import Response
from starlette.types import Receive, Scope, Send

from stepwell.server.http.errors import ApiError, Problem

_Result = TypeVar("_Result")
_DIRECT_SEND = "stepwell.send"
_BEAT = 5.0  # seconds; agents show when nothing comes, and give up after a while
_COMMENT = b": still here\n\n"


@contextmanager
def direct_send_noted(scope: Scope, send: Send) -> Iterator[None]:
    """Store the server's own `send` in the scope for the time of a call, so that `direct_send` can bypass the middleware.

    It is taken out again at the end: `send` belongs to an object that holds the scope, and the two would keep each other, and all that the
    call has built, until the collector comes.
    """
    scope[_DIRECT_SEND] = send
    try:
        yield
    finally:
        del scope[_DIRECT_SEND]


def direct_send(scope: Scope, wrapped: Send) -> Send:
    """How to send the parts of a body without passing, for each, through wrappers that are only there for its headers."""
    send: Send = scope.get(_DIRECT_SEND, wrapped)
    return send


async def while_connected(receive: Receive, work: Coroutine[Any, Any, _Result]) -> _Result:
    """The result of `work`, which is cancelled if the client leaves first (then raises ApiError). The body has been read."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnected(receive))
    try:
        await asyncio.wait((task, gone), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ApiError(Problem(499, "the client has gone"))
        return task.result()
    finally:
        await _cancel(task, gone)


class EventStream(Response):
    """Server-sent events from `chunks`; `close` is called once in any case, even if no chunk was ever asked for.

    After `seconds` without a chunk `beat` gives one that adds nothing, so that nobody takes a long prefill for a dead connection.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncIterator[bytes],
        close: Callable[[], None],
        headers: dict[str, str],
        beat: Callable[[], bytes] = lambda: _COMMENT,
        seconds: float = _BEAT,
    ) -> None:
        super().__init__(None, 200, {"cache-control": "no-cache", "x-accel-buffering": "no", **headers})
        del self.headers["content-length"]
        self._chunks = chunks
        self._close = close
        self._beat = beat
        self._seconds = seconds
        self._waiting = False  # for a chunk; otherwise one is being sent, or nothing may be sent
        self._sent = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        pump = asyncio.create_task(self._pump(scope, send))
        gone = asyncio.create_task(_disconnected(receive))
        try:
            seen = 0
            while not (await _first(pump, gone, timeout=self._seconds)):
                if self._waiting and self._sent == seen:
                    await direct_send(scope, send)(_part(self._beat()))
                seen = self._sent
            if pump.done():
                pump.result()
        finally:
            await _cancel(pump, gone)
            self._close()

    async def _pump(self, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        send = direct_send(scope, send)
        self._waiting = True
        async for chunk in self._chunks:
            self._waiting = False
            await send(_part(chunk))
            self._sent += 1
            self._waiting = True
        self._waiting = False
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _part(chunk: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": chunk, "more_body": True}


async def _first(*tasks: asyncio.Task[Any], timeout: float) -> bool:
    """Whether one of `tasks` has ended within `timeout` seconds."""
    done, _ = await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Task[Any]) -> None:
    """End tasks and wait until they have ended; what they raise is known already or of no use."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
