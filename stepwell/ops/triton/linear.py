"""A product with few rows, bound by reading the matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Tile:
    """Columns and depth of a tile, and the stages of its pipeline. Depth changes last bits, the rest none."""

    columns: int = 32
    depth: int = 128
    stages: int = 4
    warps: int = 4


@triton.jit
def _linear_kernel(
    x, x_row, weight, out, ROWS, WIDTH, DEPTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    STAGES: tl.constexpr,
):  # fmt: skip
    n, k = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), tl.arange(0, K)
    m = tl.program_id(1) * M + tl.arange(0, M)
    acc = tl.zeros([M, N], tl.float32)
    for a in tl.range(0, DEPTH, K, num_stages=STAGES):
        seen = (a + k < DEPTH)[None, :]
        part = tl.load(x + m[:, None] * x_row + (a + k)[None, :], mask=(m < ROWS)[:, None] & seen, other=0.0)
        rows = tl.load(weight + n[:, None] * DEPTH + (a + k)[None, :], mask=(n < WIDTH)[:, None] & seen, other=0.0)
        acc = tl.dot(part, tl.trans(rows), acc, input_precision="ieee")
    place = m[:, None].to(tl.int64) * WIDTH + n[None, :]
    tl.store(out + place, acc, mask=(m < ROWS)[:, None] & (n < WIDTH)[None, :])


def linear(x: Tensor, weight: Tensor, tile: Tile, dtype: torch.dtype | None = None) -> Tensor:
    """`x · weightᵀ` [rows, width], in `dtype` or the type of x; summed in float32.

    x        [rows, depth]; rows may be strided
    weight   [width, depth], contiguous
    """
    (rows, depth), width = x.shape, weight.shape[0]
    out = torch.empty(rows, width, dtype=dtype or x.dtype, device=x.device)
    most = min(64, max(16, triton.next_power_of_2(rows)))
    _linear_kernel[(triton.cdiv(width, tile.columns), triton.cdiv(rows, most))](
        x, x.stride(0), weight, out, rows, width, DEPTH=depth, M=most, N=tile.columns, K=tile.depth,
        STAGES=tile.stages, num_warps=tile.warps,
    )  # fmt: skip
    return out
