"""Streams: what keeps a silent one alive, and that nothing comes between its parts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from openai._streaming import SSEDecoder
from starlette.types import Message, Scope

from stepwell.server.http.streams import EventStream, direct_send_noted


class Wire:
    """What a stream has sent; its client never leaves. Bodies can be held up, as by a slow reader."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.calls = 0
        self.open = asyncio.Event()
        self.open.set()

    async def receive(self) -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    async def send(self, message: Message) -> None:
        self.calls += 1
        await self.open.wait()
        if "body" in message:
            self.bodies.append(message["body"])

    async def has(self, body: bytes, times: int) -> None:
        while self.bodies.count(body) < times:
            await asyncio.sleep(0.001)


COMMENT = b": still here\n\n"


def test_a_silent_stream_says_that_it_is_there() -> None:
    async def run() -> list[bytes]:
        wire, go = Wire(), asyncio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            await go.wait()
            yield b"data: 1\n\n"
            await go.wait()
            yield b"data: 2\n\n"

        stream = EventStream(chunks(), lambda: None, {}, seconds=0.001)
        running = asyncio.create_task(stream({"type": "http"}, wire.receive, wire.send))
        async with asyncio.timeout(60):
            await wire.has(COMMENT, 3)
            go.set()
            await running
        return wire.bodies

    bodies = asyncio.run(run())
    assert [body for body in bodies if body != COMMENT] == [b"data: 1\n\n", b"data: 2\n\n", b""]
    assert bodies[-1] == b""


def test_nothing_is_added_while_a_part_is_on_its_way() -> None:
    async def run() -> int:
        wire = Wire()

        async def chunks() -> AsyncIterator[bytes]:
            wire.open.clear()
            yield b"data: 1\n\n"

        stream = EventStream(chunks(), lambda: None, {}, seconds=0.001)
        running = asyncio.create_task(stream({"type": "http"}, wire.receive, wire.send))
        async with asyncio.timeout(60):
            await asyncio.sleep(0.05)
            calls = wire.calls
            wire.open.set()
            await running
        return calls

    assert asyncio.run(run()) == 2  # the headers and the part that is held up


def test_what_is_sent_in_silence_is_an_event_of_the_stream_s_own() -> None:
    async def run() -> list[bytes]:
        wire, go = Wire(), asyncio.Event()
        numbers = iter(range(9))

        async def chunks() -> AsyncIterator[bytes]:
            await go.wait()
            yield b"data: last\n\n"

        stream = EventStream(chunks(), lambda: None, {}, lambda: b"event: ping %d\n\n" % next(numbers), seconds=0.001)
        running = asyncio.create_task(stream({"type": "http"}, wire.receive, wire.send))
        async with asyncio.timeout(60):
            await wire.has(b"event: ping 2\n\n", 1)
            go.set()
            await running
        return wire.bodies

    assert asyncio.run(run())[:3] == [b"event: ping 0\n\n", b"event: ping 1\n\n", b"event: ping 2\n\n"]


def test_clients_skip_the_comment() -> None:
    events = list(SSEDecoder().iter_bytes(iter([COMMENT, b'data: {"a": 1}\n\n'])))
    assert [event.data for event in events] == ['{"a": 1}']


def test_parts_go_past_what_is_there_for_headers() -> None:
    async def run() -> tuple[list[str], list[bytes]]:
        wire, wrapped = Wire(), []

        async def wrapper(message: Message) -> None:
            wrapped.append(message["type"])
            await wire.send(message)

        async def chunks() -> AsyncIterator[bytes]:
            yield b"data: 1\n\n"

        scope: Scope = {"type": "http"}
        with direct_send_noted(scope, wire.send):
            await EventStream(chunks(), lambda: None, {})(scope, wire.receive, wrapper)
        return wrapped, wire.bodies

    assert asyncio.run(run()) == (["http.response.start"], [b"data: 1\n\n", b""])
