"""A mixture of experts for few tokens, bound by reading weights: each expert that is chosen is read once.

A pair is (token, one of its experts); pair p belongs to token p // (top + 1). The shared expert is expert number
`experts` with the weight sigmoid(its gate), so it is one more pair of each token and needs no kernels of its own.

    route      logits → pairs and their weights
    _plan      pairs sorted by expert: a unit of work is one chosen expert with its pairs
    _up        unit × columns: silu(gate · x) · up · x
    _down      unit × columns: down · h, one row for each pair
    _combine   a token's rows in the order of its pairs, weighted; adds the residual and norms the sum

One token needs no plan (`expert_row.py`).

FP8 weights meet activations in float16, not bfloat16: they are converted with a quarter of the instructions, which are what bounds the
products otherwise. Normed rows lie within ±√hidden times the norm's weight, and float16 holds them to three bits more than bfloat16. h
is stored 64 times smaller, so that it may reach 4 million; what is larger becomes infinite and its row NaN, which the engine tells.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.scaled import Matrix, Scaled
from stepwell.ops.triton.expert_row import mixture_of_one
from stepwell.ops.triton.norm import add_rms_norm
from stepwell.ops.triton.overlap import follow, overlap
from stepwell.ops.triton.stored import columns_of, operands, product, scales_in, scales_of, sharing

MOST_PAIRS = 2048
"""Beyond this many pairs a grouped product is faster, and sorting in one program is not."""
_BLOCKS = (256, 1024, MOST_PAIRS)  # pairs that are sorted at once: each a kernel to compile
_COPIED = 4096  # elements that a program copies
_LESS = tl.constexpr(1 / 64)  # of what h is, where it is stored in float16


@triton.jit
def _route_kernel(
    logits, logits_row, plane, chosen, weights, EXPERTS: tl.constexpr, TOP: tl.constexpr, SLOTS: tl.constexpr,
    BLOCK: tl.constexpr, NORMED: tl.constexpr, PARTS: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    expert, slot = tl.arange(0, BLOCK), tl.arange(0, SLOTS)
    x, gate = tl.where(expert < EXPERTS, 0.0, float("-inf")), 0.0
    follow(OVERLAP)
    for part in tl.static_range(PARTS):
        own = logits + part * plane + row * logits_row
        x += tl.load(own + expert, mask=expert < EXPERTS, other=0.0).to(tl.float32)
        gate += tl.load(own + EXPERTS).to(tl.float32)
    x = tl.exp(x - tl.max(x, 0))
    chance = tl.where(expert < EXPERTS, x / tl.sum(x, 0), -1.0)
    best = tl.zeros([SLOTS], tl.float32)
    who = tl.full([SLOTS], EXPERTS, tl.int32)
    for i in tl.static_range(TOP):
        # a row that broke is all NaN: it too has to choose experts that there are
        largest, at = tl.max(chance, 0), tl.minimum(tl.argmax(chance, 0), EXPERTS - 1)
        best = tl.where(slot == i, largest, best)
        who = tl.where(slot == i, at, who)
        chance = tl.where(expert == at, -1.0, chance)
    if NORMED:
        best = best / tl.sum(best, 0)
    best = tl.where(slot == TOP, tl.sigmoid(gate), best)
    place = row * (TOP + 1) + slot
    tl.store(chosen + place, who, mask=slot <= TOP)
    tl.store(weights + place, best, mask=slot <= TOP)


def route(logits: Tensor, top: int, normed: bool) -> tuple[Tensor, Tensor]:
    """Experts int32 [rows, top + 1] and their weights float32 of that shape; the last is the shared expert.

    logits   [rows, experts + 1]: the router's, then the shared expert's gate; or [parts, rows, experts + 1], summed first
    normed   whether the weights of the `top` sum to 1

    Equal chances are settled by expert number.
    """
    parts, (rows, experts) = logits.shape[0] if logits.ndim == 3 else 1, (logits.shape[-2], logits.shape[-1] - 1)
    chosen = torch.empty(rows, top + 1, dtype=torch.int32, device=logits.device)
    weights = torch.empty(rows, top + 1, dtype=torch.float32, device=logits.device)
    _route_kernel[(rows,)](
        logits, logits.stride(-2), logits.stride(0), chosen, weights, EXPERTS=experts, TOP=top,
        SLOTS=triton.next_power_of_2(top + 1), BLOCK=triton.next_power_of_2(experts), NORMED=normed, PARTS=parts,
        num_warps=1, **overlap(logits, rows),
    )  # fmt: skip
    return chosen, weights


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Pairs sorted by expert, int32. Unit u works for expert `expert[u]` on pairs order[start[u]] … order[start[u + 1] − 1].

    order [pairs]; expert [most]; start [most + 1]; where fewer than `most` experts are chosen, the rest have no pairs.
    """

    order: Tensor
    expert: Tensor
    start: Tensor

    @property
    def most(self) -> int:
        return self.expert.shape[0]


@triton.jit(do_not_specialize=["PAIRS", "MOST", "COUNT"])
def _plan_kernel(
    chosen, order, unit_expert, unit_start, source, target, PAIRS, MOST, COUNT, EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr, BINS: tl.constexpr, COPIED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    expert = tl.program_id(0)
    p, e = tl.arange(0, BLOCK), tl.arange(0, BINS)
    follow(OVERLAP)
    if expert > EXPERTS:
        i = (expert - EXPERTS - 1) * COPIED + tl.arange(0, COPIED)
        tl.store(target + i, tl.load(source + i, mask=i < COUNT, other=0.0), mask=i < COUNT)
    else:
        ids = tl.load(chosen + p, mask=p < PAIRS, other=BINS - 1)
        counts = tl.where(e <= EXPERTS, tl.histogram(ids, BINS), 0)
        before = tl.sum(tl.where(e < expert, counts, 0), 0)
        unit = tl.sum(((e < expert) & (counts > 0)).to(tl.int32), 0)
        mine = (ids == expert) & (p < PAIRS)
        count = tl.sum(mine.to(tl.int32), 0)
        if count > 0:
            rank = tl.cumsum(mine.to(tl.int32), 0) - 1
            tl.store(order + before + rank, p, mask=mine)
            tl.store(unit_expert + unit, expert)
            tl.store(unit_start + unit, before)
        if expert == EXPERTS:
            # all that follows the last unit is empty: it starts where the pairs end
            last = unit + (count > 0).to(tl.int32)
            u = tl.arange(0, BINS)
            tl.store(unit_start + u, PAIRS, mask=(u >= last) & (u <= MOST))


def plan_units(chosen: Tensor, experts: int, copied: tuple[Tensor, Tensor] | None = None) -> Units:
    """Group pairs by expert; `chosen` is int32 [rows, top + 1] as `route` returns it.

    copied   a tensor that the same launch copies to another of its size, of any type; both are contiguous
    """
    pairs, (source, target) = chosen.numel(), copied or (chosen, chosen)
    more = triton.cdiv(source.numel(), _COPIED) if copied else 0
    assert pairs <= MOST_PAIRS
    most = min(pairs, experts + 1)
    order = torch.empty(pairs, dtype=torch.int32, device=chosen.device)
    expert = torch.empty(most, dtype=torch.int32, device=chosen.device)
    start = torch.empty(most + 1, dtype=torch.int32, device=chosen.device)
    _plan_kernel[(experts + 1 + more,)](
        chosen, order, expert, start, source, target, pairs, most, source.numel(), EXPERTS=experts,
        BLOCK=next(n for n in _BLOCKS if n >= pairs), BINS=triton.next_power_of_2(experts + 2), COPIED=_COPIED,
        num_warps=4, **overlap(chosen, chosen.shape[0]),
    )  # fmt: skip
    return Units(order, expert, start)


@triton.jit
def _up_kernel(
    x, order, unit_expert, unit_start, gate_up, scales, shared, shared_scales, h, TOP: tl.constexpr, EXPERTS: tl.constexpr,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    unit = tl.num_programs(1) - 1 - tl.program_id(1)  # the shared expert first: it has most pairs
    follow(OVERLAP)
    begin, end = tl.load(unit_start + unit), tl.load(unit_start + unit + 1)
    if begin < end:
        expert = tl.load(unit_expert + unit).to(tl.int64)
        matrix = shared if expert == EXPERTS else gate_up + expert * (2 * WIDTH * HIDDEN)
        own = shared_scales if expert == EXPERTS else scales + expert * scales_in(2 * WIDTH, HIDDEN, HIGH, WIDE)
        n, k = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, K)
        real = n < WIDTH
        # the lower half's tiles begin where the upper one's do, counted in blocks, if N divides the width
        some = sharing(tl.program_id(0) * N, n, HIGH if WIDTH % N == 0 else 1, N)
        few = some < WIDTH
        for first in range(begin, end, M):
            m = first + tl.arange(0, M)
            pair = tl.load(order + m, mask=m < end, other=0)
            rows = x + (pair // (TOP + 1)).to(tl.int64)[:, None] * HIDDEN
            gate, up = tl.zeros([M, N], tl.float32), tl.zeros([M, N], tl.float32)
            upper = scales_of(own, some, few, 0, HIDDEN, HIGH, WIDE)
            lower = scales_of(own, some + WIDTH, few, 0, HIDDEN, HIGH, WIDE)
            for a in tl.range(0, HIDDEN, K, num_stages=STAGES):
                part = tl.load(rows + (a + k)[None, :], mask=(m < end)[:, None] & (a + k < HIDDEN)[None, :], other=0.0)
                at = matrix + n[:, None] * HIDDEN + (a + k)[None, :]
                seen = real[:, None] & (a + k < HIDDEN)[None, :]
                gate = product(gate, part, tl.load(at, mask=seen, other=0.0), upper, HIGH)
                up = product(up, part, tl.load(at + WIDTH * HIDDEN, mask=seen, other=0.0), lower, HIGH)
                upper = scales_of(own, some, few, a + K, HIDDEN, HIGH, WIDE)
                lower = scales_of(own, some + WIDTH, few, a + K, HIDDEN, HIGH, WIDE)
            made = gate * tl.sigmoid(gate) * up
            if h.dtype.element_ty == tl.float16:
                made *= _LESS
            place = h + pair.to(tl.int64)[:, None] * WIDTH + n[None, :]
            tl.store(place, made, mask=(m < end)[:, None] & real[None, :])


@triton.jit
def _down_kernel(
    h, order, unit_expert, unit_start, down, scales, shared, shared_scales, parts, EXPERTS: tl.constexpr,
    HIDDEN: tl.constexpr, WIDTH: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, STAGES: tl.constexpr,
    HIGH: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    unit = tl.num_programs(1) - 1 - tl.program_id(1)  # the shared expert first: it has most pairs
    follow(OVERLAP)
    begin, end = tl.load(unit_start + unit), tl.load(unit_start + unit + 1)
    if begin < end:
        expert = tl.load(unit_expert + unit).to(tl.int64)
        matrix = shared if expert == EXPERTS else down + expert * (HIDDEN * WIDTH)
        own = shared_scales if expert == EXPERTS else scales + expert * scales_in(HIDDEN, WIDTH, HIGH, WIDE)
        n, k = tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, K)
        real = n < HIDDEN
        some = sharing(tl.program_id(0) * N, n, HIGH, N)
        for first in range(begin, end, M):
            m = first + tl.arange(0, M)
            pair = tl.load(order + m, mask=m < end, other=0).to(tl.int64)
            made = tl.zeros([M, N], tl.float32)
            scale = scales_of(own, some, some < HIDDEN, 0, WIDTH, HIGH, WIDE)
            for a in tl.range(0, WIDTH, K, num_stages=STAGES):
                seen = (a + k < WIDTH)[None, :]
                part = tl.load(h + pair[:, None] * WIDTH + (a + k)[None, :], mask=(m < end)[:, None] & seen, other=0.0)
                at = matrix + n[:, None] * WIDTH + (a + k)[None, :]
                made = product(made, part, tl.load(at, mask=real[:, None] & seen, other=0.0), scale, HIGH)
                scale = scales_of(own, some, some < HIDDEN, a + K, WIDTH, HIGH, WIDE)
            if h.dtype.element_ty == tl.float16:
                made *= 1 / _LESS
            place = parts + pair[:, None] * HIDDEN + n[None, :]
            tl.store(place, made, mask=(m < end)[:, None] & real[None, :])


@triton.jit
def _combine_kernel(
    parts, weights, residual, norm, out, eps, PAIRS: tl.constexpr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK)
    mask = i < HIDDEN
    follow(OVERLAP)
    total = tl.zeros([BLOCK], tl.float32)
    for j in tl.static_range(PAIRS):
        part = tl.load(parts + (row * PAIRS + j) * HIDDEN + i, mask=mask, other=0.0)
        total += part * tl.load(weights + row * PAIRS + j)
    before = tl.load(residual + row * HIDDEN + i, mask=mask, other=0.0)
    after = (before.to(tl.float32) + total).to(before.dtype)
    tl.store(residual + row * HIDDEN + i, after, mask=mask)
    y = after.to(tl.float32)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / HIDDEN + eps) * tl.load(norm + i, mask=mask, other=0.0)
    tl.store(out + row * HIDDEN + i, y, mask=mask)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Columns and depth of the two products' tiles, and the stages of their pipelines. They change last bits only."""

    up: int = 32
    up_depth: int = 128
    down: int = 64
    down_depth: int = 128
    stages: int = 4
    warps: int = 4


def tiles_for(rows: int, scaled: bool) -> Tiles:
    """The fastest of those tried on an H200."""
    if not scaled or rows > 32:
        return Tiles()
    return Tiles(stages=5) if rows <= 4 else Tiles(up=64, down=64, stages=3, warps=2)


def mixture(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Matrix, down: Matrix, shared_gate_up: Matrix,
    shared_down: Matrix, residual: Tensor, norm: Tensor, eps: float, tiles: Tiles | None = None,
) -> Tensor:  # fmt: skip
    """Add each row's experts to `residual` in place and return the RMS norm of the sum, in the type of `residual`.

    x               [rows, hidden]
    chosen, weights as `route` returns them; rows · (top + 1) ≤ MOST_PAIRS
    gate_up, down   [experts, 2 · width, hidden] and [experts, hidden, width]; shared_…: without the first dimension,
                    of the same width, stored in the same way
    residual        [rows, hidden]; rounded to its type before the norm
    norm            float32 [hidden], with the 1 + of a zero-centred norm already in it
    tiles           None: the fastest tried, and for one row no tiles at all
    """
    rows, hidden = x.shape
    experts, width, pairs = gate_up.shape[0], gate_up.shape[1] // 2, chosen.shape[1]
    assert shared_down.shape == (hidden, width)
    if rows == 1 and tiles is None:
        parts = mixture_of_one(x, chosen, weights, gate_up, down, shared_gate_up, shared_down)
        return add_rms_norm(parts, residual, norm, eps)
    scaled, narrow = isinstance(gate_up, Scaled), None
    tiles = tiles or tiles_for(rows, scaled)
    if scaled and x.dtype == torch.bfloat16:
        narrow = x, torch.empty_like(x, dtype=torch.float16)
    units = plan_units(chosen, experts, narrow)
    x = x if narrow is None else narrow[1]
    h = torch.empty(rows * pairs, width, dtype=x.dtype, device=x.device)
    parts = torch.empty(rows * pairs, hidden, dtype=torch.float32, device=x.device)
    matrices, stored = operands(gate_up, shared_gate_up)
    _up_kernel[(triton.cdiv(width, tiles.up), units.most)](
        x, units.order, units.expert, units.start, *matrices, h, TOP=pairs - 1, EXPERTS=experts, HIDDEN=hidden,
        WIDTH=width, M=16, N=tiles.up, K=columns_of(gate_up, tiles.up_depth), STAGES=tiles.stages, **stored,
        num_warps=tiles.warps, **overlap(x, rows),
    )  # fmt: skip
    matrices, stored = operands(down, shared_down)
    _down_kernel[(triton.cdiv(hidden, tiles.down), units.most)](
        h, units.order, units.expert, units.start, *matrices, parts, EXPERTS=experts, HIDDEN=hidden, WIDTH=width, M=16,
        N=tiles.down, K=columns_of(down, tiles.down_depth), STAGES=tiles.stages, **stored, num_warps=tiles.warps,
        **overlap(x, rows),
    )  # fmt: skip
    out = torch.empty_like(residual)
    block = triton.next_power_of_2(hidden)
    _combine_kernel[(rows,)](
        parts, weights, residual, norm, out, eps, PAIRS=pairs, HIDDEN=hidden, BLOCK=block,
        num_warps=min(8, max(1, block // 256)), **overlap(x, rows),
    )  # fmt: skip
    return out
