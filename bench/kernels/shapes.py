"""The shapes that figures are given for, and inputs of them on the GPU."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.model.cuda.chunk_plan import plan_chunks
from stepwell.ops.pending import Lanes, Ring
from stepwell.ops.scaled import Matrix, Scaled, packed
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
    """What differs between the models; `mlp` is the width of a dense MLP, 0 where there are experts. `fp8`: matrices in FP8 blocks of
    128 × 128, but for the head, the router, and the delta rule's two narrow projections."""

    name: str
    hidden: int
    kv_heads: int
    attention_layers: int
    mlp: int
    fp8: bool = False

    def matrix(self, *size: int) -> Matrix:
        """Random weights as this model stores them."""
        return stored(*size) if self.fp8 else weights(*size)

    def tail(self, name: str) -> Tensor | None:
        """Plain rows behind the named projection's."""
        return weights(2 * VALUE_HEADS, self.hidden) if self.fp8 and name == "delta_in" else None

    def projection(self, name: str) -> Matrix:
        """Random weights of the named projection, but for its tail."""
        width, depth = self.projections[name]
        if not self.fp8 or name in ("head", "router"):
            return weights(width, depth)
        return stored(width - 2 * VALUE_HEADS if name == "delta_in" else width, depth)

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


SHAPES = (Shape("M", 2048, 2, 10, 0), Shape("D", 2560, 4, 8, 9216), Shape("M-FP8", 2048, 2, 10, 0, True))


def normal(*shape: int, dtype: torch.dtype = torch.bfloat16, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float32, device=DEVICE).mul_(scale).to(dtype)


def weights(*shape: int) -> Tensor:
    """bfloat16 with unit gain, drawn in place: large ones have no second copy in float32."""
    return torch.empty(*shape, dtype=torch.bfloat16, device=DEVICE).normal_(std=shape[-1] ** -0.5)


def stored(*shape: int) -> Matrix:
    """The same in FP8, one matrix of a stack at a time."""
    if len(shape) == 2:
        return packed(weights(*shape), 128, 128)
    one = [packed(weights(*shape[1:]), 128, 128) for _ in range(shape[0])]
    values = torch.stack([matrix.values.view(torch.uint8) for matrix in one]).view(torch.float8_e4m3fn)
    return Scaled(values, torch.stack([matrix.scales for matrix in one]), 128, 128)


def nbytes(matrix: Matrix) -> int:
    return int(matrix.nbytes)


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
