"""Hours of callers who behave badly, in minutes: does every request end once, and is nothing left behind?

    python bench/soak.py --minutes 30
    python bench/soak.py --minutes 60 --callers 8 --pause 1     a modest rate for an hour: does memory come to rest?

The real server and engine loop on the tell-tale (bench/server.py --serve), with pools too small for the conversations. Callers
talk in turns that grow and branch; some hang up at a random moment, some read slowly, some close their half of the socket
and read on, some send nonsense. Ends with one line of JSON.

`throughput_end_over_start` compares the server at its end with one that has just started, because nothing else on a shared machine
is worth the same at the end as at the start: for two minutes the two are asked by turns, the same things, a few seconds each. It is
the tokens that one generates for each second of its processor time, over those of the other. The table shows the whole run by the wall
clock and by processor time, too, and the memory of each process in each tenth of it.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table
from server import Serving, processor_seconds, serving

VOCAB = 300
LONGEST = 600
WARM_SECONDS = 30.0  # before a fresh server is compared with: its pools fill, and what is loaded late is loaded
TURN_SECONDS = 4.0
NONSENSE = (b"{", b'{"prompt": [-1]}', b'{"prompt": "x", "max_tokens": "many"}', b'{"prompt": []}', b"\xff\xfe", b"[]")


@dataclass(slots=True)
class Sums:
    """What callers did and got."""

    requests: int = 0
    whole: int = 0
    aborts: int = 0
    slow: int = 0
    half_closed: int = 0
    nonsense: int = 0
    refused: int = 0
    broken: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class World:
    """`pause`: seconds between two turns of a caller, on average."""

    port: int
    until: float
    sums: Sums
    pause: float = 0.0


async def caller(world: World, seed: int) -> None:
    """Conversations, one after another, until time is up."""
    rng = random.Random(seed)
    while time.monotonic() < world.until:
        shared = random.Random(rng.randrange(4))  # few openings, so that prompts meet in the tree
        prompt = [shared.randrange(3, VOCAB) for _ in range(64)]
        for _ in range(rng.randrange(1, 6)):
            prompt += [rng.randrange(3, VOCAB) for _ in range(rng.randrange(1, 80))]
            if len(prompt) > LONGEST or time.monotonic() > world.until:
                break
            await turn(world, rng, prompt)
            await asyncio.sleep(rng.expovariate(1 / world.pause) if world.pause else 0)
            if rng.random() < 0.2:
                prompt = prompt[: rng.randrange(1, len(prompt) + 1)]


async def turn(world: World, rng: random.Random, prompt: list[int]) -> None:
    kind = rng.choices(("whole", "aborts", "slow", "half_closed", "nonsense"), (60, 20, 8, 7, 5))[0]
    fields = {"max_tokens": rng.randrange(1, 60), "ignore_eos": True, "stream": rng.random() < 0.7}
    body = json.dumps({"prompt": prompt, "n": rng.choice((1, 1, 1, 2)), **fields}).encode()
    body = rng.choice(NONSENSE) if kind == "nonsense" else body
    world.sums.requests += 1
    setattr(world.sums, kind, getattr(world.sums, kind) + 1)
    try:
        async with asyncio.timeout(120):
            await call(world, rng, kind, body)
    except (OSError, asyncio.IncompleteReadError) as error:
        world.sums.broken.append(f"{kind}: {type(error).__name__} {error}")


async def call(world: World, rng: random.Random, kind: str, body: bytes) -> None:
    """One connection, treated as `kind` says."""
    limit = 2**12 if kind == "slow" else 2**16
    reader, writer = await asyncio.open_connection("127.0.0.1", world.port, limit=limit)
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    try:
        sent = head.encode() + body
        if kind == "aborts" and rng.random() < 0.2:
            sent = sent[: rng.randrange(len(sent))]
        writer.write(sent)
        await writer.drain()
        if kind == "half_closed":
            writer.write_eof()
        if kind == "aborts":
            # mostly after so many bytes: what an aborted answer costs then does not hang on how fast the machine is
            some = reader.readexactly(rng.randrange(1, 2**13)) if rng.random() < 0.7 else reader.read(2**12)
            with contextlib.suppress(TimeoutError, asyncio.IncompleteReadError):
                await asyncio.wait_for(some, 2.0 if rng.random() < 0.7 else rng.random() * 0.3)
            writer.transport.abort()
            return
        await read(world, rng, kind, reader)
    finally:
        writer.close()


async def read(world: World, rng: random.Random, kind: str, reader: asyncio.StreamReader) -> None:
    heard = b""
    while part := await reader.read(256 if kind == "slow" else 2**16):
        heard += part
        if kind == "slow":
            await asyncio.sleep(rng.random() * 0.02)
    status = heard[9:12]
    if status in (b"429", b"503"):
        world.sums.refused += 1
    elif kind == "nonsense":
        if status != b"400":
            world.sums.broken.append(f"nonsense was answered with {heard[:60]!r}")
    elif kind != "half_closed" and (status != b"200" or not heard.endswith((b"0\r\n\r\n", b"}"))):
        world.sums.broken.append(f"{kind} was answered with {heard[:60]!r} … {heard[-60:]!r}")


def resident_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1]) / 1024


@dataclass(frozen=True, slots=True)
class Look:
    """The server's processes at one moment: when, the memory of each in MB, their processor seconds so far, tokens that the front end has
    had of the engine (events of streams would not do: a busy front end puts several tokens into one)."""

    at: float
    resident: tuple[float, ...]
    processor: float
    tokens: int


async def look(port: int, pids: Sequence[int]) -> Look:
    memory, spent = tuple(map(resident_mb, pids)), sum(map(processor_seconds, pids))
    tokens = int((await numbers(port))["stepwell_generation_tokens_total"])
    return Look(time.monotonic(), memory, spent, tokens)


async def watch(pids: Sequence[int], world: World) -> list[Look]:
    """A look every second."""
    looks = []
    while time.monotonic() < world.until:
        looks.append(await look(world.port, pids))
        await asyncio.sleep(1)
    return looks


async def soak(port: int, pids: Sequence[int], seconds: float, callers: int, pause: float) -> tuple[Sums, list[Look]]:
    world = World(port, time.monotonic() + seconds, Sums(), pause)
    looks = asyncio.create_task(watch(pids, world))
    await asyncio.gather(*(caller(world, seed) for seed in range(callers)))
    return world.sums, await looks


async def ask(server: Serving, sums: Sums, seconds: float, callers: Sequence[int]) -> tuple[int, float]:
    """Let callers of these seeds ask for some seconds, and to their ends; tokens generated, processor seconds spent."""
    before = await look(server.port, server.pids)
    world = World(server.port, time.monotonic() + seconds, sums)
    await asyncio.gather(*(caller(world, seed) for seed in callers))
    await settled(server.port)
    after = await look(server.port, server.pids)
    return after.tokens - before.tokens, after.processor - before.processor


async def compare(aged: Serving, fresh: Serving, sums: Sums, callers: int, pairs: int) -> float:
    """Tokens for a second of the aged server's processor time, over the fresh one's."""
    await ask(fresh, Sums(), WARM_SECONDS, range(callers))
    totals = {aged.port: (0, 0.0), fresh.port: (0, 0.0)}
    for pair in range(pairs):
        seeds = range(1000 * (pair + 1), 1000 * (pair + 1) + callers)
        for server in (aged, fresh) if pair % 2 else (fresh, aged):
            tokens, spent = await ask(server, sums if server is aged else Sums(), TURN_SECONDS, seeds)
            totals[server.port] = (totals[server.port][0] + tokens, totals[server.port][1] + spent)
    of_aged, of_fresh = (tokens / spent for tokens, spent in (totals[aged.port], totals[fresh.port]))
    return of_aged / of_fresh


async def numbers(port: int) -> dict[str, float]:
    """What /metrics shows."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    text = (await reader.read(-1)).decode()
    writer.close()
    lines = [line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("stepwell_")]
    return {name: float(value) for name, value in lines}


async def settled(port: int) -> dict[str, float]:
    """Numbers of /metrics once nothing is in the engine any more."""
    for _ in range(100):
        shown = await numbers(port)
        if not sum(value for name, value in shown.items() if name.startswith("stepwell_queue_requests")):
            return shown
        await asyncio.sleep(0.1)
    raise SystemExit("the engine did not come to rest: requests are left in its queues")


@dataclass(frozen=True, slots=True)
class Change:
    """From the second fifth of the time (the first one warms up) to the last: memory in MB, and as ratios tokens a second and
    tokens a second of the server's processor time."""

    memory: float
    wall: float
    processor: float


def change(looks: list[Look]) -> Change:
    fifth = len(looks) // 5
    parts = looks[fifth : 2 * fifth + 1], looks[-fifth - 1 :]
    memory = [statistics.median(sum(look.resident) for look in part) for part in parts]
    tokens = [part[-1].tokens - part[0].tokens for part in parts]
    wall = [part[-1].at - part[0].at for part in parts]
    spent = [part[-1].processor - part[0].processor for part in parts]
    more = tokens[1] / tokens[0]
    return Change(memory[1] - memory[0], more * wall[0] / wall[1], more * spent[0] / spent[1])


def main() -> None:
    options = parse_arguments()
    sizes = ("--sequences", "8", "--pages", str(options.pages), "--slots", str(2 * options.pages))
    command = ("--serve", "stepwell", *sizes)
    with serving(*command) as aged:
        sums, looks = asyncio.run(soak(aged.port, aged.pids, options.minutes * 60, options.callers, options.pause))
        with serving(*command) as fresh:
            over = asyncio.run(compare(aged, fresh, sums, options.callers, options.pairs))
        shown = asyncio.run(settled(aged.port))
    said, changed = aged.said, change(looks)
    show(sums, shown, said, changed)
    show_memory(looks)
    line = {
        "requests": sums.requests,
        "aborts": sums.aborts,
        "ended_once": said["taken"] == said["ended"] and not said["ended_twice"] and not sums.broken,
        "leases_after": int(shown["stepwell_leases"]),
        "rss_growth_mb": round(changed.memory, 1),
        "throughput_end_over_start": round(over, 3),
    }
    print(json.dumps(line))


def show(sums: Sums, shown: dict[str, float], said: dict[str, float], changed: Change) -> None:
    table = Table("", "", box=None)
    for name in ("requests", "whole", "aborts", "slow", "half_closed", "nonsense", "refused"):
        table.add_row(name, f"{getattr(sums, name):,}")
    table.add_row("sequences taken, ended", f"{said['taken']:,}, {said['ended']:,}")
    cached = sum(shown[f'stepwell_prompt_tokens_total{{source="{tier}"}}'] for tier in ("device", "host", "disk"))
    cold = shown['stepwell_prompt_tokens_total{source="recomputed"}']
    table.add_row("prompt tokens reused", f"{cached / max(1, cached + cold):.1%}")
    table.add_row("preemptions", f"{shown['stepwell_preemptions_total']:,.0f}")
    table.add_row("last fifth over second: tokens a second", f"{changed.wall:.3f}")
    table.add_row("… a second of the server's processor time", f"{changed.processor:.3f}")
    console = Console()
    console.print(table)
    for fault in sums.broken[:10]:
        console.print(fault, markup=False, style="red")


def show_memory(looks: list[Look]) -> None:
    """Medians of each tenth of the time."""
    table = Table("minutes", "front end, MB", "engine, MB", title="Resident memory")
    for tenth in range(10):
        part = looks[tenth * len(looks) // 10 : (tenth + 1) * len(looks) // 10]
        if part:
            medians = [statistics.median(of_one) for of_one in zip(*(look.resident for look in part), strict=True)]
            minutes = (part[-1].at - looks[0].at) / 60
            table.add_row(f"{minutes:.1f}", *(f"{megabytes:.1f}" for megabytes in medians))
    Console().print(table)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument(
        "--pairs", type=int, default=12, help="turns of each of the servers that are compared at the end"
    )
    parser.add_argument("--callers", type=int, default=24)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two turns of a caller, on average")
    parser.add_argument("--pages", type=int, default=160, help="of the device; host holds twice as many")
    return parser.parse_args()


if __name__ == "__main__":
    main()
