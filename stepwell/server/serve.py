"""`stepwell serve`: an HTTP front end here, an engine in a child process, and a clean end for both."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import uvicorn
from rich.console import Console
from rich.table import Table

from stepwell.base.errors import ConfigError, EngineDead
from stepwell.base.units import parse_size
from stepwell.engine.config import EngineConfig, EngineFacts, engine_config, flag
from stepwell.engine.spawn import DEFAULT_FACTORY, EngineProcess
from stepwell.engine.tokenizer import Tokenizer
from stepwell.server.app import create_app
from stepwell.server.client import EngineClient
from stepwell.server.metrics import Metrics
from stepwell.server.parts import Limits, Parts

log = logging.getLogger("stepwell.server")

_Result = TypeVar("_Result")
_GRACE = 3  # seconds that open connections get to hear the end


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to serve, and where. `given` are the names of the config's fields that the user set."""

    config: EngineConfig
    host: str = "127.0.0.1"
    port: int = 8000
    limits: Limits = field(default_factory=Limits)
    given: frozenset[str] = frozenset()
    factory: str = DEFAULT_FACTORY


def options_from(values: Mapping[str, Any], given: frozenset[str]) -> ServeOptions:
    """Options from the flags of `stepwell serve` by name. Raises ConfigError."""
    names = {f.name for f in fields(EngineConfig)}
    config = engine_config({name: value for name, value in values.items() if name in names})
    limits = Limits(body_bytes=parse_size(values["max_body_size"]), queue=values["max_queue"])
    if limits.queue < 1:
        raise ConfigError(f"--max-queue must be at least 1, not {limits.queue}")
    if limits.body_bytes < 1:
        raise ConfigError("--max-body-size must be at least 1")
    if not 0 <= values["port"] < 65536:
        raise ConfigError(f"--port must be between 0 and 65535, not {values['port']}")
    return ServeOptions(config, values["host"], values["port"], limits, given)


class _Server(uvicorn.Server):
    """Leaves signals to whoever runs it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(options: ServeOptions, console: Console) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit status. Raises ConfigError where it cannot start."""
    with contextlib.closing(_listen(options)) as listener, asyncio.Runner(loop_factory=_loop_factory) as runner:
        return runner.run(_serve(options, listener, console))


def _loop_factory() -> asyncio.AbstractEventLoop:
    factory = uvicorn.Config(app="", log_config=None).get_loop_factory()  # uvloop where it is installed
    return asyncio.new_event_loop() if factory is None else factory()


def _listen(options: ServeOptions) -> socket.socket:
    """Take the port before anything slow begins."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {options.host}:{options.port} ({error}): choose another --host or --port"
        ) from error
    listener.set_inheritable(False)
    return listener


async def _serve(options: ServeOptions, listener: socket.socket, console: Console) -> int:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    process = await EngineProcess.start(options.config, options.factory)
    metrics = Metrics()
    client = EngineClient(process.link, metrics)
    watch = asyncio.create_task(_watch(process, client))
    ready = False
    try:
        console.print(f"Starting the engine for {options.config.model} …", highlight=False, markup=False)
        started = await _unless(stop, _start(options, client))
        if started is None:
            return 0
        facts, tokenizer = started
        ready = True
        print_start(console, options.config, options.given, facts)
        await _run_http(Parts(client, tokenizer, facts, metrics, options.limits), listener, stop, console)
    except EngineDead as error:
        raise ConfigError(str(error)) from error
    finally:
        watch.cancel()
        client.close()
        await process.stop(patience=_GRACE if ready else 0)
    return 0


async def _watch(process: EngineProcess, client: EngineClient) -> None:
    """Tell the client when the process ends, however it ends."""
    client.die(await process.ended())


async def _start(options: ServeOptions, client: EngineClient) -> tuple[EngineFacts, Tokenizer]:
    tokenizer = asyncio.create_task(asyncio.to_thread(Tokenizer.load, options.config.model))
    try:
        return await client.ready(), await tokenizer
    finally:
        tokenizer.cancel()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, _Result]) -> _Result | None:
    """The result of `work`, or None if the user wants to stop before it is there."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return task.result()
    task.cancel()
    return None


async def _run_http(parts: Parts, listener: socket.socket, stop: asyncio.Event, console: Console) -> None:
    config = uvicorn.Config(
        create_app(parts), lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE
    )
    server = _Server(config)
    parts.metrics.watch(lambda: parts.client.stats, lambda: parts.client.dead is None)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    host, port = listener.getsockname()[:2]
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    console.print(f"Serving {parts.facts.model} on http://{where} (Ctrl-C to stop)", highlight=False, markup=False)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
    console.print("Stopping …")
    parts.client.close()  # every open stream hears it now instead of being cut
    server.should_exit = True
    await running
    stopping.cancel()


def print_start(console: Console, config: EngineConfig, given: frozenset[str], facts: EngineFacts) -> None:
    """The memory plan, and what each flag is."""
    plan = Table("memory plan", "", "", title_justify="left", box=None, header_style="bold")
    for row in facts.memory_plan:
        plan.add_row(*row)
    if facts.memory_plan:
        console.print(plan)
    flags = Table("flag", "value", "", box=None, header_style="bold")
    for f in fields(config):
        name = "MODEL" if f.name == "model" else flag(f.name)
        flags.add_row(name, str(getattr(config, f.name)), "given" if f.name in given or name == "MODEL" else "default")
    console.print(flags)
