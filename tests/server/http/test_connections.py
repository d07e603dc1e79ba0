"""Connections on which no call comes are closed; those on which one comes are not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvicorn
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from stepwell.server.http.connections import patient_for

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
CALL = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.sleep(0.3 if scope["path"] == "/slow" else 0)
    await PlainTextResponse("hello")(scope, receive, send)


def during(seconds: float, talk: Talk) -> None:
    """Talk to a server that waits `seconds` for a header."""

    async def run() -> None:
        config = uvicorn.Config(hello, port=0, lifespan="off", log_config=None, http=patient_for(seconds))
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.01)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.servers[0].sockets[0].getsockname()[1])
        async with asyncio.timeout(60):
            await talk(reader, writer)
        writer.close()
        server.should_exit = True
        await serving

    asyncio.run(run())


@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nhost: x\r\n"])
def test_a_header_that_never_ends_ends_its_connection(sent: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(sent)
        assert await reader.read() == b""

    during(0.1, talk)


def test_the_second_call_of_a_connection_has_as_long_as_the_first() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CALL)
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")
        writer.write(CALL[:-2])
        assert await reader.read() == b""

    during(0.1, talk)


def test_calls_that_take_longer_are_answered() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(2):
            writer.write(CALL.replace(b"/ ", b"/slow ", 1))
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200")

    during(0.2, talk)
