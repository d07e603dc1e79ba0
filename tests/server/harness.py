"""A whole server in this process: real HTTP, real sockets to the engine, a scripted loop behind them."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
import zmq

from stepwell.base.clock import WallClock
from stepwell.engine.config import EngineConfig, Report
from stepwell.engine.process import messages
from stepwell.engine.process.serving import ServedLoop, answers_address, commands_address, serve
from stepwell.engine.process.spawn import EngineLink
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.generation.answers import Patience
from stepwell.server.generation.client import EngineClient
from stepwell.server.http.app import create_app
from stepwell.server.http.parts import Limits, Parts
from stepwell.server.observe.metrics import Metrics
from stepwell.server.prompt.template_use import TemplateUse
from stepwell.testing.tokenizer import train_tokenizer, write_tokenizer
from tests.engine.scripted import ScriptedLoop, facts

MODEL = "tiny"


def tokenizer_directory(path: Path) -> Path:
    """A directory with a tokenizer of 300 tokens in it."""
    write_tokenizer(path, train_tokenizer(300), 4096)
    return path


def eventually(condition: Callable[[], bool]) -> bool:
    """Whether a condition comes true; the time is only a bound."""
    deadline = time.monotonic() + 90
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return condition()


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers."""

    url: str
    loop: Any
    client: EngineClient


@contextlib.contextmanager
def running(
    tokenizer: Tokenizer,
    limits: Limits | None = None,
    loop: Any = None,
    patience: Patience | None = None,
    **parts: Any,
) -> Iterator[Running]:
    """A server until the block ends, on `loop` or a scripted one. `parts` are further parts of a server, by name.

    A scripted loop says its prompt again, so that marks in contents must be tokens; and it remembers what it was asked, so
    that nothing is asked ahead.
    """
    parts = {"template": TemplateUse(plain=False, look_ahead=False), **parts}
    directory = tempfile.mkdtemp(prefix="sw-")
    loop = loop or ScriptedLoop()
    engine = threading.Thread(target=_engine, args=(loop, directory))
    front = _Front(directory, tokenizer, patience, {"limits": limits or Limits(), **parts})
    engine.start()
    front.start()
    try:
        front.up.wait(20)
        assert front.client is not None, "the server did not start"
        yield Running(front.url, loop, front.client)
    finally:
        if isinstance(loop, ScriptedLoop):
            loop.gate.set()
        front.stop()
        engine.join(20)
        shutil.rmtree(directory)
        assert not engine.is_alive()


def _engine(loop: ServedLoop, directory: str) -> None:
    context = zmq.Context()
    commands, answers = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    commands.bind(commands_address(directory))
    answers.connect(answers_address(directory))

    def factory(config: EngineConfig, report: Report) -> ServedLoop:
        report(facts(config))
        return loop

    with contextlib.suppress(RuntimeError):  # what the loop raises is told over the socket
        serve(factory, EngineConfig(MODEL), commands, answers, WallClock())
    context.destroy(linger=1000)


class _Front(threading.Thread):
    """uvicorn and the engine client, in the event loop of a thread."""

    def __init__(self, directory: str, tokenizer: Tokenizer, patience: Patience | None, parts: dict[str, Any]) -> None:
        super().__init__()
        self._directory = directory
        self._tokenizer = tokenizer
        self._patience = patience
        self._parts = parts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.up = threading.Event()
        self.client: EngineClient | None = None
        self._server: uvicorn.Server | None = None

    def run(self) -> None:
        asyncio.run(self._run())

    def stop(self) -> None:
        if self._server is not None:
            self._server.should_exit = True
        self.join(20)
        assert not self.is_alive()

    async def _run(self) -> None:
        metrics = Metrics()
        link = EngineLink(self._directory)
        client = EngineClient(link, metrics, self._patience)
        try:
            known = await client.ready()
            metrics.watch(lambda: client.stats, lambda: client.dead is None)
            app = create_app(Parts(client, self._tokenizer, known, metrics, **self._parts))
            # clients of whole modules keep their connection: on a busy machine it is idle for longer than a server's five seconds
            config = uvicorn.Config(
                app, lifespan="off", log_config=None, timeout_graceful_shutdown=3, timeout_keep_alive=600
            )
            self._server = uvicorn.Server(config)
            serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
            while not self._server.started:
                await asyncio.sleep(0.005)
            self.client = client
            self.up.set()
            await serving
        finally:
            self.up.set()
            client.close()
            link.send(messages.Stop())
            await asyncio.sleep(0.05)
            link.close()
