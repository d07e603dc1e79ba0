"""The engine's own loop on a GPU, in process and without HTTP: how long a decode step takes, and how busy the host is with it.

    python bench/gpu_loop.py                             both shapes at 1 and 64 rows; a minute with compiled kernels
    python bench/gpu_loop.py --shapes D --rows 8 64

Sequences of 4,096 tokens decode side by side, with everything that serving does beside it: rungs, publishing, copies ahead of need. Ends
with one line of JSON, by shape and rows:

    step_ms      from one step to the next
    host_us      of it, what the engine's thread works; the rest it waits for the device
    idle_us      of it, what the device waits for the host, between the end of a step and the beginning of the next, by events
    hidden       share of host_us that the device's own work covers
"""

from __future__ import annotations

import argparse
import gc
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from load.models import CONFIGS, write_model

from stepwell.engine.build import build_engine
from stepwell.engine.compute.torch_runner import TorchPass, TorchRunner
from stepwell.engine.config import engine_config
from stepwell.engine.process.serving import ServedLoop, build
from stepwell.sched.request import Request, SamplingParams, Tokens
from stepwell.sched.step import Pass, Step, StepResult

CONTEXT, STEPS, EARLY = 4096, 128, 32
FLAGS = {"load_format": "dummy", "max_num_seqs": 64, "max_num_batched_tokens": 16_384, "max_model_len": 131_072,
         "device_memory": "24GiB", "host_memory": "2GiB"}  # fmt: skip


@dataclass(slots=True)
class Watch:
    """What a runner did: events around each launch, and seconds spent waiting for results."""

    begins: list[torch.cuda.Event] = field(default_factory=list)
    ends: list[torch.cuda.Event] = field(default_factory=list)
    waited: float = 0.0

    def clear(self) -> None:
        self.begins, self.ends, self.waited = [], [], 0.0

    def idle_ms(self) -> float:
        """Mean time of the device between two steps."""
        torch.cuda.synchronize()
        pairs = zip(self.ends, self.begins[1:], strict=False)
        return float(np.mean([ended.elapsed_time(began) for ended, began in pairs]))


@contextmanager
def watched() -> Iterator[Watch]:
    """Every launch and every wait of this process."""
    launch, result, watch = TorchRunner.launch, TorchPass.result, Watch()

    def launching(runner: TorchRunner, step: Step) -> Pass:
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        told = launch(runner, step)
        ended.record()
        watch.begins.append(began)
        watch.ends.append(ended)
        return told

    def waiting(one: TorchPass) -> StepResult:
        began = time.perf_counter()
        told = result(one)
        watch.waited += time.perf_counter() - began
        return told

    TorchRunner.launch, TorchPass.result = launching, waiting  # type: ignore[method-assign]
    try:
        yield watch
    finally:
        TorchRunner.launch, TorchPass.result = launch, result  # type: ignore[method-assign]


def decoding(loop: ServedLoop, watch: Watch, rows: int, context: int, steps: int, vocab: int) -> dict[str, float]:
    """Decodes of `rows` sequences, once all of them do."""
    rng, names = np.random.default_rng(rows), [f"{rows}-{row}" for row in range(rows)]
    params = SamplingParams(max_tokens=2 * steps + EARLY + 8 * rows, ignore_eos=True)
    for name in names:
        loop.submit(Request(name, rng.integers(0, vocab, context).astype(np.int32), params))
    speaking: set[str] = set()
    while len(speaking) < rows:
        speaking |= {event.request_id for event in loop.step() if isinstance(event, Tokens)}
    for _ in range(EARLY):
        loop.step()
    watch.clear()
    began = time.perf_counter()
    for _ in range(steps):
        loop.step()
    seconds = time.perf_counter() - began
    host, idle = 1e6 * (seconds - watch.waited) / steps, 1e3 * watch.idle_ms()
    for name in names:
        loop.abort(name)
    while loop.serving:
        loop.step()
    return {"step_ms": 1e3 * seconds / steps, "host_us": host, "idle_us": idle, "hidden": max(0.0, 1 - idle / host)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=["D", "M"], choices=list(CONFIGS))
    parser.add_argument("--rows", type=int, nargs="+", default=[64, 1])
    options = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, watched() as watch:
        for name in options.shapes:
            model = write_model(name, Path(folder) / name)
            loop, facts = build(build_engine, engine_config({"model": str(model), **FLAGS}))
            runs = (decoding(loop, watch, rows, CONTEXT, STEPS, facts.vocab_size) for rows in options.rows)
            found[name] = {str(rows): told for rows, told in zip(options.rows, runs, strict=True)}
            print(name, found[name], flush=True)
            loop.end(0.0)
            del loop
            gc.collect()
            torch.cuda.empty_cache()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
