"""`stepwell serve`: an HTTP front end here, an engine in a child process, and a clean end for both."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import resource
import shlex
import signal
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import uvicorn
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from stepwell.base.clock import WallClock
from stepwell.base.errors import ConfigError, EngineDead
from stepwell.engine.config import EngineConfig, EngineFacts, flag
from stepwell.engine.process.garbage import settle_front
from stepwell.engine.process.spawn import EngineProcess
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.server.batches.store import BatchStore
from stepwell.server.commands.keeper import Keeper
from stepwell.server.commands.options import Endings, ServeOptions
from stepwell.server.commands.preflight import listen
from stepwell.server.commands.settings import TraceTarget
from stepwell.server.generation.client import EngineClient
from stepwell.server.http.app import create_app
from stepwell.server.http.connections import patient_for
from stepwell.server.http.parts import Parts
from stepwell.server.http.starting import Front, Starting
from stepwell.server.observe import descriptors, journal
from stepwell.server.observe.metrics import Metrics
from stepwell.server.prompt.templates import Templates, started
from stepwell.server.read.defaults import SamplingDefaults, print_defaults, read_defaults, with_ends

if TYPE_CHECKING:
    from stepwell.server.observe.otlp import Otlp

log = logging.getLogger("stepwell.server")

_Result = TypeVar("_Result")
_GRACE = 3  # seconds that open connections get to hear the end
_LOOK = 0.05  # seconds between two looks at something that ends soon


class _Server(uvicorn.Server):
    """Leaves signals to the caller."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(options: ServeOptions, console: Console) -> int:
    """Serve until SIGINT or SIGTERM; returns the exit status. Raises ConfigError where it cannot start.

    A signal during the start gives 128 + its number, as a shell does. A thread may then still be importing libraries: end the
    process without waiting for it (`leave`).
    """
    raise_descriptors()
    defaults = read_defaults(options.config.model, options.generation_config, options.generation_override)
    with contextlib.ExitStack() as owned:
        listener = owned.enter_context(contextlib.closing(listen(options.host, options.port)))
        otlp = tracer(options.traces)
        if otlp is not None:
            owned.callback(otlp.close)
        runner = owned.enter_context(asyncio.Runner(loop_factory=_loop_factory))
        return runner.run(_serve(options, defaults, listener, console, otlp))


def raise_descriptors() -> None:
    """Let this process and its children open as many files as the system allows: each connection is one."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tracer(target: TraceTarget | None) -> Otlp | None:
    """The tracer of calls, if one is configured. Raises ConfigError."""
    if target is None:
        return None
    try:
        from stepwell.server.observe.otlp import Otlp

        return Otlp.to(target.url)
    except ImportError as error:
        if target.asked:
            raise ConfigError(
                f"--otlp-endpoint needs OpenTelemetry's SDK ({error}): install Stepwell with its extra [otel]"
            ) from error
        log.info("no traces: OTEL_EXPORTER_OTLP_ENDPOINT is set, but Stepwell was installed without its extra [otel]")
        return None
    except ValueError as error:
        raise ConfigError(f"OpenTelemetry cannot use its settings ({error}): look at the OTEL_ variables") from error


def _loop_factory() -> asyncio.AbstractEventLoop:
    factory = uvicorn.Config(app="", log_config=None).get_loop_factory()  # uvloop where it is installed
    return asyncio.new_event_loop() if factory is None else factory()


def leave(status: int) -> NoReturn:
    """End this process now: no exit handlers, no waiting for threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


@dataclass(slots=True)
class _Signals:
    """`stop` is set by the first signal to end, whose `number` is kept, `hurry` by any after it."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    number: int = 0

    def receive(self, number: int) -> None:
        self.number = self.number or number
        (self.hurry if self.stop.is_set() else self.stop).set()


async def _serve(
    options: ServeOptions, defaults: SamplingDefaults, listener: socket.socket, console: Console, otlp: Otlp | None
) -> int:
    signals = _Signals()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, signals.receive, number)
    process = await _engine(options)
    metrics = Metrics()
    client = EngineClient(process.link, metrics, options.patience)
    front = Front(Starting(WallClock(), lambda: client.starting), options.origins)
    keeper = Keeper(
        process, lambda: asyncio.ensure_future(_engine(options)), client, options.care, metrics, WallClock()
    )
    watch = asyncio.create_task(keeper.run())
    patience = 0.0
    try:
        async with _answering(front, listener, options) as ended:
            console.print(f"Starting the engine for {options.config.model} …", highlight=False, markup=False)
            ready = await _unless(signals.stop, _start(options, client))
            if ready is None:
                return 128 + signals.number
            facts, tokenizer, templates = ready
            with contextlib.closing(templates):
                settle_front()
                patience = options.endings.engine
                print_start(console, options.config, options.given, facts)
                print_defaults(console, defaults, facts.ends, tokenizer)
                parts = _parts(options, client, tokenizer, facts, metrics, otlp)
                known = with_ends(defaults, facts.ends, tokenizer)
                parts = replace(parts, defaults=known, templates=templates)
                if options.metrics_compat == "vllm":
                    metrics.also_as_vllm(parts.served.first, lambda: client.stats)
                metrics.watch(lambda: client.stats, lambda: client.trouble is None)
                keeper.serves()
                front.app = create_app(parts)
                host, port = listener.getsockname()[:2]
                print_addresses(console, facts, host, port, options.keys.required)
                await _until_stopped(parts, templates, ended, signals, options.endings, console)
    except EngineDead as error:
        raise ConfigError(str(error)) from error
    finally:
        await _cancelled(watch)
        died = client.dead is not None
        client.close()
        await keeper.stop(patience, signals.hurry)
    return 1 if died and not signals.stop.is_set() else 0


def _parts(
    options: ServeOptions,
    client: EngineClient,
    tokenizer: Tokenizer,
    facts: EngineFacts,
    metrics: Metrics,
    otlp: Otlp | None,
) -> Parts:
    return Parts(
        client,
        tokenizer,
        facts,
        metrics,
        options.limits,
        keys=options.keys,
        origins=options.origins,
        allow_reset=options.allow_reset,
        template=options.template,
        otlp=otlp,
        names=options.names,
        batches=None if options.batches is None else BatchStore.parse(options.batches, options.keys.owners),
    )


async def _engine(options: ServeOptions) -> EngineProcess:
    return await EngineProcess.start(options.config, options.factory, options.log_format)


async def _cancelled(task: asyncio.Task[None]) -> None:
    """End a task and wait until it has ended."""
    task.cancel()
    await asyncio.wait((task,))


async def _start(options: ServeOptions, client: EngineClient) -> tuple[EngineFacts, Tokenizer, Templates]:
    """Start the engine, and load the tokenizer with its template meanwhile. Fails once either does. Raises ConfigError, EngineDead."""
    ready, reading = asyncio.ensure_future(client.ready()), asyncio.ensure_future(_read_texts(options))
    try:
        facts, (tokenizer, templates) = await asyncio.gather(ready, reading)
    finally:
        ready.cancel()
        reading.cancel()
    return facts, tokenizer, templates


async def _read_texts(options: ServeOptions) -> tuple[Tokenizer, Templates]:
    """The tokenizer, and processes for its chat template, both seen to work."""
    tokenizer = await _beside(lambda: Tokenizer.load(options.config.model, options.template.text))
    return tokenizer, await started(tokenizer.chat)


def _beside(work: Callable[[], _Result]) -> asyncio.Future[_Result]:
    """The result of `work`, run on a thread of its own that is never joined: asyncio's own threads are joined at the end,
    and the import of a tokenizer's libraries takes seconds and cannot be cancelled."""
    result: Future[_Result] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(work())
        except Exception as error:
            result.set_exception(error)

    threading.Thread(target=run, name="stepwell-start", daemon=True).start()
    return asyncio.wrap_future(result)


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, _Result]) -> _Result | None:
    """The result of `work`, or None if the user wants to stop before it is there."""
    task, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        return task.result()
    task.cancel()
    return None


@contextlib.asynccontextmanager
async def _answering(app: Front, listener: socket.socket, options: ServeOptions) -> AsyncIterator[asyncio.Task[None]]:
    """HTTP answered by `app` within the block, whose end waits a moment for open connections. The task ends where the server does."""
    config = uvicorn.Config(
        app,
        http=patient_for(options.limits.body_seconds),
        lifespan="off",
        log_config=None,
        access_log=False,
        timeout_keep_alive=options.endings.keep_alive,
        timeout_graceful_shutdown=_GRACE,
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not running.done():  # who reads that we serve may call at once
        await asyncio.sleep(_LOOK)
    try:
        yield running
    finally:
        server.should_exit = True
        await running


async def _until_stopped(
    parts: Parts, templates: Templates, ended: asyncio.Task[None], signals: _Signals, endings: Endings, console: Console
) -> None:
    """Serve until a signal, the end of the engine or that of the HTTP server; then let open calls end."""
    reporting = [asyncio.create_task(work) for work in (journal.report(parts.metrics.recent), descriptors.report())]
    others = [asyncio.create_task(signals.stop.wait()), asyncio.create_task(_outlive(parts.client, endings.dead))]
    await asyncio.wait((ended, *others), return_when=asyncio.FIRST_COMPLETED)
    parts.door.open = False
    await _drain(parts.client, templates, endings.drain, signals.hurry, console)
    console.print("Stopping …")
    parts.client.close()  # every open stream hears it now instead of being cut
    for task in (*reporting, *others):
        task.cancel()


async def _outlive(client: EngineClient, seconds: float) -> None:
    """Return some time after the engine has died: until then the server tells everyone why."""
    while client.dead is None:
        await asyncio.sleep(_LOOK)
    await asyncio.sleep(seconds)


async def _drain(
    client: EngineClient, templates: Templates, seconds: float, hurry: asyncio.Event, console: Console
) -> None:
    """Wait until the last open sequence has ended and no prompt is rendered any more: at most `seconds`, and no longer than until someone
    is in a hurry."""
    if client.open and seconds:
        console.print(
            f"Stopping: {client.open} sequences have {seconds:g} s to end (signal again to end them now) …",
            highlight=False,
        )
    deadline = asyncio.get_running_loop().time() + seconds
    while (client.open or templates.open) and not hurry.is_set() and asyncio.get_running_loop().time() < deadline:
        await asyncio.sleep(_LOOK)


def start_time(phases: Sequence[tuple[str, float]]) -> tuple[str, str]:
    """Seconds that the engine took to start, and what it was doing, for people: what took no tenth of a second is left out."""
    told = [f"{name} {seconds:.1f}" for name, seconds in phases if seconds >= 0.05]
    return f"{sum(seconds for _, seconds in phases):.1f} s", ", ".join(told)


def print_start(console: Console, config: EngineConfig, given: frozenset[str], facts: EngineFacts) -> None:
    """The memory plan, and what each flag is."""
    plan = Table("memory plan", "", "", title_justify="left", box=None, header_style="bold")
    for row in facts.memory_plan:
        plan.add_row(*row)
    if facts.phases:
        plan.add_row("start", *start_time(facts.phases))
    if facts.memory_plan:
        console.print(plan)
    flags = Table("flag", "value", "", box=None, header_style="bold")
    for f in fields(config):
        if f.name == "faults" and not config.faults:
            continue
        name = "MODEL" if f.name == "model" else flag(f.name)
        flags.add_row(name, str(getattr(config, f.name)), "given" if f.name in given or name == "MODEL" else "default")
    console.print(flags)
    for doubt in facts.doubts:
        console.print(f"[yellow]warning:[/] {escape(doubt)}", highlight=False, soft_wrap=True)


def print_addresses(console: Console, facts: EngineFacts, host: str, port: int, keys: bool) -> None:
    """Where the page, the API and the dashboard are, with a call to try; `keys`: it needs one."""
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    body = json.dumps({"model": facts.model, "messages": [{"role": "user", "content": "Hello"}]}, ensure_ascii=False)
    head = "-H 'content-type: application/json'" + (" -H 'authorization: Bearer KEY'" if keys else "")
    lines = (
        f"page       {url}/",
        f"API        {url}/v1",
        f"dashboard  {url}/dashboard",
        f"try        curl {url}/v1/chat/completions {head} -d {shlex.quote(body)}",
        f"Serving {facts.model} on {url} (Ctrl-C to stop)",
    )
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)
