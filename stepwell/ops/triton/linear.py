"""A product with few rows, bound by reading the matrix."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.triton.overlap import follow, overlap

_ONE_ROW = 16384  # weights that a program holds in registers at once
_PROGRAMS = 128
MOST_ROWS = 64  # beyond it products are torch's
MOST_GATED = 16  # `gated` has tiles of so many rows
_WIDE = 16384  # from here on, and with more than 16 rows, torch's own product is faster


@dataclass(frozen=True, slots=True)
class Tile:
    """Columns and depth of a tile, and the stages of its pipeline. Depth changes last bits, the rest none."""

    columns: int = 32
    depth: int = 128
    stages: int = 4
    warps: int = 4


def tile_for(rows: int) -> Tile:
    """The fastest of those tried on an H200."""
    return Tile(64, 128, 4, 4) if rows <= 16 else Tile(64, 64, 6, 4)


def parts_for(width: int, depth: int, rows: int) -> int:
    """Into how many parts the depth is cut so that narrow products fill the card: 1, 2, 4 or 8. One row is never cut."""
    tile, parts = tile_for(rows), 1
    while rows > 1 and parts < 8 and width * parts < _PROGRAMS * tile.columns and depth % (2 * parts * tile.depth) == 0:
        parts *= 2
    return parts


@triton.jit(do_not_specialize=["ROWS"])
def _linear_kernel(
    x, x_row, weight, out, ROWS, WIDTH, DEPTH: tl.constexpr, SHARE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    n, part = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), tl.program_id(2)
    m, k = tl.program_id(1) * M + tl.arange(0, M), part * SHARE + tl.arange(0, K)
    acc = tl.zeros([M, N], tl.float32)
    follow(OVERLAP)
    for a in tl.range(0, SHARE, K, num_stages=STAGES):
        seen = (a + k < DEPTH)[None, :]
        some = tl.load(x + m[:, None] * x_row + (a + k)[None, :], mask=(m < ROWS)[:, None] & seen, other=0.0)
        rows = tl.load(weight + n[:, None] * DEPTH + (a + k)[None, :], mask=(n < WIDTH)[:, None] & seen, other=0.0)
        acc = tl.dot(some, tl.trans(rows), acc, input_precision="ieee")
    place = (part * ROWS + m[:, None]).to(tl.int64) * WIDTH + n[None, :]
    tl.store(out + place, acc, mask=(m < ROWS)[:, None] & (n < WIDTH)[None, :])


@triton.jit
def _row_kernel(x, weight, out, WIDTH, DEPTH: tl.constexpr, N: tl.constexpr, K: tl.constexpr, OVERLAP: tl.constexpr):
    """One row: no tensor cores, all of a program's weights on their way before it waits for x."""
    n, k = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), tl.arange(0, K)
    at, real = weight + n[:, None] * DEPTH + k[None, :], (n < WIDTH)[:, None]
    if DEPTH == K:
        rows = tl.load(at, mask=real, other=0.0)
        follow(OVERLAP)
        acc = rows.to(tl.float32) * tl.load(x + k).to(tl.float32)[None, :]
    else:
        follow(OVERLAP)
        acc = tl.zeros([N, K], tl.float32)
        for a in tl.range(0, DEPTH, K, num_stages=3):
            seen = a + k < DEPTH
            rows = tl.load(at + a, mask=real & seen[None, :], other=0.0)
            acc += rows.to(tl.float32) * tl.load(x + a + k, mask=seen, other=0.0).to(tl.float32)[None, :]
    tl.store(out + n, tl.sum(acc, 1), mask=n < WIDTH)


@triton.jit(do_not_specialize=["ROWS"])
def _gated_kernel(
    x, x_row, weight, out, ROWS, WIDTH, DEPTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    n, m, k = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), tl.arange(0, M), tl.arange(0, K)
    real = (n < WIDTH)[:, None]
    gate, up = tl.zeros([M, N], tl.float32), tl.zeros([M, N], tl.float32)
    follow(OVERLAP)
    for a in tl.range(0, DEPTH, K, num_stages=STAGES):
        seen = (a + k < DEPTH)[None, :]
        some = tl.load(x + m[:, None] * x_row + (a + k)[None, :], mask=(m < ROWS)[:, None] & seen, other=0.0)
        at = weight + n[:, None] * DEPTH + (a + k)[None, :]
        upper = tl.load(at, mask=real & seen, other=0.0)
        lower = tl.load(at + WIDTH.to(tl.int64) * DEPTH, mask=real & seen, other=0.0)
        gate = tl.dot(some, tl.trans(upper), gate, input_precision="ieee")
        up = tl.dot(some, tl.trans(lower), up, input_precision="ieee")
    made = gate * tl.sigmoid(gate) * up
    tl.store(out + m[:, None].to(tl.int64) * WIDTH + n[None, :], made, mask=(m < ROWS)[:, None] & (n < WIDTH)[None, :])


@triton.jit
def _gated_row_kernel(x, weight, out, WIDTH, DEPTH: tl.constexpr, N: tl.constexpr, K: tl.constexpr, OVERLAP: tl.constexpr):  # fmt: skip
    n, k = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), tl.arange(0, K)
    at, real = weight + n[:, None] * DEPTH + k[None, :], (n < WIDTH)[:, None]
    gate, up = tl.zeros([N, K], tl.float32), tl.zeros([N, K], tl.float32)
    follow(OVERLAP)
    for a in tl.range(0, DEPTH, K, num_stages=3):
        seen = a + k < DEPTH
        row = tl.load(x + a + k, mask=seen, other=0.0).to(tl.float32)[None, :]
        gate += tl.load(at + a, mask=real & seen[None, :], other=0.0).to(tl.float32) * row
        lower = tl.load(at + WIDTH.to(tl.int64) * DEPTH + a, mask=real & seen[None, :], other=0.0)
        up += lower.to(tl.float32) * row
    total = tl.sum(gate, 1)
    tl.store(out + n, total * tl.sigmoid(total) * tl.sum(up, 1), mask=n < WIDTH)


def gated(x: Tensor, weight: Tensor, *, tile: Tile | None = None) -> Tensor:
    """`silu(x · upperᵀ) · (x · lowerᵀ)` for the two halves of a matrix, rounded once: [rows, width] in the type of x.

    x        [rows, depth], at most MOST_GATED rows, which may be strided
    weight   [2 · width, depth], contiguous
    tile     half of its columns from each half; None: the fastest tried
    """
    (rows, depth), width = x.shape, weight.shape[0] // 2
    assert rows <= MOST_GATED
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    if rows == 1 and tile is None:
        _gated_row_kernel[(triton.cdiv(width, 8),)](
            x, weight, out, width, DEPTH=depth, N=8, K=512, num_warps=4, **overlap(x, 1)
        )
        return out
    tile = tile or Tile(128, 128, 3, 4)
    _gated_kernel[(triton.cdiv(width, tile.columns // 2),)](
        x, x.stride(0), weight, out, rows, width, DEPTH=depth, M=16, N=tile.columns // 2, K=tile.depth, STAGES=tile.stages,
        num_warps=tile.warps, **overlap(x, rows),
    )  # fmt: skip
    return out


def linear(x: Tensor, weight: Tensor, *, parts: int = 1, tile: Tile | None = None) -> Tensor:
    """`x · weightᵀ`, summed in float32: [rows, width] in the type of x. Many rows are torch's.

    x        [rows, depth]; rows may be strided
    weight   [width, depth], contiguous
    parts    more than 1: float32 [parts, rows, width] for the reader to sum; each covers an equal share of the depth.
             It divides the depth, as each share is divided by the depth of the tile
    """
    (rows, depth), width = x.shape, weight.shape[0]
    if parts == 1 and tile is None:
        if rows == 1:
            return _one_row(x, weight)
        if rows > MOST_ROWS or (rows > 16 and width > _WIDE):
            return F.linear(x, weight)
    tile = tile or tile_for(rows)
    shape, dtype = ((rows, width), x.dtype) if parts == 1 else ((parts, rows, width), torch.float32)
    out = torch.empty(shape, dtype=dtype, device=x.device)
    most = min(64, max(16, triton.next_power_of_2(rows)))
    assert parts == 1 or depth % (parts * tile.depth) == 0
    _linear_kernel[(triton.cdiv(width, tile.columns), triton.cdiv(rows, most), parts)](
        x, x.stride(0), weight, out, rows, width, DEPTH=depth, SHARE=depth // parts, M=most, N=tile.columns, K=tile.depth,
        STAGES=tile.stages, num_warps=tile.warps, **overlap(x, rows),
    )  # fmt: skip
    return out


def _one_row(x: Tensor, weight: Tensor) -> Tensor:
    width, depth = weight.shape
    whole = depth == triton.next_power_of_2(depth) and depth <= 4096
    k = depth if whole else (1024 if depth % 1024 == 0 else 512)
    n = max(1, _ONE_ROW // k if whole else _ONE_ROW // 2 // k)
    out = torch.empty(1, width, dtype=x.dtype, device=x.device)
    _row_kernel[(triton.cdiv(width, n),)](x, weight, out, width, DEPTH=depth, N=n, K=k, num_warps=4, **overlap(x, 1))
    return out
