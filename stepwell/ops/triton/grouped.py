"""A mixture of experts for many tokens, bound by arithmetic: tokens sorted by expert, two grouped products, and the way back.

Routed pair r = row · top + j is the j-th expert of a row. Its place among all pairs sorted by expert (equal ones by number) is
found by counting: pairs of each expert in each block, their running sum over experts and blocks, and a rank inside the block.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 256
_CHUNK = 16


@triton.jit
def _ids_of(chosen, PAIRS, TOP: tl.constexpr, BINS: tl.constexpr, r):
    """Experts of routed pairs; the shared expert's column is left out, and what lies past the end goes into the last bin."""
    return tl.load(chosen + r // TOP * (TOP + 1) + r % TOP, mask=r < PAIRS, other=BINS - 1)


@triton.jit
def _count_kernel(
    chosen, counts, PAIRS, EXPERTS: tl.constexpr, TOP: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr
):
    r, e = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, BINS)
    found = tl.histogram(_ids_of(chosen, PAIRS, TOP, BINS, r), BINS)
    tl.store(counts + e * tl.num_programs(0) + tl.program_id(0), found, mask=e < EXPERTS)


@triton.jit
def _place_kernel(
    chosen, counts, ends, places, PAIRS, TOP: tl.constexpr, BINS: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr
):
    first, i = tl.program_id(0) * BLOCK, tl.arange(0, BLOCK)
    own = _ids_of(chosen, PAIRS, TOP, BINS, first + i)
    rank = tl.zeros([BLOCK], tl.int32)
    for a in range(0, BLOCK, CHUNK):
        j = a + tl.arange(0, CHUNK)
        other = _ids_of(chosen, PAIRS, TOP, BINS, first + j)
        rank += tl.sum(((own[:, None] == other[None, :]) & (j[None, :] < i[:, None])).to(tl.int32), 1)
    at, real = own * tl.num_programs(0) + tl.program_id(0), first + i < PAIRS
    start = tl.load(ends + at, mask=real, other=0) - tl.load(counts + at, mask=real, other=0)
    tl.store(places + first + i, start + rank, mask=real)


def sort_pairs(chosen: Tensor, experts: int) -> tuple[Tensor, Tensor]:
    """Places int32 [rows · top] of the routed pairs in the order of their experts, and where each expert ends, int32 [experts].

    `chosen` is int32 [rows, top + 1] as `route` returns it. No host synchronisation.
    """
    rows, top = chosen.shape[0], chosen.shape[1] - 1
    pairs, bins = rows * top, triton.next_power_of_2(experts + 1)
    blocks = triton.cdiv(pairs, _BLOCK)
    counts = torch.empty(experts, blocks, dtype=torch.int32, device=chosen.device)
    places = torch.empty(pairs, dtype=torch.int32, device=chosen.device)
    _count_kernel[(blocks,)](chosen, counts, pairs, EXPERTS=experts, TOP=top, BINS=bins, BLOCK=_BLOCK, num_warps=4)
    ends = counts.flatten().cumsum(0, dtype=torch.int32)
    _place_kernel[(blocks,)](
        chosen, counts, ends, places, pairs, TOP=top, BINS=bins, BLOCK=_BLOCK, CHUNK=_CHUNK, num_warps=4
    )
    return places, ends.view(experts, blocks)[:, -1].contiguous()


@triton.jit
def _spread_kernel(x, places, out, HIDDEN: tl.constexpr, TOP: tl.constexpr, BLOCK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    values = tl.load(x + row * HIDDEN + i, mask=i < HIDDEN)
    for j in tl.static_range(TOP):
        place = tl.load(places + row * TOP + j).to(tl.int64)
        tl.store(out + place * HIDDEN + i, values, mask=i < HIDDEN)


def spread_rows(x: Tensor, places: Tensor, top: int) -> Tensor:
    """Rows in the order of their pairs: out[places[row · top + j]] = x[row], [rows · top, hidden]."""
    rows, hidden = x.shape
    out = x.new_empty(rows * top, hidden)
    block = triton.next_power_of_2(hidden)
    _spread_kernel[(rows,)](x, places, out, HIDDEN=hidden, TOP=top, BLOCK=block, num_warps=min(8, max(1, block // 256)))
    return out


@triton.jit
def _silu_kernel(x, out, ROWS, WIDTH: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr):
    row, i = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)[:, None], tl.arange(0, BLOCK)[None, :]
    seen = (row < ROWS) & (i < WIDTH)
    gate = tl.load(x + row * (2 * WIDTH) + i, mask=seen, other=0.0).to(tl.float32)
    up = tl.load(x + row * (2 * WIDTH) + WIDTH + i, mask=seen, other=0.0).to(tl.float32)
    tl.store(out + row * WIDTH + i, gate * tl.sigmoid(gate) * up, mask=seen)


def silu_gate(x: Tensor) -> Tensor:
    """`silu(first half) · second half` of each row: [rows, 2 · width] → [rows, width]."""
    rows, width = x.shape[0], x.shape[1] // 2
    out, block = x.new_empty(rows, width), triton.next_power_of_2(width)
    n = max(1, 2048 // block)
    _silu_kernel[(triton.cdiv(rows, n),)](x, out, rows, WIDTH=width, N=n, BLOCK=block, num_warps=4)
    return out


@triton.jit
def _return_kernel(
    parts,
    places,
    shared,
    weights,
    residual,
    norm,
    out,
    eps,
    HIDDEN: tl.constexpr,
    TOP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    own, mask = row * HIDDEN + i, i < HIDDEN
    total = tl.load(shared + own, mask=mask, other=0.0).to(tl.float32) * tl.load(weights + row * (TOP + 1) + TOP)
    for j in tl.static_range(TOP):
        place = tl.load(places + row * TOP + j).to(tl.int64)
        part = tl.load(parts + place * HIDDEN + i, mask=mask, other=0.0).to(tl.float32)
        total += part * tl.load(weights + row * (TOP + 1) + j)
    before = tl.load(residual + own, mask=mask, other=0.0)
    after = (before.to(tl.float32) + total).to(before.dtype)
    tl.store(residual + own, after, mask=mask)
    y = after.to(tl.float32)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / HIDDEN + eps) * tl.load(norm + i, mask=mask, other=0.0)
    tl.store(out + own, y, mask=mask)


def mixture_of_many(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, shared_gate_up: Tensor,
    shared_down: Tensor, residual: Tensor, norm: Tensor, eps: float,
) -> Tensor:  # fmt: skip
    """As `experts.mixture`, for any number of rows; products are torch's grouped ones (CUTLASS on Hopper), in the type of x."""
    (rows, hidden), top = x.shape, chosen.shape[1] - 1
    places, ends = sort_pairs(chosen, gate_up.shape[0])
    h = silu_gate(torch._grouped_mm(spread_rows(x, places, top), gate_up.mT, offs=ends))
    parts = torch._grouped_mm(h, down.mT, offs=ends)
    shared = F.linear(silu_gate(F.linear(x, shared_gate_up)), shared_down)
    out, block = torch.empty_like(residual), triton.next_power_of_2(hidden)
    _return_kernel[(rows,)](
        parts, places, shared, weights, residual, norm, out, eps, HIDDEN=hidden, TOP=top, BLOCK=block,
        num_warps=min(8, max(1, block // 256)),
    )  # fmt: skip
    return out
