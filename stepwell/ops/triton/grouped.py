"""A mixture of experts for many tokens, bound by arithmetic: pairs sorted by expert, two grouped products, and the way back.

Pair p = row · (top + 1) + j is the j-th expert of a row, the shared expert the last, as `experts.route` has them. Its place among
all pairs sorted by expert (equal ones by number) is found by counting: pairs of each expert in each block, their running sum over
experts and blocks, and a rank inside the block.

    _count, cumsum, _place   pairs → places, and the row that each place belongs to
    _up                      silu(gate · x) · up · x for each place; rows of x are read where they lie
    _down                    down · h for each place
    _return                  a row's places, weighted; adds the residual and norms the sum

FP8 weights (`stored.py`) are rounded to the type of x, tile by tile, as they are read: nothing else is held.

A program of a product multiplies M places of one expert with N columns. Which expert and which places is found from the experts'
ends: expert e has ⌈pairs / M⌉ such tiles, behind those of the experts before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.scaled import Matrix, Scaled
from stepwell.ops.triton.overlap import follow, overlap
from stepwell.ops.triton.stored import columns_of, operands, scales_in, scales_of, unpacked_product

_BLOCK = 128


@triton.jit(do_not_specialize=["PAIRS"])
def _count_kernel(chosen, counts, PAIRS, EXPERTS: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr):
    p, e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BINS)
    found = tl.histogram(tl.load(chosen + p, mask=p < PAIRS, other=BINS - 1), BINS)
    tl.store(counts + e * tl.num_programs(0) + tl.program_id(0), found, mask=e <= EXPERTS)


@triton.jit(do_not_specialize=["PAIRS"])
def _place_kernel(
    chosen, counts, ends, places, rows, PAIRS, TOP: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    first, i, j = tl.program_id(0) * BLOCK, tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    real = first + i < PAIRS
    own = tl.load(chosen + first + i, mask=real, other=BINS - 1)
    before = tl.load(chosen + first + j, mask=first + j < PAIRS, other=BINS - 1)
    rank = tl.sum(((own[:, None] == before[None, :]) & (j[None, :] < i[:, None])).to(tl.int32), 1)
    at = own * tl.num_programs(0) + tl.program_id(0)
    place = tl.load(ends + at, mask=real, other=0) - tl.load(counts + at, mask=real, other=0) + rank
    tl.store(places + first + i, place, mask=real)
    tl.store(rows + place, (first + i) // (TOP + 1), mask=real)


@dataclass(frozen=True, slots=True, eq=False)
class Sorted:
    """Pairs in the order of their experts, int32.

    places   [pairs], where each pair is
    rows     [pairs], the row of the pair at each place
    ends     [experts + 1, blocks]; the last of a line is where the expert's places end
    """

    places: Tensor
    rows: Tensor
    ends: Tensor


def sort_pairs(chosen: Tensor, experts: int) -> Sorted:
    """Sort the pairs of `chosen`, int32 [rows, top + 1] as `route` returns it. No host synchronisation."""
    pairs, bins = chosen.numel(), triton.next_power_of_2(experts + 2)
    blocks = triton.cdiv(pairs, _BLOCK)
    counts = torch.empty(experts + 1, blocks, dtype=torch.int32, device=chosen.device)
    places, rows = (torch.empty(pairs, dtype=torch.int32, device=chosen.device) for _ in range(2))
    _count_kernel[(blocks,)](chosen, counts, pairs, EXPERTS=experts, BINS=bins, BLOCK=_BLOCK, num_warps=4)
    ends = counts.flatten().cumsum(0, dtype=torch.int32)
    _place_kernel[(blocks,)](
        chosen, counts, ends, places, rows, pairs, TOP=chosen.shape[1] - 1, BINS=bins, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip
    return Sorted(places, rows, ends.view(experts + 1, blocks))


@triton.jit(do_not_specialize=["ROWS"])
def _silu_kernel(x, out, ROWS, WIDTH: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)[:, None]
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)[None, :]
    seen = (row < ROWS) & (i < WIDTH)
    follow(OVERLAP)
    gate = tl.load(x + row * (2 * WIDTH) + i, mask=seen, other=0.0).to(tl.float32)
    up = tl.load(x + row * (2 * WIDTH) + WIDTH + i, mask=seen, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + i, gate * tl.sigmoid(gate) * up, mask=seen)


def silu_gate(x: Tensor) -> Tensor:
    """`silu(first half) · second half` of each row: [rows, 2 · width] → [rows, width]."""
    rows, width = x.shape[0], x.shape[1] // 2
    out, block = x.new_empty(rows, width), min(1024, triton.next_power_of_2(width))
    n = 2048 // block
    _silu_kernel[(triton.cdiv(rows, n), triton.cdiv(width, block))](
        x, out, rows, WIDTH=width, N=n, BLOCK=block, num_warps=4, **overlap(x, rows)
    )
    return out


@triton.jit
def _tile_of(ends, BLOCKS, tile, EXPERTS: tl.constexpr, BINS: tl.constexpr, M: tl.constexpr):
    """Expert of a tile, its first place, and where the expert's places end. Expert EXPERTS + 1: there is no such tile."""
    e = tl.arange(0, BINS)
    end = tl.load(ends + (e + 1) * BLOCKS - 1, mask=e <= EXPERTS, other=0)
    begin = tl.load(ends + e * BLOCKS - 1, mask=(e > 0) & (e <= EXPERTS), other=0)
    tiles = tl.where(e <= EXPERTS, (end - begin + M - 1) // M, 0)
    upto = tl.cumsum(tiles, 0)
    expert = tl.sum(((upto <= tile) & (e <= EXPERTS)).to(tl.int32), 0)
    own = e == expert
    first = tl.sum(tl.where(own, begin + (tile - upto + tiles) * M, 0), 0)
    return expert.to(tl.int64), first, tl.sum(tl.where(own, end, 0), 0)


@triton.jit(do_not_specialize=["BLOCKS"])
def _up_kernel(
    x, rows, ends, BLOCKS, gate_up, scales, shared, shared_scales, h, EXPERTS: tl.constexpr, BINS: tl.constexpr,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    expert, first, end = _tile_of(ends, BLOCKS, tl.program_id(1), EXPERTS, BINS, M)
    if expert <= EXPERTS:
        matrix = shared if expert == EXPERTS else gate_up + expert * (2 * WIDTH * HIDDEN)
        scale = shared_scales if expert == EXPERTS else scales + expert * scales_in(2 * WIDTH, HIDDEN, HIGH, WIDE)
        m, n, k = first + tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, K)
        real, whole = (m < end)[:, None], (n < WIDTH)[:, None]
        # a tile's rest repeats its first row: its sums are not stored
        row = tl.load(rows + tl.where(m < end, m, first)).to(tl.int64)
        own, at = x + row[:, None] * HIDDEN + k[None, :], matrix + n[:, None] * HIDDEN + k[None, :]
        gate, up = tl.zeros([M, N], tl.float32), tl.zeros([M, N], tl.float32)
        upper, lower = tl.zeros([N], tl.float32), tl.zeros([N], tl.float32)
        for a in tl.range(0, HIDDEN, K, num_stages=STAGES):
            seen = (a + k < HIDDEN)[None, :]
            part = tl.load(own + a, mask=seen, other=0.0)
            upper = scales_of(scale, n, n < WIDTH, a, HIDDEN, HIGH, WIDE)
            lower = scales_of(scale, n + WIDTH, n < WIDTH, a, HIDDEN, HIGH, WIDE)
            gate = unpacked_product(gate, part, tl.load(at + a, mask=whole & seen, other=0.0), upper, HIGH)
            up = unpacked_product(up, part, tl.load(at + WIDTH * HIDDEN + a, mask=whole & seen, other=0.0), lower, HIGH)
        place = h + m.to(tl.int64)[:, None] * WIDTH + n[None, :]
        tl.store(place, gate * tl.sigmoid(gate) * up, mask=real & (n < WIDTH)[None, :])


@triton.jit(do_not_specialize=["BLOCKS"])
def _down_kernel(
    h, ends, BLOCKS, down, scales, shared, shared_scales, parts, EXPERTS: tl.constexpr, BINS: tl.constexpr,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    expert, first, end = _tile_of(ends, BLOCKS, tl.program_id(1), EXPERTS, BINS, M)
    if expert <= EXPERTS:
        matrix = shared if expert == EXPERTS else down + expert * (HIDDEN * WIDTH)
        scale = shared_scales if expert == EXPERTS else scales + expert * scales_in(HIDDEN, WIDTH, HIGH, WIDE)
        m, n, k = first + tl.arange(0, M), tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, K)
        own = h + tl.where(m < end, m, first).to(tl.int64)[:, None] * WIDTH + k[None, :]
        at, whole = matrix + n[:, None] * WIDTH + k[None, :], (n < HIDDEN)[:, None]
        made = tl.zeros([M, N], tl.float32)
        for a in tl.range(0, WIDTH, K, num_stages=STAGES):
            seen = (a + k < WIDTH)[None, :]
            part = tl.load(own + a, mask=seen, other=0.0)
            share = scales_of(scale, n, n < HIDDEN, a, WIDTH, HIGH, WIDE)
            made = unpacked_product(made, part, tl.load(at + a, mask=whole & seen, other=0.0), share, HIGH)
        place = parts + m.to(tl.int64)[:, None] * HIDDEN + n[None, :]
        tl.store(place, made, mask=(m < end)[:, None] & (n < HIDDEN)[None, :])


@triton.jit
def _return_kernel(
    parts, places, weights, residual, norm, out, eps, HIDDEN: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr
):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    own, mask = row * HIDDEN + i, i < HIDDEN
    total = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(TOP + 1):
        place = tl.load(places + row * (TOP + 1) + j).to(tl.int64)
        part = tl.load(parts + place * HIDDEN + i, mask=mask, other=0.0).to(tl.float32)
        total += part * tl.load(weights + row * (TOP + 1) + j)
    before = tl.load(residual + own, mask=mask, other=0.0)
    after = (before.to(tl.float32) + total).to(before.dtype)
    tl.store(residual + own, after, mask=mask)
    y = after.to(tl.float32)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / HIDDEN + eps) * tl.load(norm + i, mask=mask, other=0.0)
    tl.store(out + own, y, mask=mask)


@dataclass(frozen=True, slots=True)
class Tile:
    """Places, columns and depth of a product's tile, stages of its pipeline and warps. Depth changes last bits, the rest none."""

    places: int
    columns: int
    depth: int
    stages: int
    warps: int


@dataclass(frozen=True, slots=True)
class Tiles:
    up: Tile
    down: Tile


def tiles_for(pairs: int, experts: int, scaled: bool = False) -> Tiles:
    """The fastest of those tried on an H200: large tiles where an expert has enough pairs to fill them."""
    if pairs < (64 if scaled else 16) * experts:
        return Tiles(Tile(32, 64, 128, 3, 4), Tile(32, 128, 128, 3, 4))
    if pairs < 64 * experts:
        return Tiles(Tile(64, 64, 64, 4, 4), Tile(64, 128, 64, 4, 4))
    if scaled and pairs < 256 * experts:
        return Tiles(Tile(128, 64, 64, 4, 8), Tile(128, 128, 64, 4, 8))
    return Tiles(Tile(128, 128, 64, 4, 8), Tile(128, 256, 64, 4, 8))


def mixture_of_many(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Matrix, down: Matrix, shared_gate_up: Matrix,
    shared_down: Matrix, residual: Tensor, norm: Tensor, eps: float, tiles: Tiles | None = None,
) -> Tensor:  # fmt: skip
    """As `experts.mixture`, for any number of rows; what an expert makes of a pair is rounded to the type of x.

    tiles   None: the fastest tried
    """
    (rows, hidden), (experts, double, _), pairs = x.shape, gate_up.shape, chosen.numel()
    width, tiles = double // 2, tiles or tiles_for(pairs, experts, isinstance(gate_up, Scaled))
    assert shared_down.shape == (hidden, width)
    order = sort_pairs(chosen, experts)
    sizes = {"EXPERTS": experts, "BINS": triton.next_power_of_2(experts + 2), "HIDDEN": hidden, "WIDTH": width}
    h, parts = x.new_empty(pairs, width), x.new_empty(pairs, hidden)
    t, blocks = tiles.up, order.ends.shape[1]
    matrices, stored = operands(gate_up, shared_gate_up)
    _up_kernel[(triton.cdiv(width, t.columns), _most(pairs, experts, t.places))](
        x, order.rows, order.ends, blocks, *matrices, h, **sizes, M=t.places, N=t.columns, K=columns_of(gate_up, t.depth),
        STAGES=t.stages, **stored, num_warps=t.warps,
    )  # fmt: skip
    t = tiles.down
    matrices, stored = operands(down, shared_down)
    _down_kernel[(triton.cdiv(hidden, t.columns), _most(pairs, experts, t.places))](
        h, order.ends, blocks, *matrices, parts, **sizes, M=t.places, N=t.columns, K=columns_of(down, t.depth),
        STAGES=t.stages, **stored, num_warps=t.warps,
    )  # fmt: skip
    out, block = torch.empty_like(residual), triton.next_power_of_2(hidden)
    _return_kernel[(rows,)](
        parts, order.places, weights, residual, norm, out, eps, HIDDEN=hidden, TOP=chosen.shape[1] - 1, BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
    )  # fmt: skip
    return out


def _most(pairs: int, experts: int, places: int) -> int:
    """Most tiles that so many pairs of experts + 1 experts can have."""
    return min(pairs, (pairs + (experts + 1) * (places - 1)) // places)
