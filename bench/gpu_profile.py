"""Where the time of a step goes on a GPU, by operation: one step of decodes and prompts of several lengths.

    python bench/gpu_profile.py                          both shapes; a minute and a half
    python bench/gpu_profile.py --shapes D --rows 8 64 --prompts 1024 16384

M is the shape of Qwen3.5-35B-A3B, D that of Qwen3.5-4B, as in `gpu_backend.py`. Of each step: time by operation from torch's profiler,
number of kernels, `busy` (the sum of kernel times), `wall`, and for prompts `host` (what launching takes before anything is waited for).
Prompts of up to 4,096 tokens are recorded passes, as served. `--behind` adds one of 1,000 tokens behind that many. Prints tables, then
one line of JSON: `profile_ms` in milliseconds, as `profiles` returns it to other programs, and `distinct_experts` by rows of a decode: how
many experts a layer reads, on average over layers.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from gpu_backend import SHAPES, VOCAB, Rig
from rich.console import Console
from rich.table import Table

from stepwell.base.geometry import Ints
from stepwell.model.backends import backend_for
from stepwell.ops.triton import experts
from stepwell.sched.step import LAST_DRAW, Step

CONTEXT, TAIL, RECORDED = 4096, 1000, 4096
MOST_ROWS = 64
NEXT = np.full(1, LAST_DRAW, np.int32)
OPERATIONS = (
    ("attention", ("flash", "fmha", "_decode_kernel", "_merge_kernel")),
    ("attention, around", ("_qkv_kernel", "_gather_kernel", "_gate_kernel")),
    ("delta rule", ("_inside_kernel", "_through_kernel", "_out_of_kernel", "_delta_kernel")),
    ("delta rule, around", ("_conv_kernel", "_prepare_kernel", "_keep_kernel", "_gated_norm")),
    ("experts", ("_up_kernel", "_down_kernel", "_up_one", "_down_one")),
    ("experts, around", ("_route", "_plan_kernel", "_count_kernel", "_place_kernel", "_combine", "_return_kernel", "DeviceScan")),
    ("dense products", ("_linear_kernel", "_pair_kernel", "_row_kernel", "_gated_kernel", "_unpack_kernel",
                        "gemm", "nvjet", "cutlass", "splitK", "cublas")),
    ("norms and gates", ("_add_norm", "_silu_kernel")),
    ("sampling", ("_peak_kernel", "_pass_kernel", "_race_kernel", "_pick_kernel", "argmax", "ArgMax")),
)  # fmt: skip
"""Which operation a kernel belongs to: the first with a part of its name."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One step, in milliseconds; `host` is 0 where a graph is replayed."""

    name: str
    wall: float
    busy: float
    host: float
    kernels: int
    operations: dict[str, float]
    largest: dict[str, float]

    @property
    def figures(self) -> dict[str, Any]:
        rounded = {"wall": round(self.wall, 3), "busy": round(self.busy, 3), "host": round(self.host, 3)}
        parts = {name: round(value, 4) for name, value in self.operations.items()}
        largest = {name: round(value, 4) for name, value in self.largest.items()}
        return {**rounded, "kernels": self.kernels, "operations": parts, "largest": largest}


def operation_of(kernel: str) -> str:
    """The operation's name; `other` for what no list names, such as copies.

    >>> operation_of("_add_norm_kernel"), operation_of("nvjet_tst_64x8"), operation_of("Memcpy HtoD")
    ('norms and gates', 'dense products', 'other')
    """
    return next((name for name, parts in OPERATIONS if any(part in kernel for part in parts)), "other")


def profiled(name: str, step: Callable[[], float], times: int = 3) -> Profile:
    """Run `step`, which returns the seconds that launching took, `times` times without and once with the profiler."""
    step()
    torch.cuda.synchronize()
    walls, hosts = [], []
    for _ in range(times):
        began = time.perf_counter()
        hosts.append(step())
        torch.cuda.synchronize()
        walls.append(time.perf_counter() - began)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        step()
        torch.cuda.synchronize()
    took: defaultdict[str, float] = defaultdict(float)
    number = 0
    for event in found.key_averages():
        if event.self_device_time_total > 0:
            took[event.key] += event.self_device_time_total / 1e3
            number += event.count
    operations: defaultdict[str, float] = defaultdict(float)
    for kernel, value in took.items():
        operations[operation_of(kernel)] += value
    largest = {kernel[:60]: value for kernel, value in _falling(took)[:12]}
    return Profile(
        name, min(walls) * 1e3, sum(took.values()), min(hosts) * 1e3, number, dict(_falling(operations)), largest
    )


def _falling(took: dict[str, float]) -> list[tuple[str, float]]:
    return sorted(took.items(), key=lambda pair: -pair[1])


def profiles(shape: dict[str, Any], rows: list[int], prompts: list[int], behind: int = 0) -> Iterator[Profile]:
    """Profile steps of a model of this shape with random weights: prompts, decodes of `rows` sequences at 4,096 tokens, and, unless it
    is 0, a prompt of 1,000 tokens behind `behind`."""
    yield from _near(shape, rows, prompts)
    torch.cuda.empty_cache()
    if behind:
        yield from _far(shape, behind)


def _near(shape: dict[str, Any], rows: list[int], prompts: list[int]) -> Iterator[Profile]:
    recorded = tuple(count for count in prompts if count <= RECORDED and count % 64 == 0)
    rig, tokens = _rig(shape, max(rows), max(CONTEXT + 64, *prompts), tuple(rows), recorded)
    for count in prompts:
        yield profiled(f"prompt {count}", partial(_prompt, rig, 0, tokens[:count]))
    for row in range(max(rows)):
        rig.prefill(row, tokens[row : row + CONTEXT])  # different contexts choose different experts
    for count in rows:
        yield profiled(f"decode {count}", partial(_decode, rig, count))


def _far(shape: dict[str, Any], behind: int) -> Iterator[Profile]:
    rig, tokens = _rig(shape, 1, behind + TAIL, (1,), (1024,))
    rig.prefill(0, tokens[:behind])
    yield profiled(f"prompt {TAIL} behind {behind}", partial(_prompt, rig, behind, tokens[behind : behind + TAIL]))


def _rig(
    shape: dict[str, Any], rows: int, most: int, graphs: tuple[int, ...], prompts: tuple[int, ...]
) -> tuple[Rig, Ints]:
    tokens = np.random.default_rng(2).integers(0, VOCAB, most + rows).astype(np.int32)
    return Rig(shape, rows, most, backend_for, graphs, prompts=prompts), tokens


def _prompt(rig: Rig, start: int, tokens: Ints) -> float:
    began = time.perf_counter()
    rig.runner.launch(Step((rig.work(0, start, tokens),)))
    return time.perf_counter() - began


def _decode(rig: Rig, rows: int) -> float:
    rig.runner.launch(Step(tuple(rig.work(row, CONTEXT, NEXT) for row in range(rows))))
    return 0.0


def distinct_experts(shape: dict[str, Any]) -> dict[str, float]:
    """Distinct experts a layer by rows of a decode; empty where there are none."""
    rig, tokens = _rig(shape, MOST_ROWS, CONTEXT + 1, (1,), ())
    for row in range(MOST_ROWS):
        rig.prefill(row, tokens[row : row + CONTEXT])
    chosen: list[torch.Tensor] = []
    with watched(chosen):
        _decode(rig, MOST_ROWS)  # more rows than the graph has: launched kernel by kernel
    return {str(rows): _distinct(chosen, rows) for rows in (1, 8, MOST_ROWS)} if chosen else {}


@contextmanager
def watched(chosen: list[torch.Tensor]) -> Iterator[None]:
    """Keep which experts every layer chooses, int [rows, top], in steps that are launched kernel by kernel."""
    route = experts.route

    def watching(*arguments: Any) -> Any:
        told = route(*arguments)
        chosen.append(told[0][:, :-1].clone())  # without the shared one
        return told

    experts.route = watching
    try:
        yield
    finally:
        experts.route = route


def _distinct(chosen: list[torch.Tensor], rows: int) -> float:
    parts = [part for layer in chosen for part in layer.split(rows)]
    return sum(part.unique().numel() for part in parts) / len(parts)


def table_of(shape: str, found: list[Profile]) -> Table:
    table = Table("operation, ms", *(one.name for one in found), title=shape)
    names = sorted({name for one in found for name in one.operations}, key=lambda n: -found[0].operations.get(n, 0.0))
    for name in names:
        table.add_row(name, *(f"{one.operations.get(name, 0.0):.3f}" for one in found))
    for name in ("wall", "busy", "host", "kernels"):
        table.add_row(name, *(str(one.figures[name]) for one in found))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rows", type=int, nargs="+", default=[8])
    parser.add_argument("--prompts", type=int, nargs="+", default=[1024, 16384])
    parser.add_argument("--behind", type=int, default=0)
    options = parser.parse_args()
    figures, distinct = {}, {}
    for name in options.shapes:
        found = list(profiles(SHAPES[name], options.rows, options.prompts, options.behind))
        Console(width=120).print(table_of(name, found))
        figures[name] = {one.name: one.figures for one in found}
        torch.cuda.empty_cache()
        distinct |= distinct_experts(SHAPES[name]) if "num_experts" in SHAPES[name] else {}
        torch.cuda.empty_cache()
    told = {"profile_ms": figures, "distinct_experts": distinct}
    print(json.dumps({**told, "card": torch.cuda.get_device_name(), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
