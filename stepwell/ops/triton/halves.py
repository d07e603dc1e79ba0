"""Products of few rows with FP8 weights on tensor cores that take e4m3 from memory as it is: no weight is converted.

Activations become sums of two e4m3 values each, `high` and what that lacks, `low`, over a scale for each block of columns:

    x[r, c] ≈ (high[r, c] + low[r, c]) · scales[r, c // GROUP]

That holds eight bits of each value's mantissa, as bfloat16 does, down to a 2¹⁹th of the block's largest. One rounding to e4m3, as packs
and other engines have it, would hold four. The second product costs nothing where reading the weights is what takes time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.scaled import LARGEST, Matrix, Scaled
from stepwell.ops.triton.linear import Tile, few_sums
from stepwell.ops.triton.overlap import follow, overlap
from stepwell.ops.triton.stored import operand, scales_of, sharing

MOST_ROWS = 256
GROUP = 128
"""Columns that share a scale, and the depth of a tile: a multiple of it are the columns that share a scale of the weights."""
_PROGRAMS = 128
_LARGEST = tl.constexpr(LARGEST)


@dataclass(frozen=True, slots=True, eq=False)
class Halves:
    """Rows as sums: `values` e4m3 [2, rows, depth], high and low, and `scales` float32 [rows, depth / GROUP]."""

    values: Tensor
    scales: Tensor


@triton.jit(do_not_specialize=["ROWS"])
def _halve_kernel(
    x, x_row, values, scales, ROWS, DEPTH: tl.constexpr, B: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    groups: tl.constexpr = DEPTH // WIDE
    group = tl.program_id(1) * B + tl.arange(0, B)
    at = group[:, None] * WIDE + tl.arange(0, WIDE)[None, :]
    seen = at < DEPTH
    follow(OVERLAP)
    y = tl.load(x + row * x_row + at, mask=seen, other=0.0).to(tl.float32)
    # a maximum forgets NaN: the scale of a block that broke is NaN
    scale = tl.maximum(tl.max(tl.abs(y), 1), 1e-30) / _LARGEST + tl.sum(y * 0.0, 1)
    y = y / scale[:, None]
    high = y.to(tl.float8e4nv)
    low = (y - high.to(tl.float32)).to(tl.float8e4nv)
    tl.store(values + row * DEPTH + at, high, mask=seen)
    tl.store(values + (ROWS + row) * DEPTH + at, low, mask=seen)
    tl.store(scales + row * groups + group, scale, mask=group < groups)


def halve(x: Tensor) -> Halves:
    """Rows [rows, depth], which may be strided, as sums; GROUP divides the depth. A row that broke is NaN again."""
    rows, depth = x.shape
    values = torch.empty(2, rows, depth, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(rows, depth // GROUP, dtype=torch.float32, device=x.device)
    _halve_kernel[(rows, triton.cdiv(depth, 8 * GROUP))](
        x, x.stride(0), values, scales, rows, DEPTH=depth, B=8, WIDE=GROUP, num_warps=4, **overlap(x, rows)
    )
    return Halves(values, scales)


@triton.jit
def _sums(
    values, scales, rows, first, ROWS, weight, own, at, end, begin, DEPTH: tl.constexpr, SHARE: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """[M, N], or [N, M] if TURNED: M rows of halves from `first` on times N rows of a matrix from `at` on, as far as `end`."""
    m, n, k = first + tl.arange(0, M), at + tl.arange(0, N), begin + tl.arange(0, K)
    real, some = (m < ROWS)[:, None], sharing(at, n, HIGH, N)
    high = values + m[:, None] * DEPTH + k[None, :]
    low = high + rows * DEPTH
    right = weight + n[:, None] * DEPTH + k[None, :]
    acc = tl.zeros([N, M] if TURNED else [M, N], tl.float32)
    for a in tl.range(0, SHARE, K, num_stages=STAGES):
        upper, lower = tl.load(high + a, mask=real, other=0.0), tl.load(low + a, mask=real, other=0.0)
        matrix = tl.load(right + a, mask=(n < end)[:, None], other=0.0)
        left = tl.load(scales + m * (DEPTH // K) + (begin + a) // K, mask=m < ROWS, other=0.0)
        scale = scales_of(own, some, some < end, begin + a, DEPTH, HIGH, WIDE)
        if TURNED:
            part = tl.dot(matrix, tl.trans(lower), tl.dot(matrix, tl.trans(upper)))
            acc += part * scale[:, None] * left[None, :]
        else:
            part = tl.dot(lower, tl.trans(matrix), tl.dot(upper, tl.trans(matrix)))
            acc += part * left[:, None] * scale[None, :]
    return acc


@triton.jit(do_not_specialize=["ROWS"])
def _halves_kernel(
    x, x_row, values, scales, weight, own, tail, out, ROWS, WIDTH, DEPTH: tl.constexpr, SHARE: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr, TAIL: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
    TURNED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    part, first, end = tl.program_id(2), tl.program_id(1) * M, WIDTH - TAIL
    at, m = tl.program_id(0).to(tl.int64) * N, first + tl.arange(0, M)
    plane = out + part.to(tl.int64) * ROWS * WIDTH
    follow(OVERLAP)
    if tl.program_id(0) * N < end:
        acc = _sums(
            values, scales, tl.cast(ROWS, tl.int64), first, ROWS, weight, own, at, end, part * SHARE,
            DEPTH, SHARE, M, N, K, STAGES, HIGH, WIDE, TURNED,
        )  # fmt: skip
        n = at + tl.arange(0, N)
        if TURNED:
            tl.store(plane + m[None, :] * WIDTH + n[:, None], acc, mask=(m < ROWS)[None, :] & (n < end)[:, None])
        else:
            tl.store(plane + m[:, None] * WIDTH + n[None, :], acc, mask=(m < ROWS)[:, None] & (n < end)[None, :])
    elif TAIL > 0:
        begin, row = at - tl.cdiv(end, N) * N, (m < ROWS)[:, None]
        rest = few_sums(
            x + m[:, None] * x_row, row, tail, own, begin, TAIL, part * SHARE, DEPTH, SHARE, M, N, K, 2, 0, 1
        )
        t = begin + tl.arange(0, N)
        tl.store(plane + m[:, None] * WIDTH + (end + t)[None, :], rest, mask=row & (t < TAIL)[None, :])


def takes(x: Tensor, weight: Matrix) -> bool:
    """Whether `linear` here multiplies them, and faster than by weights that are converted."""
    if not isinstance(weight, Scaled) or x.dtype != torch.bfloat16 or not 1 < x.shape[0] <= MOST_ROWS:
        return False
    return x.shape[1] % GROUP == 0 and weight.columns % GROUP == 0


def parts_for(width: int, depth: int) -> int:
    """Into how many parts the depth is cut so that narrow products fill the card: 1, 2, 4 or 8."""
    tile, parts = Tile(64, GROUP), 1
    while parts < 8 and width * parts < _PROGRAMS * tile.columns and depth % (2 * parts * GROUP) == 0:
        parts *= 2
    return parts


def linear(
    x: Tensor, weight: Scaled, *, tail: Tensor | None = None, parts: int = 1, tile: Tile | None = None
) -> Tensor:
    """`x · weightᵀ` as `linear.linear`, with activations in halves: [rows, width] in the type of x, or float32 [parts, rows, width]."""
    (rows, depth), more = x.shape, 0 if tail is None else tail.shape[0]
    width, tile = weight.shape[0] + more, tile or Tile(64, GROUP, 6 if rows <= 16 else 4)
    assert depth % (parts * GROUP) == 0
    halves, (values, scales, stored) = halve(x), operand(weight)
    shape, dtype = ((rows, width), x.dtype) if parts == 1 else ((parts, rows, width), torch.float32)
    out = torch.empty(shape, dtype=dtype, device=x.device)
    most = min(64, max(16, triton.next_power_of_2(rows)))
    programs = triton.cdiv(width - more, tile.columns) + triton.cdiv(more, tile.columns)
    _halves_kernel[(programs, triton.cdiv(rows, most), parts)](
        x, x.stride(0), halves.values, halves.scales, values, scales, x if tail is None else tail, out, rows, width,
        DEPTH=depth, SHARE=depth // parts, M=most, N=tile.columns, K=GROUP, STAGES=tile.stages, TAIL=more, **stored,
        TURNED=most < 64, num_warps=tile.warps, **overlap(x, rows),
    )  # fmt: skip
    return out
