"""Own kernels on a GPU: each against its twin on real shapes, then its time in a CUDA graph beside the bandwidth's.

    python bench/gpu_kernels.py                      both shapes at batch 1, 8 and 64; a minute or two
    python bench/gpu_kernels.py --batches 8

M is the shape of Qwen3.5-35B-A3B, D that of Qwen3.5-4B, bfloat16 with states in float32. Prints a table, then one line of
JSON: `checks` (relative error, or the share of rows that differ), `kernels` (µs a call, and the time that its bytes take at
the speed of a large copy over it), the card, and versions. Fails if a kernel is wrong.
"""

from __future__ import annotations

import argparse
import json
import sys

import torch
import triton
from kernels.cases import cases, grouped_cases, prompt_cases
from kernels.checks import checks
from kernels.shapes import SHAPES
from kernels.step import step_ms
from kernels.timing import copy_bytes_per_us, time_us
from rich.console import Console
from rich.table import Table

WORST = 6e-3
"""bfloat16 results differ from float64 by the rounding of inputs and outputs, 2⁻⁹ each at most."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    options = parser.parse_args()
    found = {f"{shape.name} {name}": value for shape in SHAPES for name, value in checks(shape)}
    wrong = {name: value for name, value in found.items() if not value <= WORST}
    speed = copy_bytes_per_us()
    table = Table(
        "shape", "batch", "kernel", "µs", "share of bandwidth, or speed", title=f"copy: {speed / 1e6:.2f} TB/s"
    )
    rows = []
    for shape in SHAPES:
        for batch in options.batches:
            for case in cases(shape, batch):
                took, floor = time_us(case.calls), case.bytes / speed
                table.add_row(shape.name, str(batch), case.name, f"{took:.1f}", f"{floor / took:.2f}")
                rows.append({"shape": shape.name, "batch": batch, "kernel": case.name, "us": round(took, 2),
                             "share": round(floor / took, 3)})  # fmt: skip
        parts = (prompt_cases,) if shape.mlp else (prompt_cases, grouped_cases)
        for case in (c for part in parts for count in (1024, 4096, 16384) for c in part(shape, count)):
            took = time_us(case.calls)
            speed_of = f"{case.bytes / took / 1e6:.0f} TFLOP/s" if case.bytes else ""
            table.add_row(shape.name, "", case.name, f"{took:.1f}", speed_of)
            rows.append({"shape": shape.name, "kernel": case.name.strip(), "us": round(took, 1),
                         "tflop_s": round(case.bytes / took / 1e6, 1)})  # fmt: skip
        for batch in options.batches:
            took = step_ms(shape, batch)
            table.add_row(shape.name, str(batch), "whole decode step", f"{took * 1e3:.0f}", "")
            rows.append({"shape": shape.name, "batch": batch, "kernel": "step", "us": round(took * 1e3, 1)})
    console = Console(width=100)
    console.print(table)
    console.print({name: f"{value:.1e}" for name, value in found.items()})
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    print(json.dumps({"checks": found, "kernels": rows, "copy_tb_s": speed / 1e6,
                      "card": torch.cuda.get_device_name(), **versions}))  # fmt: skip
    if wrong:
        sys.exit(f"wrong: {wrong}")


if __name__ == "__main__":
    main()
