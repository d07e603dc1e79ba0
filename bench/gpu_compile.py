"""Compile the kernels for Hopper on a machine without a GPU: what does not compile, or spills, is found before GPU time is spent.

    python bench/gpu_compile.py                     all shapes; three minutes or so of one core
    python bench/gpu_compile.py --shapes M --batches 8

Runs the decode steps and the prompts of `bench/kernels` on tensors without memory; each launch is compiled instead, once for each
set of constants. Prints registers a thread, bytes spilled, and shared memory of each, then one line of JSON. Takes the Triton that is
installed: the GPU's own version is the one to ask (`PYTHONPATH` may lead to it).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import triton
from kernels import shapes
from rich.console import Console
from rich.table import Table
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

shapes.DEVICE = torch.device("meta")  # before the modules below take it over

from kernels.cases import Case, grouped_cases, prompt_cases  # noqa: E402
from kernels.step import build  # noqa: E402

from stepwell.ops.triton import attention, norm  # noqa: E402

TARGET = GPUTarget("cuda", 90, 32)
TYPES = {
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.float8_e4m3fn: "*fp8e4nv",
}
ALIGNED = [["tt.divisibility", 16]]
PROMPTS = (256, 1024, 16384)
"""One for each set of tiles."""


class Compiler:
    """Takes the place of a launch. `made` holds what was compiled, by kernel, constants and options."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, Any]] = {}

    def __call__(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **more: Any) -> None:
        names = kernel.arg_names
        values = {**dict(zip(names, args, strict=False)), **{k: v for k, v in more.items() if k in names}}
        options = {k: v for k, v in more.items() if k not in names}
        signature, constants, attributes = {}, {}, {}
        for i, parameter in enumerate(kernel.params):
            value = values[parameter.name]
            if parameter.is_constexpr or (value == 1 if isinstance(value, int) else value is None):
                signature[parameter.name], constants[(i,)] = "constexpr", value
            elif isinstance(value, Tensor):
                signature[parameter.name], attributes[(i,)] = TYPES[value.dtype], ALIGNED
            else:
                signature[parameter.name] = "i32" if isinstance(value, int) else "fp32"
                if isinstance(value, int) and not parameter.do_not_specialize and value % 16 == 0:
                    attributes[(i,)] = ALIGNED
        key = f"{kernel.__name__} {sorted(signature.items())} {constants} {attributes} {options}"
        if key not in self.made:
            source = ASTSource(kernel, signature, constants, attributes)
            tile = " ".join(
                f"{names[i]}={v}" for (i,), v in constants.items() if names[i] in ("M", "N", "K", "BLOCK", "STAGES")
            )
            what = f"{kernel.__module__.rsplit('.', 1)[-1]}.{kernel.__name__} {tile} {options}"
            self.made[key] = what, triton.compile(source, target=TARGET, options=options)


def scaled_kv(shape: shapes.Shape, rows: int) -> None:
    """Attention over e4m3 pages whose heads have scales."""
    dim, kv, heads, half = shapes.HEAD_DIM, shape.kv_heads, shapes.HEADS, shapes.ROTARY // 2
    pages = torch.empty(9, 2, shapes.BLOCK, kv, dim, dtype=torch.float8_e4m3fn, device=shapes.DEVICE)
    qk, gate, values = (
        torch.empty(rows, width * dim, dtype=torch.bfloat16, device=shapes.DEVICE) for width in (heads + kv, heads, kv)
    )
    weight, angle, by = (torch.empty(*size, device=shapes.DEVICE) for size in ((dim,), (rows, half), (kv,)))
    page, table = (
        torch.empty(rows, dtype=torch.int64, device=shapes.DEVICE),
        torch.empty(rows, 8, dtype=torch.int32, device=shapes.DEVICE),
    )
    k, v = pages.unbind(1)
    q = attention.qkv_step(qk, values, weight, weight, angle, angle, k, v, page, page, 1e-6, by, by)
    splits = attention.splits_for(rows, kv)
    y = attention.paged_decode(q, k, v, table, table[:, 0].contiguous(), gate, splits=splits, v_scale=by)
    norm.sigmoid_gate(y, gate, scale=by.repeat_interleave(heads // kv))


def usage(compiled: Any) -> tuple[int, int]:
    """Registers a thread, and bytes of its stack: what is spilled."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        said = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=[shape.name for shape in shapes.SHAPES])
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64])
    options = parser.parse_args()
    compiler = Compiler()
    run = JITFunction.run
    JITFunction.run = lambda self, *args, **more: compiler(self, *args, **more)
    try:
        for shape in (shape for shape in shapes.SHAPES if shape.name in options.shapes):
            for batch in options.batches:
                build(shape, batch, 4096)()
                scaled_kv(shape, batch)
            parts: list[Callable[..., Any]] = [prompt_cases, *([] if shape.mlp else [grouped_cases])]
            cases: list[Case] = [case for part in parts for rows in PROMPTS for case in part(shape, rows)]
            for case in cases:
                case.calls[0]()
    finally:
        JITFunction.run = run
    table = Table("kernel", "registers", "stack", "shared", title=f"Triton {triton.__version__}, sm_90")
    rows = sorted((what, *usage(compiled), compiled.metadata.shared) for what, compiled in compiler.made.values())
    for row in rows:
        table.add_row(*map(str, row))
    Console(width=130).print(table)
    print(json.dumps({"triton": triton.__version__, "kernels": rows}))


if __name__ == "__main__":
    main()
