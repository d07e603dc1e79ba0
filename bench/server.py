"""What the server and the scheduler cost a token, next to a bare uvicorn app that streams the same bytes.

    python bench/server.py                      256 streams of 96 tokens on the tell-tale model
    python bench/server.py --serve stepwell     the server alone, for others to ask (bench/soak.py does)

As `stepwell serve` does it: HTTP in one process, engine loop and tell-tale in another; the callers are in a third. What counts is
processor time of the serving processes, so that a busy machine does not change the figure much; the time inside the tell-tale
is taken out, since a model would spend it elsewhere. Prints a table, then one line of JSON: streams, µs of processor time a token,
and that over the bare app's.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
import uvloop
import zmq
from rich.console import Console
from rich.table import Table

from stepwell.base.clock import WallClock
from stepwell.cache.config import CacheConfig
from stepwell.engine.config import EngineConfig, EngineFacts, Report
from stepwell.engine.owned import OwnedLoop
from stepwell.engine.process import messages
from stepwell.engine.process.garbage import settle_front
from stepwell.engine.process.serving import answers_address, commands_address, serve
from stepwell.engine.process.spawn import EngineLink
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Event, Finished, Request
from stepwell.sched.step import Done, Step
from stepwell.server.generation.client import EngineClient
from stepwell.server.http.app import create_app
from stepwell.server.http.parts import Parts
from stepwell.server.observe.metrics import Metrics
from stepwell.testing.faults import InstantMover
from stepwell.testing.telltale import Memory, TellTaleRunner, geometry
from stepwell.testing.tokenizer import train_tokenizer, write_tokenizer

VOCAB = 300
CONTEXT = 4096
BLOCK = 16
BARE_ROUNDS = 10  # one takes so little that clock ticks would show
_SEND = {"type": "http.response.body", "more_body": True}


# ---- the serving process ---------------------------------------------------------------------------------------------


class TimedRunner:
    """The tell-tale, and how long the thread has computed in it."""

    def __init__(self, inner: TellTaleRunner) -> None:
        self._inner = inner
        self.seconds = 0.0

    def launch(self, step: Step) -> Done:
        began = time.thread_time()
        result = self._inner.launch(step)
        self.seconds += time.thread_time() - began
        return result


class Ledger(OwnedLoop):
    """The real loop, which notes what came in and what ended."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.taken = self.ended = self.ended_twice = 0
        self._open: set[str] = set()

    def submit(self, request: Request) -> None:
        super().submit(request)
        self._open.add(request.id)
        self.taken += 1

    def step(self, *, wait: float = 0.05) -> list[Event]:
        events = super().step(wait=wait)
        for event in events:
            if isinstance(event, Finished) and event.request_id in self._open:
                self._open.remove(event.request_id)
                self.ended += 1
            elif isinstance(event, Finished):
                self.ended_twice += 1
        return events


@dataclass(slots=True)
class Said:
    """What a serving process says when its input closes: processor seconds in the tell-tale, requests taken and ended."""

    model_seconds: float = 0.0
    taken: int = 0
    ended: int = 0
    ended_twice: int = 0
    leases: int = 0


def build_loop(sequences: int, pages: int, slots: int) -> tuple[Ledger, TimedRunner]:
    sizes = geometry(BLOCK, 64)
    memory = Memory(sizes, pages, slots, sequences)
    cache = CacheConfig(sizes, pages, slots, interval=1024, ghost_blocks=8 * pages)
    rules = SchedConfig(sequences, max(1024, sequences + 64), CONTEXT, vocab=VOCAB)
    runner = TimedRunner(TellTaleRunner(memory, sizes, VOCAB))
    return Ledger(cache, rules, runner, InstantMover(memory.copy), WallClock()), runner


async def serve_stepwell(options: argparse.Namespace, tokenizer: Tokenizer) -> str:
    """The server, until standard input closes, on an engine in a process of its own; returns what that said at its end."""
    directory = tempfile.mkdtemp(prefix="sw-")
    link = EngineLink(directory)
    sizes = [f"--{name}={getattr(options, name)}" for name in ("sequences", "pages", "slots")]
    command = [sys.executable, __file__, "--serve", "engine", "--sockets", directory, *sizes]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        metrics = Metrics()
        client = EngineClient(link, metrics)
        facts = await client.ready()
        settle_front()
        metrics.watch(lambda: client.stats, lambda: client.dead is None)
        try:
            await _serve(create_app(Parts(client, tokenizer, facts, metrics)), engine.pid)
        finally:
            client.close()
            link.send(messages.Stop())
            said, _ = await asyncio.to_thread(engine.communicate, timeout=10)
            link.close()
            shutil.rmtree(directory)
    return said


def run_engine(options: argparse.Namespace) -> None:
    """The engine's process: says at its end what it has counted. Ends with standard input, too."""
    loop, runner = build_loop(options.sequences, options.pages, options.slots)
    context = zmq.Context()
    commands, answers = context.socket(zmq.PULL), context.socket(zmq.PUSH)
    for socket in (commands, answers):
        socket.set_hwm(0)
    commands.bind(commands_address(options.sockets))
    answers.connect(answers_address(options.sockets))
    threading.Thread(target=_end_with_input, daemon=True).start()

    def factory(config: EngineConfig, report: Report) -> Ledger:
        report(EngineFacts("telltale", loop.longest, VOCAB))
        return loop

    serve(factory, EngineConfig("telltale"), commands, answers, WallClock())
    said = Said(runner.seconds, loop.taken, loop.ended, loop.ended_twice, loop.stats().leases)
    print(json.dumps({name: getattr(said, name) for name in Said.__slots__}), flush=True)
    context.destroy(linger=1000)


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    time.sleep(5)  # whoever was told to stop has done so by then
    os._exit(1)


async def serve_bare(chunks: list[bytes]) -> None:
    """An app that reads a call and sends `chunks`, letting the other streams in between."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive()).get("more_body"):
            pass
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in chunks:
            await send({**_SEND, "body": chunk})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    await _serve(app)


async def _serve(app: Any, *others: int) -> None:
    """Serve until standard input closes. Tells its port, and which processes work for it: itself and `others`."""
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None, access_log=False, timeout_graceful_shutdown=3)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    print(server.servers[0].sockets[0].getsockname()[1], os.getpid(), *others, flush=True)
    await asyncio.to_thread(sys.stdin.buffer.read)
    server.should_exit = True
    await running


def run_server(options: argparse.Namespace) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    if options.serve == "engine":
        run_engine(options)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as `stepwell serve` has it
        if options.serve == "bare":
            chunks = [line.encode() + b"\n\n" for line in Path(options.bytes).read_text("utf-8").split("\n\n") if line]
            runner.run(serve_bare(chunks))
            print("{}", flush=True)
            return
        with tempfile.TemporaryDirectory() as directory:
            write_tokenizer(Path(directory), train_tokenizer(VOCAB), CONTEXT)
            tokenizer = Tokenizer.load(directory)
        print(runner.run(serve_stepwell(options, tokenizer)), end="", flush=True)


# ---- the calling process ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Serving:
    """Processes that serve: HTTP first, then the engine, if any. `said` is what was told at the end."""

    port: int
    pids: tuple[int, ...]
    said: dict[str, float] = field(default_factory=dict)

    def processor_seconds(self) -> tuple[float, ...]:
        """Of each process, since its start."""
        return tuple(map(processor_seconds, self.pids))


def processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(*arguments: str) -> Iterator[Serving]:
    command = [sys.executable, __file__, *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            port, *pids = map(int, process.stdout.readline().split())
            served = Serving(port, tuple(pids))
            yield served
            process.stdin.close()
            served.said.update(json.loads(process.stdout.readline()))
        finally:
            process.kill()


@dataclass(frozen=True, slots=True)
class Heard:
    """One stream: its bytes, and when parts of it came."""

    data: bytes
    times: tuple[float, ...]

    @property
    def longest_gap(self) -> float:
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


async def listen(port: int, body: bytes) -> Heard:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    parts, times = [], [time.perf_counter()]
    while part := await reader.read(2**16):
        parts.append(part)
        times.append(time.perf_counter())
    writer.close()
    return Heard(b"".join(parts), tuple(times))


async def listen_to_all(port: int, bodies: list[bytes]) -> list[Heard]:
    return await asyncio.gather(*(listen(port, body) for body in bodies))


def text_of(heard: Heard) -> str:
    """Events of a stream, without the framing of HTTP."""
    head, _, rest = heard.data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    out = bytearray()
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        out += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return out.decode()


@dataclass(frozen=True, slots=True)
class Figures:
    """`processor` seconds of each process."""

    processor: tuple[float, ...]
    wall: float
    longest_gap: float
    heard: list[Heard]


def measure(served: Serving, bodies: list[bytes], rounds: int = 1) -> Figures:
    """Figures of one round: the mean of `rounds`, but for what was heard and the longest gap, which are the last one's."""
    asyncio.run(listen_to_all(served.port, bodies[:8]))  # whatever is loaded late is loaded now
    before, began = served.processor_seconds(), time.perf_counter()
    for _ in range(rounds):
        heard = asyncio.run(listen_to_all(served.port, bodies))
    wall = (time.perf_counter() - began) / rounds
    spent = tuple((b - a) / rounds for a, b in zip(before, served.processor_seconds(), strict=True))
    return Figures(spent, wall, max(h.longest_gap for h in heard), heard)


def main() -> None:
    options = parse_arguments()
    if options.serve:
        run_server(options)
        return
    rng = np.random.default_rng(0)
    prompts = rng.integers(3, VOCAB, (options.streams, options.prompt))
    fields = {"max_tokens": options.tokens, "ignore_eos": True, "stream": True}
    bodies = [json.dumps({"prompt": prompt.tolist(), **fields}).encode() for prompt in prompts]
    pages = str(options.streams * (options.prompt + options.tokens + 6 * BLOCK) // BLOCK)
    sizes = ("--sequences", str(options.streams), "--pages", pages, "--slots", "0")
    with serving("--serve", "stepwell", *sizes) as served:
        real = measure(served, bodies)
    tokens, asked = options.streams * options.tokens, (options.streams + 8) * options.tokens
    model = served.said["model_seconds"] * tokens / asked  # the first calls, too
    lengths = [text_of(heard).count("\n\n") for heard in real.heard]
    typical = sorted(zip(lengths, map(text_of, real.heard), strict=True))[len(lengths) // 2][1]
    with tempfile.NamedTemporaryFile("w", suffix=".sse") as file:
        file.write(typical)
        file.flush()
        with serving("--serve", "bare", "--bytes", file.name) as served:
            bare = measure(served, bodies, BARE_ROUNDS)
    ours, theirs = (sum(real.processor) - model) / tokens, sum(bare.processor) / tokens
    show(real, bare, model, tokens, statistics.mean(lengths))
    line = {
        "streams": options.streams,
        "us_per_token": round(ours * 1e6, 1),
        "over_bare_server": round(ours / theirs, 2),
    }
    print(json.dumps(line))


def show(real: Figures, bare: Figures, model: float, tokens: int, events: float) -> None:
    http, engine = (seconds / tokens * 1e6 for seconds in real.processor)
    inside = model / tokens * 1e6
    table = Table("", "stepwell", "bare app", box=None)
    table.add_row("processor, µs a token", f"{http + engine - inside:.1f}", f"{sum(bare.processor) / tokens * 1e6:.1f}")
    table.add_row("… in the process that speaks HTTP", f"{http:.1f}", "")
    table.add_row("… in the engine's loop and messages", f"{engine - inside:.1f}", "")
    table.add_row("… in the tell-tale, taken out", f"{inside:.1f}", "")
    table.add_row("wall, s", f"{real.wall:.2f}", f"{bare.wall:.2f}")
    table.add_row("longest wait of any stream, s", f"{real.longest_gap:.2f}", f"{bare.longest_gap:.2f}")
    table.add_row("events a stream", f"{events:.1f}", f"{events:.1f}")
    Console().print(table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=96, help="of each answer")
    parser.add_argument("--prompt", type=int, default=32, help="tokens of each prompt")
    parser.add_argument(
        "--serve", choices=("stepwell", "bare", "engine"), help="only serve, until standard input closes"
    )
    parser.add_argument("--sequences", type=int, default=64, help="with --serve: sequences that run at once")
    parser.add_argument("--pages", type=int, default=4096, help="with --serve: device pages")
    parser.add_argument("--slots", type=int, default=0, help="with --serve: host slots")
    parser.add_argument("--sockets", help="with --serve engine: the directory of the sockets between the processes")
    parser.add_argument("--bytes", help="with --serve bare: a file with the events to be sent")
    return parser.parse_args()


if __name__ == "__main__":
    main()
