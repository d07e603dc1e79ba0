"""A product with few rows, bound by reading the matrix: a plain one, or one in FP8 (`stored.py`)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.scaled import Matrix, Scaled
from stepwell.ops.triton.overlap import follow, overlap
from stepwell.ops.triton.stored import (
    block_row,
    block_scales,
    block_sums,
    block_tile,
    columns_of,
    operand,
    product,
    scales_of,
    sharing,
    unpack,
)

_ONE_ROW = 16384  # weights that a program holds in registers at once
_PROGRAMS = 128
MOST_ROWS = 64  # beyond it products are torch's
MOST_GATED = 16  # `gated` has tiles of so many rows
_MOST_SCALED = 128  # beyond it an FP8 matrix is unpacked for torch
_WIDE = 16384  # from here on, and with more than 16 rows, torch's own product is faster
_MULTIPROCESSORS = 132  # of an H200


@dataclass(frozen=True, slots=True)
class Tile:
    """Columns and depth of a tile, and the stages of its pipeline. Depth changes last bits, the rest none.

    more     columns of a second tile beside it, in the same program: tiles are powers of two, what divides a matrix well is not
    turned   weights are the left operand (`stored.product`)
    """

    columns: int = 32
    depth: int = 128
    stages: int = 4
    warps: int = 4
    more: int = 0
    turned: bool = False


_WIDER = Tile(64, 64, 8, 4, more=16), Tile(64, 128, 4, 4, more=32)


def tile_for(rows: int, scaled: bool = False, cut: bool = False) -> Tile:
    """The fastest of those tried on an H200. `cut`: of products whose depth is cut into parts."""
    if scaled and rows > 16:
        return Tile(128, 128, 3, 8, turned=True) if cut else Tile(64, 128, 4, 4, turned=True)
    if scaled:
        return Tile(32, 128, 4, 4)
    return Tile(64, 128, 4, 4) if rows <= 16 else Tile(64, 64, 6, 4)


def even_tile(tile: Tile, width: int, depth: int, parts: int) -> Tile:
    """`tile` widened so that each multiprocessor has one program, where that can be: those that have two would keep the others waiting."""

    def programs(columns: int) -> int:
        count: int = triton.cdiv(width, columns) * parts
        return count

    for wide in _WIDER:
        columns = wide.columns + wide.more
        if programs(tile.columns) > _MULTIPROCESSORS >= programs(columns) and depth % (parts * wide.depth) == 0:
            return wide
    return tile


def parts_for(width: int, depth: int, rows: int, scaled: bool = False) -> int:
    """Into how many parts the depth is cut so that narrow products fill the card: 1, 2, 4 or 8. One row is never cut."""
    tile, parts, most = tile_for(rows, scaled, cut=True), 1, _PROGRAMS * (2 if scaled and rows <= 16 else 1)
    while rows > 1 and parts < 8 and width * parts < most * tile.columns and depth % (2 * parts * tile.depth) == 0:
        parts *= 2
    return parts


@triton.jit
def _sums(
    own, row, matrix, scales, first, end, begin, DEPTH: tl.constexpr, SHARE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, STAGES: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, TURNED: tl.constexpr,
):  # fmt: skip
    """[M, N], or [N, M] if TURNED: rows at `own`, where `row` is true, times N rows of a matrix from `first` on, a multiple of N, as far as
    `end`; over the columns from `begin` to `begin` + SHARE."""
    n, k = first + tl.arange(0, N), begin + tl.arange(0, K)
    acc = tl.zeros([N, M] if TURNED else [M, N], tl.float32)
    some = sharing(first, n, HIGH, N)
    scale = scales_of(scales, some, some < end, begin, DEPTH, HIGH, WIDE)
    for a in tl.range(0, SHARE, K, num_stages=STAGES):
        seen = (a + k < DEPTH)[None, :]
        left = tl.load(own + (a + k)[None, :], mask=row & seen, other=0.0)
        right = tl.load(matrix + n[:, None] * DEPTH + (a + k)[None, :], mask=(n < end)[:, None] & seen, other=0.0)
        # asked for a turn ahead: nothing waits for it
        after = scales_of(scales, some, some < end, begin + a + K, DEPTH, HIGH, WIDE)
        acc, scale = product(acc, left, right, scale, HIGH, TURNED), after
    return acc


@triton.jit(do_not_specialize=["ROWS"])
def _linear_kernel(
    x, x_row, weight, scales, tail, out, ROWS, WIDTH, DEPTH: tl.constexpr, SHARE: tl.constexpr, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr, TAIL: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr,
    TURNED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    part, first = tl.program_id(2), WIDTH - TAIL
    m = tl.program_id(1) * M + tl.arange(0, M)
    own, row = x + m[:, None] * x_row, (m < ROWS)[:, None]
    at = tl.program_id(0).to(tl.int64) * N
    follow(OVERLAP)
    end = WIDTH
    if TAIL == 0:
        acc = _sums(
            own, row, weight, scales, at, WIDTH, part * SHARE, DEPTH, SHARE, M, N, K, STAGES, HIGH, WIDE, TURNED
        )
    elif tl.program_id(0) * N < first:
        end = first
        acc = _sums(
            own, row, weight, scales, at, first, part * SHARE, DEPTH, SHARE, M, N, K, STAGES, HIGH, WIDE, TURNED
        )
    else:
        at -= tl.cdiv(first, N) * N
        # all wait for these few rows where they have fewer stages; of many rows more stages would not leave room for a second program
        few: tl.constexpr = 2 if M > 32 else STAGES
        acc = _sums(own, row, tail, scales, at, TAIL, part * SHARE, DEPTH, SHARE, M, N, K, few, 0, 1, TURNED)
        at += first
    if TURNED:
        acc = tl.trans(acc)
    n = at + tl.arange(0, N)
    place = (part * ROWS + m[:, None]).to(tl.int64) * WIDTH + n[None, :]
    tl.store(out + place, acc, mask=row & (n < end)[None, :])


@triton.jit(do_not_specialize=["ROWS"])
def _pair_kernel(
    x, x_row, weight, out, ROWS, WIDTH, DEPTH: tl.constexpr, SHARE: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    MORE: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The same for two tiles of columns side by side: the rows are read once for both."""
    part, m, k = tl.program_id(1), tl.arange(0, M), tl.arange(0, K)
    own, row = x + m[:, None] * x_row, (m < ROWS)[:, None]
    n = tl.program_id(0).to(tl.int64) * (N + MORE) + tl.arange(0, N)
    beside = tl.program_id(0).to(tl.int64) * (N + MORE) + N + tl.arange(0, MORE)
    one, other = tl.zeros([M, N], tl.float32), tl.zeros([M, MORE], tl.float32)
    follow(OVERLAP)
    for a in tl.range(part * SHARE, (part + 1) * SHARE, K, num_stages=STAGES):
        some = tl.load(own + (a + k)[None, :], mask=row, other=0.0)
        first = tl.load(weight + n[:, None] * DEPTH + (a + k)[None, :], mask=(n < WIDTH)[:, None], other=0.0)
        second = tl.load(weight + beside[:, None] * DEPTH + (a + k)[None, :], mask=(beside < WIDTH)[:, None], other=0.0)
        one, other = (
            tl.dot(some, tl.trans(first), one, input_precision="ieee"),
            tl.dot(some, tl.trans(second), other, input_precision="ieee"),
        )
    place = (part * ROWS + m[:, None]).to(tl.int64) * WIDTH
    tl.store(out + place + n[None, :], one, mask=row & (n < WIDTH)[None, :])
    tl.store(out + place + beside[None, :], other, mask=row & (beside < WIDTH)[None, :])


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


@triton.jit
def _scaled_row_kernel(
    x, weight, scales, tail, out, WIDTH, DEPTH: tl.constexpr, N: tl.constexpr, K: tl.constexpr, TAIL: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    """The same with values in FP8, a block of columns at a time; the last TAIL rows lie in a plain matrix."""
    n, first = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), WIDTH - TAIL
    B: tl.constexpr = K // WIDE
    if TAIL == 0 or tl.program_id(0) * N < first:
        real = n < first
        values = block_tile(weight, n, real, 0, DEPTH, B, WIDE)
        scale = block_scales(scales, n, real, 0, DEPTH, B, HIGH, WIDE)
        follow(OVERLAP)
        acc = block_sums(values, scale, block_row(x, 0, DEPTH, B, WIDE))
        for a in tl.range(K, DEPTH, K, num_stages=3):
            values = block_tile(weight, n, real, a, DEPTH, B, WIDE)
            scale = block_scales(scales, n, real, a, DEPTH, B, HIGH, WIDE)
            acc += block_sums(values, scale, block_row(x, a, DEPTH, B, WIDE))
        tl.store(out + n, acc, mask=real)
    else:
        n -= tl.cdiv(first, N) * N
        follow(OVERLAP)
        acc = tl.zeros([N], tl.float32)
        for a in tl.range(0, DEPTH, K):
            rows = block_tile(tail, n, n < TAIL, a, DEPTH, B, WIDE).to(tl.float32)
            acc += tl.sum(tl.sum(rows * block_row(x, a, DEPTH, B, WIDE), 2), 1)
        tl.store(out + first + n, acc, mask=n < TAIL)


@triton.jit(do_not_specialize=["ROWS"])
def _gated_kernel(
    x, x_row, weight, scales, out, ROWS, WIDTH, DEPTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    STAGES: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    n, m, k = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), tl.arange(0, M), tl.arange(0, K)
    real = n < WIDTH
    gate, up = tl.zeros([M, N], tl.float32), tl.zeros([M, N], tl.float32)
    follow(OVERLAP)
    first = scales_of(scales, n, real, 0, DEPTH, HIGH, WIDE)
    second = scales_of(scales, n + WIDTH, real, 0, DEPTH, HIGH, WIDE)
    for a in tl.range(0, DEPTH, K, num_stages=STAGES):
        seen = (a + k < DEPTH)[None, :]
        some = tl.load(x + m[:, None] * x_row + (a + k)[None, :], mask=(m < ROWS)[:, None] & seen, other=0.0)
        at = weight + n[:, None] * DEPTH + (a + k)[None, :]
        upper = tl.load(at, mask=real[:, None] & seen, other=0.0)
        lower = tl.load(at + WIDTH.to(tl.int64) * DEPTH, mask=real[:, None] & seen, other=0.0)
        gate, up = product(gate, some, upper, first, HIGH), product(up, some, lower, second, HIGH)
        first = scales_of(scales, n, real, a + K, DEPTH, HIGH, WIDE)
        second = scales_of(scales, n + WIDTH, real, a + K, DEPTH, HIGH, WIDE)
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


@triton.jit
def _scaled_gated_row_kernel(
    x, weight, scales, out, WIDTH, DEPTH: tl.constexpr, N: tl.constexpr, K: tl.constexpr, HIGH: tl.constexpr,
    WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    n, B = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N), K // WIDE
    real, gate, up = n < WIDTH, tl.zeros([N], tl.float32), tl.zeros([N], tl.float32)
    follow(OVERLAP)
    for a in tl.range(0, DEPTH, K, num_stages=3):
        upper, lower = (
            block_tile(weight, n, real, a, DEPTH, B, WIDE),
            block_tile(weight, n + WIDTH, real, a, DEPTH, B, WIDE),
        )
        first = block_scales(scales, n, real, a, DEPTH, B, HIGH, WIDE)
        second = block_scales(scales, n + WIDTH, real, a, DEPTH, B, HIGH, WIDE)
        row = block_row(x, a, DEPTH, B, WIDE)
        gate, up = gate + block_sums(upper, first, row), up + block_sums(lower, second, row)
    tl.store(out + n, gate * tl.sigmoid(gate) * up, mask=real)


def gated(x: Tensor, weight: Matrix, *, tile: Tile | None = None) -> Tensor:
    """`silu(x · upperᵀ) · (x · lowerᵀ)` for the two halves of a matrix, rounded once: [rows, width] in the type of x.

    x        [rows, depth], at most MOST_GATED rows, which may be strided
    weight   [2 · width, depth], contiguous
    tile     half of its columns from each half; None: the fastest tried
    """
    (rows, depth), width = x.shape, weight.shape[0] // 2
    assert rows <= MOST_GATED
    out = torch.empty(rows, width, dtype=x.dtype, device=x.device)
    values, scales, stored = operand(weight)
    if rows == 1 and tile is None:
        grid = (triton.cdiv(width, 8),)
        if isinstance(weight, Scaled):
            k = weight.columns * max(1, 512 // weight.columns)
            _scaled_gated_row_kernel[grid](
                x, values, scales, out, width, DEPTH=depth, N=8, K=k, **stored, num_warps=4, **overlap(x, 1)
            )
        else:
            _gated_row_kernel[grid](x, weight, out, width, DEPTH=depth, N=8, K=512, num_warps=4, **overlap(x, 1))
        return out
    tile = tile or Tile(128, 128, 3, 4)
    _gated_kernel[(triton.cdiv(width, tile.columns // 2),)](
        x, x.stride(0), values, scales, out, rows, width, DEPTH=depth, M=16, N=tile.columns // 2,
        K=columns_of(weight, tile.depth), STAGES=tile.stages, **stored, num_warps=tile.warps, **overlap(x, rows),
    )  # fmt: skip
    return out


def linear(
    x: Tensor, weight: Matrix, *, tail: Tensor | None = None, parts: int = 1, tile: Tile | None = None
) -> Tensor:
    """`x · weightᵀ`, summed in float32: [rows, width] in the type of x. Many rows are torch's.

    x        [rows, depth]; rows may be strided
    weight   [width, depth], contiguous
    tail     in the type of x: rows that follow those of an FP8 `weight`
    parts    more than 1: float32 [parts, rows, width] for the reader to sum; each covers an equal share of the depth.
             It divides the depth, as each share is divided by the depth of the tile
    """
    scaled = isinstance(weight, Scaled)
    (rows, depth), more = x.shape, 0 if tail is None else tail.shape[0]
    width = weight.shape[0] + more
    assert scaled or tail is None
    if parts == 1 and tile is None:
        if rows == 1:
            return _one_row(x, weight, tail)
        if rows > (_MOST_SCALED if scaled else MOST_ROWS) or (rows > 16 and width > _WIDE and not scaled):
            return F.linear(x, plain(weight, tail, x.dtype))
    if tile is None:
        tile = tile_for(rows, scaled, parts > 1)
        if rows > 16 and not scaled and x.itemsize == 2:  # of wider numbers so many do not fit into shared memory
            tile = even_tile(tile, width, depth, parts)
    shape, dtype = ((rows, width), x.dtype) if parts == 1 else ((parts, rows, width), torch.float32)
    out = torch.empty(shape, dtype=dtype, device=x.device)
    most, k = min(64, max(16, triton.next_power_of_2(rows))), columns_of(weight, tile.depth)
    assert parts == 1 or depth % (parts * k) == 0
    if tile.more:
        assert rows <= most and not scaled and depth % (parts * k) == 0
        _pair_kernel[(triton.cdiv(width, tile.columns + tile.more), parts)](
            x, x.stride(0), weight, out, rows, width, DEPTH=depth, SHARE=depth // parts, M=most, N=tile.columns, MORE=tile.more,
            K=k, STAGES=tile.stages, num_warps=tile.warps, **overlap(x, rows),
        )  # fmt: skip
        return out
    values, scales, stored = operand(weight)
    programs = triton.cdiv(width - more, tile.columns) + triton.cdiv(more, tile.columns)
    _linear_kernel[(programs, triton.cdiv(rows, most), parts)](
        x, x.stride(0), values, scales, x if tail is None else tail, out, rows, width, DEPTH=depth, SHARE=depth // parts,
        M=most, N=tile.columns, K=k, STAGES=tile.stages, TAIL=more, **stored, TURNED=tile.turned, num_warps=tile.warps,
        **overlap(x, rows),
    )  # fmt: skip
    return out


def plain(weight: Matrix, tail: Tensor | None, dtype: torch.dtype) -> Tensor:
    """All rows as one tensor; those in FP8 are unpacked, which takes a hundredth of what a product of thousands of rows does."""
    if not isinstance(weight, Scaled):
        return weight
    first, more = weight.shape[0], 0 if tail is None else tail.shape[0]
    whole = torch.empty(first + more, weight.shape[1], dtype=dtype, device=weight.values.device)
    unpack(weight, whole[:first])
    if tail is not None:
        whole[first:] = tail
    return whole


def _one_row(x: Tensor, weight: Matrix, tail: Tensor | None) -> Tensor:
    depth, more = x.shape[1], 0 if tail is None else tail.shape[0]
    width = weight.shape[0] + more
    whole = depth == triton.next_power_of_2(depth) and depth <= 4096
    out = torch.empty(1, width, dtype=x.dtype, device=x.device)
    if isinstance(weight, Scaled):
        values, scales, stored = operand(weight)
        k = max(weight.columns, depth if whole else 1024)
        n = max(1, 2 * _ONE_ROW // k)  # as many bytes
        _scaled_row_kernel[(triton.cdiv(width - more, n) + triton.cdiv(more, n),)](
            x, values, scales, x if tail is None else tail, out, width, DEPTH=depth, N=n, K=k, TAIL=more, **stored,
            num_warps=4, **overlap(x, 1),
        )  # fmt: skip
        return out
    k = depth if whole else (1024 if depth % 1024 == 0 else 512)
    n = max(1, _ONE_ROW // k if whole else _ONE_ROW // 2 // k)
    _row_kernel[(triton.cdiv(width, n),)](x, weight, out, width, DEPTH=depth, N=n, K=k, num_warps=4, **overlap(x, 1))
    return out
