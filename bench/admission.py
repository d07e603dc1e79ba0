"""What the directory costs a request, alone and beside the cache managers of other engines on the same trace.

    python bench/admission.py                                    our own side: a few minutes
    python bench/admission.py --quick                            a few sizes of it
    python bench/admission.py --harness DIR --peers DIR          the peers too

`--harness` is a folder with `trace.py` (a generator `gen()` of requests: `sid`, `turn`, `prompt`, `out`) and a replay script for
each peer; `--peers` holds their environments. Without a harness our side replays a trace of the same shape that it makes up.

Two parts. **Alone**: prompts of many lengths and hits against trees of many sizes, the directory called as the scheduler calls
it; admission is survey + plan + commit, then publish of the rest and a rung, then release. **On the trace**: one request after
another in the geometry of Qwen3-Next-80B (24,576 B of KV a token, 36 × 1.05 MiB of state). `ours_us` is the span that the peers'
scripts time (vLLM: hashing, lookup, allocation; SGLang: lookup, allocation, insertion) with the release, on the device alone. The hits, and
`ours_whole_us`, come from the whole engine loop with a runner that computes nothing: everything that the scheduler does for a
request, from the queue to the last token. Times are of the wall's clock where they stand beside a peer's: run it on a quiet machine.

Ends with one line of JSON.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import random
import runpy
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from stepwell.base.clock import WallClock
from stepwell.base.geometry import Geometry, Ints
from stepwell.cache.admission import Ready, commit
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.content import leave_rung, publish
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.outcome import AdmissionOutcome
from stepwell.cache.placement import prompt_rungs
from stepwell.cache.plan import Plan
from stepwell.cache.shed import secure
from stepwell.cache.table import BlockTable
from stepwell.cache.tree import RungKind
from stepwell.sched.config import SchedConfig
from stepwell.sched.loop import EngineLoop
from stepwell.sched.request import Admitted, Request, SamplingParams
from stepwell.sched.step import Step, StepResult
from stepwell.testing.faults import InstantMover

BLOCK, GRID = 16, 64
NODE = 1664
"""Tokens of a turn: a prompt of 200,000 tokens then walks 120 nodes."""
KV_BYTES = 24_576
IMAGE_BYTES = 36 * (32 * 128 * 128 * 2 + 8192 * 3 * 2)
GIB = 2**30
CASES = {"20": (20.0, 0.0), "8": (8.0, 0.0), "4": (4.0, 0.0), "4+16": (4.0, 16.0)}
"""GiB of device and host memory."""


@dataclass(frozen=True, slots=True)
class Times:
    """µs of processor time of one request, medians."""

    admit: float
    publish: float
    release: float

    @property
    def whole(self) -> float:
        return self.admit + self.publish + self.release


@dataclass(frozen=True, slots=True)
class OnTrace:
    """A replay of the trace: µs a request, mean, by the clock on the wall as the peers' scripts have it, and of processor time;
    share of prompt tokens that were reused."""

    us: float
    hit: float
    cpu_us: float | None = None


def main() -> None:
    options = parse_arguments()
    console = Console()
    lengths = (1_000, 200_000) if options.quick else (1_000, 10_000, 50_000, 200_000, 500_000)
    nodes = (1_000, 10_000) if options.quick else options.nodes
    with Progress(console=Console(stderr=True), transient=True) as progress:
        alone = measure_alone(lengths, (0.5, 0.99, 1.0), nodes, options.rounds, progress)
        console.print(alone_table(alone))
        requests = trace_of(options.harness, options.requests)
        task = progress.add_task("our own engine loop", total=len(options.cases))
        alike = span(requests, CASES[options.cases[0]][0])
        ours: dict[str, OnTrace] = {}
        for name in options.cases:
            ours[name] = play(requests, *CASES[name])
            progress.advance(task)
        peers = play_peers(options, progress) if options.peers is not None else {}
    console.print(trace_table(ours, peers))
    print(json.dumps(figures(alone, alike, ours, peers)))


def figures(
    alone: dict[tuple[int, int, float], Times],
    alike: tuple[float, float],
    ours: dict[str, OnTrace],
    peers: dict[str, dict[str, OnTrace]],
) -> dict[str, Any]:
    """The line for machines; `alike` from `span`. Times are those at the first size of memory that was asked for."""
    case = next(iter(ours))
    peers_us = {name: round(found[case].us, 1) for name, found in peers.items() if case in found}
    resumes = [times.admit for (_, tokens, hit), times in alone.items() if tokens == 200_000 and hit == 0.99]
    return {
        "ours_us": round(alike[0], 1),
        "ours_cpu_us": round(alike[1], 1),
        "ours_whole_us": round(ours[case].us, 1),
        "ours_whole_cpu_us": round(ours[case].cpu_us or 0.0, 1),
        "peers_us": peers_us,
        "over_best_peer": round(alike[0] / min(peers_us.values()), 3) if peers_us else None,
        "resume_200k_ms": round(max(resumes) / 1000, 3) if resumes else None,
        "token_hit": {name: round(found.hit, 4) for name, found in ours.items()},
        "peers_hit": {name: {case: round(p.hit, 4) for case, p in found.items()} for name, found in peers.items()},
    }


# ---- alone ------------------------------------------------------------------------------------------------------


def measure_alone(
    lengths: Sequence[int], hits: Sequence[float], nodes: Sequence[int], rounds: int, progress: Progress
) -> dict[tuple[int, int, float], Times]:
    """By (nodes of the tree, tokens of the prompt, share of it that is cached)."""
    out: dict[tuple[int, int, float], Times] = {}
    task = progress.add_task("the directory alone", total=len(nodes) * len(lengths))
    for count in nodes:
        directory = filled(count, max(lengths))
        gc.collect()
        gc.freeze()
        for tokens in lengths:
            draw = np.random.default_rng(tokens)
            known = draw.integers(0, 2**31 - 1, tokens, dtype=np.int32)
            grow_path(directory, known, range(NODE, tokens + 1, NODE) or (tokens // GRID * GRID,))
            for hit in hits:
                out[count, tokens, hit] = serve_some(directory, known, hit, rounds, draw)
            progress.advance(task)
        gc.unfreeze()
    return out


def filled(nodes: int, longest: int) -> Directory:
    """A tree of so many nodes, in conversations of twenty turns, with room for more."""
    geometry = Geometry(BLOCK, GRID, page_bytes=BLOCK * KV_BYTES, image_bytes=BLOCK * KV_BYTES)
    pages = nodes * (GRID // BLOCK + 1) + 200 * (longest // BLOCK) + 4096
    directory = Directory(CacheConfig(geometry, device_pages=pages))
    draw = np.random.default_rng(0)
    while directory.items < 2 * nodes:  # a node and its rung each count as one
        tokens = draw.integers(0, 2**31 - 1, 20 * GRID, dtype=np.int32)
        grow_path(directory, tokens, range(GRID, 20 * GRID + 1, GRID))
    return directory


def grow_path(directory: Directory, tokens: Ints, ends: Sequence[int]) -> None:
    """Cache `tokens` with a rung at each of `ends`."""
    lease = directory.lease(directory.tree.root("", 0.0).kv, Tier.DEVICE)
    table = BlockTable(np.empty(0, np.int32))
    for end in ends:
        directory.grow(table, end // BLOCK - len(table))
        publish(directory, lease, tokens, end, table, 0.0)
        leave_rung(directory, lease, end, directory.pools[Tier.DEVICE].take(1), RungKind.PROMPT_END, 0.0)
    directory.release(lease)
    directory.close(table)


def serve_some(directory: Directory, known: Ints, hit: float, rounds: int, draw: np.random.Generator) -> Times:
    """Prompts of the length of `known` whose first part is cached, one after another."""
    admits, publishes, releases = [], [], []
    for _ in range(rounds):
        same = int(len(known) * hit)
        prompt = known.copy()
        prompt[same:] = draw.integers(0, 2**31 - 1, len(known) - same, dtype=np.int32)
        began = time.thread_time()
        plan = directory.plan("", prompt, Costs())
        assert isinstance(plan, Plan), "there is room"
        state = commit(directory, plan, "r", prompt, 0, 0.0)
        admitted = time.thread_time()
        assert isinstance(state, Ready), "nothing is to be loaded"
        end = (len(prompt) - 1) // GRID * GRID
        directory.grow(state.table, max(0, -(-len(prompt) // BLOCK) - len(state.table)))
        publish(directory, state.path, prompt, max(end, state.path.item.node.end), state.table, 0.0)
        leave_rung(directory, state.path, end, directory.pools[Tier.DEVICE].take(1), RungKind.PROMPT_END, 0.0)
        published = time.thread_time()
        if state.image is not None:
            directory.release(state.image)
        directory.release(state.path)
        directory.close(state.table)
        done = time.thread_time()
        admits.append(admitted - began)
        publishes.append(published - admitted)
        releases.append(done - published)
    return Times(*(1e6 * statistics.median(values) for values in (admits, publishes, releases)))


def alone_table(alone: dict[tuple[int, int, float], Times]) -> Table:
    table = Table(
        "nodes",
        "prompt",
        "cached",
        "admission",
        "publish",
        "release",
        "all",
        title="The directory alone, µs of processor time, medians",
    )
    for column in table.columns:
        column.justify = "right"
    for (nodes, tokens, hit), t in alone.items():
        times = (f"{value:,.0f}" for value in (t.admit, t.publish, t.release, t.whole))
        table.add_row(f"{nodes:,}", f"{tokens:,}", f"{hit:.0%}", *times)
    return table


# ---- on the trace -----------------------------------------------------------------------------------------------


def trace_of(harness: Path | None, most: int) -> list[tuple[Ints, Ints]]:
    """(prompt, answer) in order of arrival."""
    if harness is None:
        made = made_up()
    else:
        told = runpy.run_path(str(harness / "trace.py"), run_name="trace")["gen"]()
        made = ((np.asarray(r["prompt"], np.int32), np.asarray(r["out"], np.int32)) for r in told)
    return [pair for _, pair in zip(range(most), made, strict=False)]


def made_up(seed: int = 7) -> Iterator[tuple[Ints, Ints]]:
    """A hundred conversations of ten turns over four system prompts, 24 at a time; some turns go back by one."""
    chance, draw = random.Random(seed), np.random.default_rng(seed)

    def text(tokens: int) -> Ints:
        return draw.integers(1, 150_000, tokens, dtype=np.int32)

    heads = [text(chance.randint(6000, 6700)) for _ in range(4)]
    lanes = [[chance.choice(heads)] for _ in range(24)]
    turns, begun = [0] * len(lanes), len(lanes)
    while lanes:
        i = chance.randrange(len(lanes))
        if len(lanes[i]) > 1 and chance.random() < 0.08:
            del lanes[i][-2:]
        lanes[i].append(text(int(chance.lognormvariate(6.2, 1.1)) + 40))
        answer = text(chance.choice((40, 80, 120, 250, 500)))
        yield np.concatenate(lanes[i]), answer
        lanes[i].append(answer)
        turns[i] += 1
        if turns[i] == 10 and begun < 100:
            lanes[i], turns[i], begun = [chance.choice(heads)], 0, begun + 1
        elif turns[i] == 10:
            del lanes[i], turns[i]


def span(requests: Sequence[tuple[Ints, Ints]], device_gib: float) -> tuple[float, float]:
    """µs a request, of the wall's clock and of processor time, for the span that the peers' scripts time, and the release: survey,
    plan, commit, room for the prompt, publish with its rungs, the answer the same, release. Device memory alone."""
    geometry = Geometry(BLOCK, GRID, BLOCK * KV_BYTES, IMAGE_BYTES)
    directory = Directory(CacheConfig(geometry, device_pages=int(device_gib * GIB) // geometry.page_bytes))
    gc.collect()
    gc.freeze()
    wall = cpu = 0.0
    for i, (prompt, answer) in enumerate(requests):
        whole = np.concatenate([prompt, answer])
        began, used = time.perf_counter(), time.thread_time()
        plan = directory.plan("", prompt, Costs())
        assert isinstance(plan, Plan), "one request at a time has room"
        state = commit(directory, plan, str(i), prompt, 0, float(i))
        assert isinstance(state, Ready), "nothing is to be loaded"
        rungs = prompt_rungs(len(prompt), state.boundary, state.outcome.diverged_at, directory.config)
        last = (len(whole) - 1) // BLOCK * BLOCK
        store(directory, state, prompt, len(prompt) // BLOCK * BLOCK, rungs, float(i))
        store(directory, state, whole, last, ((last, RungKind.ROLLING),), float(i))
        if state.image is not None:
            directory.release(state.image)
        directory.release(state.path)
        directory.close(state.table)
        wall += time.perf_counter() - began
        cpu += time.thread_time() - used
    gc.unfreeze()
    return 1e6 * wall / len(requests), 1e6 * cpu / len(requests)


def store(
    directory: Directory, state: Ready, tokens: Ints, end: int, rungs: Sequence[tuple[int, RungKind]], now: float
) -> None:
    """Make [0, end) of `tokens` findable, with rungs where there is room for them."""
    pages = -(-len(tokens) // BLOCK) - len(state.table)
    if pages > 0:
        assert secure(directory, pages, force=True), "one request at a time has room"
        directory.grow(state.table, pages)
    publish(directory, state.path, tokens, max(end, state.path.item.node.end), state.table, now)
    for position, kind in rungs:
        image = directory.config.geometry.image_pages
        if position <= state.path.item.node.end and secure(directory, image, force=True):
            leave_rung(directory, state.path, position, directory.pools[Tier.DEVICE].take(image), kind, now)


class Reciting:
    """A runner that computes nothing and answers what the trace answered. It takes the time it takes, which is not counted."""

    def __init__(self) -> None:
        self.answer: list[int] = []
        self.seconds = 0.0

    def run(self, step: Step) -> StepResult:
        began = time.perf_counter()
        sampled = []
        for work in step.works:
            first = work.sample.index if work.sample is not None else 0
            sampled.append(tuple(self.answer[first : first + step.repeat]) if work.sample is not None else ())
        self.seconds += time.perf_counter() - began
        return StepResult(tuple(sampled))


def play(requests: Sequence[tuple[Ints, Ints]], device_gib: float, host_gib: float) -> OnTrace:
    """Our whole engine loop, one request after another."""
    geometry = Geometry(BLOCK, GRID, BLOCK * KV_BYTES, IMAGE_BYTES)
    pages, slots = (int(gib * GIB) // geometry.page_bytes for gib in (device_gib, host_gib))
    cache = CacheConfig(geometry, device_pages=pages, host_slots=slots)
    runner = Reciting()
    rules = SchedConfig(max_num_seqs=16, max_num_batched_tokens=8192)
    loop = EngineLoop(cache, rules, runner, InstantMover(), WallClock())
    outcomes: list[AdmissionOutcome] = []
    seconds = cpu = 0.0
    gc.collect()
    gc.freeze()
    for i, (prompt, answer) in enumerate(requests):
        runner.answer = answer.tolist()
        began, used = time.perf_counter(), time.thread_time()
        loop.submit(Request(str(i), prompt, SamplingParams(max_tokens=len(answer), ignore_eos=True)))
        ended = False
        while not ended:
            events = loop.step(4096)
            ended = any(type(event).__name__ == "Finished" for event in events)
            outcomes += [event.outcome for event in events if isinstance(event, Admitted)]
        seconds += time.perf_counter() - began
        cpu += time.thread_time() - used
        while loop.busy:  # copies that nobody waits for
            loop.step()
    gc.unfreeze()
    count, prompts = len(outcomes), sum(o.prompt for o in outcomes)
    hit = sum(o.cached for o in outcomes) / prompts
    return OnTrace(1e6 * (seconds - runner.seconds) / count, hit, 1e6 * cpu / count)


# ---- peers ------------------------------------------------------------------------------------------------------


def play_peers(options: argparse.Namespace, progress: Progress) -> dict[str, dict[str, OnTrace]]:
    """Each peer's own scheduler or tree on the same trace, by name and case; what fails is left out and said."""
    found: dict[str, dict[str, OnTrace]] = {}
    wanted = [(name, case) for case in options.cases for name in ("vllm", "sglang")]
    task = progress.add_task("peers", total=len(wanted))
    for name, case in wanted:
        told = run_peer(name, *CASES[case], options.harness, options.peers, options.requests)
        if isinstance(told, OnTrace):
            found.setdefault(name, {})[case] = told
        else:
            progress.console.print(f"{name} at {case} GiB: {told}", markup=False, highlight=False)
        progress.advance(task)
    return found


def run_peer(name: str, device: float, host: float, harness: Path, peers: Path, most: int) -> OnTrace | str:
    """One run of a peer's script, or what went wrong."""
    if name == "vllm":
        python, script, path = "venv-vllm", "vllm_replay.py", f"{peers / 'src' / 'vllm'}:{harness}"
        words = ["--gib", f"{device:g}"] + (["--cpu-gib", f"{host:g}"] if host else [])
    else:
        python, script, path = "venv-sgl", "sgl_replay.py", str(harness)
        words = ["--gib", f"{device:g}", "--core", "rust"] + (["--host-ratio", f"{host / device:g}"] if host else [])
    command = [str(peers / python / "bin" / "python"), str(harness / script), *words, "--n", str(most)]
    environment = {**os.environ, "PEERS": str(peers), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{") and "token_hit" in line]
    if not lines:
        return (done.stderr.strip() or done.stdout.strip() or "it printed nothing")[-400:]
    told = ast.literal_eval(lines[-1])
    return OnTrace(told["admission_us"] + told.get("insert_us_per_req", 0.0), told["token_hit"])


def trace_table(ours: dict[str, OnTrace], peers: dict[str, dict[str, OnTrace]]) -> Table:
    table = Table("GiB", title="On the trace: µs a request · share reused")
    everyone = {"ours": ours, **peers}
    for name in everyone:
        table.add_column(name, justify="right")
    for case in ours:
        cells = (
            f"{found[case].us:,.0f} · {found[case].hit:.4f}" if case in found else "–" for found in everyone.values()
        )
        table.add_row(case, *cells)
    return table


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few lengths, small trees")
    parser.add_argument(
        "--nodes", type=int, nargs="+", default=[1_000, 10_000, 100_000], help="sizes of trees; 1000000 takes 3 GiB"
    )
    parser.add_argument(
        "--rounds", type=int, default=15, help="prompts of each kind; medians are reported (default 15)"
    )
    parser.add_argument("--requests", type=int, default=1000, help="requests of the trace (default 1000)")
    parser.add_argument(
        "--cases", nargs="+", choices=list(CASES), default=list(CASES), help="GiB of device [+ host] memory"
    )
    parser.add_argument("--harness", type=Path, help="folder with trace.py and the peers' scripts")
    parser.add_argument("--peers", type=Path, help="folder with the peers' environments")
    options = parser.parse_args()
    if options.peers is not None and options.harness is None:
        parser.error("--peers needs --harness, the folder with the peers' scripts")
    return options


if __name__ == "__main__":
    main()
