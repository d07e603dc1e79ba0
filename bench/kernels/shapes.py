"""The two shapes that figures are given for, and inputs of them on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.model.cuda.chunk_plan import plan_chunks
from stepwell.ops.pending import Lanes, Ring
from stepwell.ops.triton.chunked import Chunks

DEVICE = torch.device("cuda")
EXPERTS, TOP, WIDTH = 256, 8, 512
KEY_HEADS, VALUE_HEADS, DIM = 16, 32, 128
CHANNELS = 2 * KEY_HEADS * DIM + VALUE_HEADS * DIM
INNER = VALUE_HEADS * DIM
HEAD_DIM, HEADS, ROTARY, BLOCK = 256, 16, 64, 16
VOCAB = 248_320


@dataclass(frozen=True, slots=True)
class Shape:
    """What differs between the models; `mlp` is the width of a dense MLP, 0 where there are experts."""

    name: str
    hidden: int
    kv_heads: int
    attention_layers: int
    mlp: int

    @property
    def projections(self) -> dict[str, tuple[int, int]]:
        """(width, depth) of the products of a decode step."""
        qkv = (2 * HEADS + 2 * self.kv_heads) * HEAD_DIM
        found = {
            "delta_in": (CHANNELS + INNER + 2 * VALUE_HEADS, self.hidden),
            "delta_out": (self.hidden, INNER),
            "attention_in": (qkv, self.hidden),
            "attention_out": (self.hidden, HEADS * HEAD_DIM),
            "head": (VOCAB, self.hidden),
        }
        if self.mlp:
            return {**found, "mlp_in": (2 * self.mlp, self.hidden), "mlp_out": (self.hidden, self.mlp)}
        return {**found, "router": (EXPERTS + 1, self.hidden)}


SHAPES = (Shape("M", 2048, 2, 10, 0), Shape("D", 2560, 4, 8, 9216))


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float32, device=DEVICE).mul_(scale).to(dtype)


def weights(*shape: int) -> Tensor:
    """bfloat16 with unit gain, drawn in place: large ones have no second copy in float32."""
    return torch.empty(*shape, dtype=torch.bfloat16, device=DEVICE).normal_(std=shape[-1] ** -0.5)


def whole(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=DEVICE)


def lanes(slots: list[int], committed: int, pending: list[int], rung: int = -1) -> Lanes:
    """Rows on these slots; the first stores a rung into column `rung` after one token."""
    rungs = [rung] + [-1] * (len(slots) - 1)
    return Lanes(
        whole(*slots), whole(*[committed] * len(slots)), whole(*pending), whole(*rungs), whole(*[1] * len(slots))
    )


def chunks(counts: list[int], slots: list[int], cuts: list[tuple[int, int]]) -> Chunks:
    """Chunks of prompts of so many tokens on these slots."""
    return Chunks(*(torch.from_numpy(y).to(DEVICE) for y in plan_chunks(np.array(counts), np.array(slots), cuts)))


def ring(slots: int, rows: int) -> Ring:
    return Ring.empty(slots, rows, KEY_HEADS, DIM, VALUE_HEADS, DIM, DEVICE)


def arena(pages: int, shape: Shape) -> tuple[Tensor, Tensor]:
    """One attention layer's keys and values in a page-major arena of all layers, NaN."""
    memory = torch.full(
        (pages, shape.attention_layers, 2, BLOCK, shape.kv_heads, HEAD_DIM), float("nan"), dtype=torch.bfloat16, device=DEVICE
    )  # fmt: skip
    return memory[:, 1, 0], memory[:, 1, 1]
