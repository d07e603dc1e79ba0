"""Prompts that come back from below the device, three ways in one run: the host tier, LMCache's memory, and Redis below LMCache.

    pip install 'stepwell[lmcache]'; apt-get install redis-server
    python bench/lmcache.py                       four prompts of 2,500 tokens, a small hybrid made up on the spot, on the CPU
    python bench/lmcache.py --model PATH --tokens 20000

Each way has an engine of its own. It computes the prompts, the device forgets them, and they are asked for again; `redis` asks a second
engine, which has only what the first one left on the server. Two more ways begin at a device hit off the grid of LMCache's chunks, whose
part of a chunk is loaded into private pages, or left out. All answers are greedy, and compared with those of an engine without a
cache. Then, in LMCache's memory, one byte of each stored state is made wrong, and the prompts are asked for once more: every load
fails, and the answer has to be right all the same.

Prints a table, then one line of JSON. The figures are of the engine, not of a store: this model's KV is small.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.engine.build import build_engine
from stepwell.engine.config import engine_config
from stepwell.engine.llm import LocalEngine
from stepwell.engine.owned import OwnedLoop
from stepwell.engine.process.serving import build
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.sched.request import SamplingParams
from stepwell.store.external.lmcache import LMCacheBackend
from stepwell.testing.checkpoint import write_checkpoint

FIRST, MORE = (SamplingParams(max_tokens=count, temperature=0.0, ignore_eos=True) for count in (1, 8))
HIT = 192
"""Tokens: off the grid of chunks of 256."""
SETTLE_S = 2.0
"""LMCache writes what it has to what lies below it a little later."""


@dataclass
class Way:
    """What came of one way: by prompt, seconds to the first token, what was loaded, and eight tokens that follow from it."""

    name: str
    seconds: list[float] = field(default_factory=list)
    outcomes: list[AdmissionOutcome] = field(default_factory=list)
    answers: list[tuple[int, ...]] = field(default_factory=list)
    cpu: float = 0.0
    bytes: int = 0

    @property
    def ms(self) -> float:
        return round(1e3 * statistics.median(self.seconds), 2) if self.seconds else 0.0

    @property
    def loaded(self) -> int:
        return sum(o.host + o.external for o in self.outcomes)


class Bench:
    """One model, its prompts, and engines over it."""

    def __init__(self, model: Path, tokens: int, prompts: int) -> None:
        self.model, self.tokens = model, tokens
        self.prompts = [[5 + (7 * i + 11 * n + i * i // 50) % 300 for i in range(tokens)] for n in range(prompts)]

    @contextmanager
    def engine(self, **flags: Any) -> Iterator[tuple[LocalEngine, OwnedLoop]]:
        memory = {"device_memory": "256MiB", "host_memory": 0, "max_model_len": self.tokens + 64}
        sizes = {"max_num_seqs": 4, "max_num_batched_tokens": 1024, "min_load_tokens": 256, "device": "cpu"}
        loop, facts = build(build_engine, engine_config({"model": str(self.model), **memory, **sizes, **flags}))
        assert isinstance(loop, OwnedLoop)
        with LocalEngine(loop, Tokenizer.load(str(self.model)), facts) as llm:
            yield llm, loop

    def compute(self, llm: LocalEngine, loop: OwnedLoop) -> None:
        """Have everything computed, and copied wherever it is to be copied."""
        for prompt in self.prompts:
            llm.generate([prompt], FIRST)
        while loop.busy:
            loop.step()

    def begin(self, llm: LocalEngine, loop: OwnedLoop) -> None:
        """Have the device hold the first `HIT` tokens of each prompt, and nothing else."""
        forget(loop)
        for prompt in self.prompts:
            llm.generate([prompt[: HIT + 1]], FIRST)
        while loop.busy:
            loop.step()

    def ask(self, way: Way, llm: LocalEngine, loop: OwnedLoop) -> Way:
        """Ask for every prompt again."""
        bytes_before = _copied(loop)
        for prompt in self.prompts:
            began, cpu = time.perf_counter(), _cpu()
            (said,) = llm.generate([prompt], FIRST)
            way.seconds.append(time.perf_counter() - began)
            way.cpu += _cpu() - cpu
            way.outcomes.append(said.outcome)
            way.answers.append(llm.generate([prompt], MORE)[0].token_ids)  # from what has been loaded
        way.bytes = _copied(loop) - bytes_before
        return way


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _copied(loop: OwnedLoop) -> int:
    stats = loop.stats()
    return sum(n for (source, _), n in stats.pages_copied.items() if source != Tier.DEVICE) * stats.page_bytes


def forget(loop: OwnedLoop) -> None:
    """Drop what the device holds. The loop must be at rest."""
    items = [item for node in loop.directory.tree.nodes() for item in node.items()]
    for item in sorted(items, key=lambda i: (-i.node.end, i.what == "kv")):
        if item.at[Tier.DEVICE] is not None:
            loop.directory.drop(item, Tier.DEVICE)


@contextmanager
def redis() -> Iterator[str]:
    """A server of its own, on a free port; its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        for _ in range(200):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        yield f"redis://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait(10)


@contextmanager
def wrong_states() -> Iterator[None]:
    """Every state that LMCache hands out has a wrong byte."""
    real: Callable[..., Any] = LMCacheBackend.get

    def get(self: LMCacheBackend, what: Any, name: Any) -> Any:
        found = real(self, what, name).copy()
        found[-1] ^= 1 if what == "image" else 0
        return found

    LMCacheBackend.get = get  # type: ignore[method-assign]
    try:
        yield
    finally:
        LMCacheBackend.get = real  # type: ignore[method-assign]


def run(bench: Bench) -> tuple[list[Way], Way, Way]:
    """The ways that were taken, the cold answers, and what came of the wrong states."""
    cold, ways, failed = Way("cold"), [], Way("wrong states")
    with bench.engine(enable_prefix_caching=False) as (llm, loop):
        bench.ask(cold, llm, loop)
    with bench.engine(host_memory="1GiB") as (llm, loop):
        bench.compute(llm, loop)
        forget(loop)
        ways.append(bench.ask(Way("host tier"), llm, loop))
    with bench.engine(kv_offload="lmcache") as (llm, loop):
        bench.compute(llm, loop)
        forget(loop)
        ways.append(bench.ask(Way("LMCache"), llm, loop))
        while loop.busy:
            loop.step()
        forget(loop)
        with wrong_states():
            bench.ask(failed, llm, loop)
    for partial in ("private", "drop"):
        with bench.engine(kv_offload="lmcache", lmcache_partial_chunk=partial) as (llm, loop):
            bench.compute(llm, loop)
            bench.begin(llm, loop)
            ways.append(bench.ask(Way(f"LMCache, hit {HIT}, {partial}"), llm, loop))
    if shutil.which("redis-server"):
        with redis() as address:
            os.environ["LMCACHE_REMOTE_URL"] = address
            with bench.engine(kv_offload="lmcache") as (llm, loop):
                bench.compute(llm, loop)
                time.sleep(SETTLE_S)
            with bench.engine(kv_offload="lmcache") as (llm, loop):
                ways.append(bench.ask(Way("LMCache + Redis"), llm, loop))
            del os.environ["LMCACHE_REMOTE_URL"]
    return ways, cold, failed


def show(bench: Bench, ways: list[Way], cold: Way, failed: Way) -> None:
    total = bench.tokens * len(bench.prompts)
    table = Table("way", "tokens loaded", "hit", "median ms", "bytes moved up", "CPU µs a prompt token")
    for way in (cold, *ways, failed):
        hit = sum(o.cached for o in way.outcomes) / total
        table.add_row(
            way.name,
            f"{way.loaded:,}",
            f"{hit:.3f}",
            f"{way.ms:,.1f}",
            f"{way.bytes:,}",
            f"{1e6 * way.cpu / total:,.1f}",
        )
    Console().print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a checkpoint; default: a small hybrid of random weights")
    parser.add_argument("--tokens", type=int, default=2500)
    parser.add_argument("--prompts", type=int, default=4)
    options = parser.parse_args()
    sys.path[:] = [
        path for path in sys.path if Path(path).resolve() != Path(__file__).parent.resolve()
    ]  # this is not LMCache
    os.environ.setdefault("LMCACHE_MAX_LOCAL_CPU_SIZE", "0.5")
    with tempfile.TemporaryDirectory() as folder:
        model = options.model or write_checkpoint(
            Path(folder), hidden=64, layers=4, vocab=320, max_positions=32_768, seed=0
        )
        bench = Bench(model, options.tokens, options.prompts)
        ways, cold, failed = run(bench)
    show(bench, ways, cold, failed)
    by_name = {way.name: way for way in ways}
    wrong = sum(a != b for way in (*ways, failed) for a, b in zip(way.answers, cold.answers, strict=True))
    reasons = (Reason.LOAD_FAILED_KV, Reason.LOAD_FAILED_STATE)
    print(
        json.dumps(
            {
                "native_ttft_ms": by_name["host tier"].ms,
                "lmcache_ttft_ms": by_name["LMCache"].ms,
                "redis_ttft_ms": by_name["LMCache + Redis"].ms if "LMCache + Redis" in by_name else None,
                "wrong_answers": wrong,
                "failed_legs_retreated": sum(o.reason in reasons for o in failed.outcomes),
            }
        )
    )


if __name__ == "__main__":
    main()
