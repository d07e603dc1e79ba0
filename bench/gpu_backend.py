"""The backend of kernels on a GPU: against plain torch at reduced depth, then decode and prefill of whole models in process.

    python bench/gpu_backend.py                    checks, then both shapes: some minutes, 100 GB of device memory
    python bench/gpu_backend.py --shapes D --rows 1 8

M is the shape of Qwen3.5-35B-A3B, D that of Qwen3.5-4B; random weights, bfloat16, states in float32. M-FP8 has M's weights in FP8, as
official packs store them. Decode counts from launch to
launch with one step in flight, every sequence at 4,096 tokens of context. Prints a table, then one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from load.models import OFFICIAL_FP8
from rich.console import Console
from rich.table import Table

from stepwell.base.geometry import Ints
from stepwell.engine.compute.sampler import Sampler
from stepwell.engine.compute.torch_runner import TorchRunner
from stepwell.model.backend import Prepared
from stepwell.model.backends import MakeBackend, backend_for
from stepwell.model.loading import dummy_decoder
from stepwell.model.torch_backend import TorchBackend
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import LAST_DRAW, Carry, Fresh, Sample, Step, Work
from stepwell.store.device import DeviceArena, LiveStates, Precision

VOCAB, CONTEXT = 248_320, 4096
DEVICE = torch.device("cuda")
EXPERTS = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
SHAPES: dict[str, dict[str, Any]] = {
    "M": {
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        **EXPERTS,
    },
    "D": {
        "model_type": "qwen3_5_text",
        "hidden_size": 2560,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 9216,
        "tie_word_embeddings": True,
    },
}
SHAPES["M-FP8"] = {**SHAPES["M"], "quantization_config": OFFICIAL_FP8}  # fmt: skip
COMMON = {
    "vocab_size": VOCAB, "num_attention_heads": 16, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 262144, "dtype": "bfloat16",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
}  # fmt: skip


class Rig:
    """A runner with memory for `rows` sequences of `tokens`; each has its own pages, in random order."""

    def __init__(
        self,
        shape: dict[str, Any],
        rows: int,
        tokens: int,
        make: MakeBackend,
        graphs: tuple[int, ...] = (4,),
        dtype: torch.dtype = torch.bfloat16,
        prompts: tuple[int, ...] = (),
    ) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps({**COMMON, **shape}))
            self.decoder = dummy_decoder(Path(folder), dtype, DEVICE, make=make, drawn=torch.bfloat16)
        precision, s = Precision(dtype, dtype), self.decoder.config.shape
        geometry = s.geometry(16, widths=precision.widths)
        each = -(-tokens // 16)
        arena = DeviceArena(rows * each, s, geometry, precision, DEVICE)
        live = LiveStates(rows, s, geometry, precision, DEVICE)
        self.runner = TorchRunner(self.decoder, arena, live, Sampler(()))
        self.pages = np.random.default_rng(0).permutation(rows * each).astype(np.int32).reshape(rows, each)
        began = time.perf_counter()
        self.runner.prepare(Prepared(graphs, prompts, each))
        self.prepared = time.perf_counter() - began

    def work(self, slot: int, start: int, tokens: Ints, keep: bool = False, known: int = 0) -> Work:
        end = start + len(tokens)
        sample = Sample(SamplingParams(), 0, keep_logits=keep)
        state = Carry() if start else Fresh()
        return Work(
            f"{slot}", slot, 0, start, tokens, self.pages[slot, : -(-end // 16)], 0, state, (), sample, known=known
        )

    def prefill(self, slot: int, tokens: Ints, chunk: int = 16384) -> float:
        """Seconds."""
        torch.cuda.synchronize()
        began = time.perf_counter()
        for at in range(0, len(tokens), chunk):
            self.runner.launch(Step((self.work(slot, at, tokens[at : at + chunk]),))).result()
        return time.perf_counter() - began

    def decode(self, rows: int, start: int, steps: int) -> float:
        """Milliseconds a step, one in flight."""
        last, waiting = np.full(1, LAST_DRAW, np.int32), None
        for i in range(steps + 5):
            if i == 5:
                torch.cuda.synchronize()
                began = time.perf_counter()
            known = -(-(start + i) // 16) if i else 0
            works = tuple(self.work(row, start + i, last, known=known) for row in range(rows))
            launched = self.runner.launch(Step(works))
            if waiting is not None:
                waiting.result()
            waiting = launched
        torch.cuda.synchronize()
        return (time.perf_counter() - began) / steps * 1e3


def compare(name: str, shape: dict[str, Any]) -> dict[str, float]:
    """Kernels against plain torch on four layers: lowest cosine of logits over a prompt's end and the decodes behind it."""
    tokens = np.random.default_rng(1).integers(0, VOCAB, (3, 700)).astype(np.int32)
    found: list[list[np.ndarray]] = []
    for make in (backend_for, TorchBackend):
        rig = Rig({**shape, "num_hidden_layers": 4}, 3, 1024, make)
        steps = [[rig.work(row, 0, tokens[row, : 300 + 77 * row], True) for row in range(3)]]
        steps += [
            [rig.work(r, 300 + 77 * r + i, tokens[r, 300 + 77 * r + i :][:1], True) for r in range(3)] for i in range(4)
        ]
        steps += [[rig.work(0, 304, tokens[0, 304:640], True), rig.work(1, 381, tokens[1, 381:382], True)]]
        found.append([row for works in steps for _, row in rig.runner.launch(Step(tuple(works))).result().logits])
        del rig
        torch.cuda.empty_cache()
    pairs = [(a.astype(np.float64), b.astype(np.float64)) for a, b in zip(*found, strict=True)]
    cosines = [float(a @ b / np.linalg.norm(a) / np.linalg.norm(b)) for a, b in pairs]
    same = [int(a.argmax()) == int(b.argmax()) for a, b in pairs]
    return {f"{name} cosine": min(cosines), f"{name} same top token": sum(same) / len(same)}


def measure(name: str, shape: dict[str, Any], rows: list[int], prompts: list[int], table: Table) -> dict[str, float]:
    began = time.perf_counter()
    rig = Rig(shape, max(rows), max(CONTEXT + 256, *prompts), backend_for, tuple(rows))
    print(name, *rig.decoder.backend.names, f"built in {time.perf_counter() - began:.0f} s", sep="; ", flush=True)
    tokens = np.random.default_rng(2).integers(0, VOCAB, max(CONTEXT + max(rows), *prompts)).astype(np.int32)
    out = {f"{name} prepare s": rig.prepared}
    for count in prompts:
        rig.prefill(0, tokens[:count])
        out[f"{name} prefill {count} tokens/s"] = count / min(rig.prefill(0, tokens[:count]) for _ in range(2))
    for row in range(max(rows)):
        rig.prefill(row, tokens[row : row + CONTEXT])  # different contexts choose different experts
    for count in rows:
        out[f"{name} decode {count} ms"] = rig.decode(count, CONTEXT, 60)
    for key, value in out.items():
        table.add_row(key, f"{value:,.3f}")
    print(out, flush=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--prompts", type=int, nargs="+", default=[1024, 16384])
    options = parser.parse_args()
    table, figures = Table("figure", "value"), {}
    for name in options.shapes:
        figures |= compare(name, SHAPES[name])
        if "num_experts" in SHAPES[name]:  # without a choice of experts, which rounding may turn
            figures |= compare(f"{name}, all experts", {**SHAPES[name], "num_experts": 8})
        print(figures, flush=True)
    for name in options.shapes:
        figures |= measure(name, SHAPES[name], options.rows, options.prompts, table)
        torch.cuda.empty_cache()
    Console(width=100).print(table)
    print(json.dumps({**figures, "card": torch.cuda.get_device_name(), "torch": torch.__version__}))


if __name__ == "__main__":
    main()
