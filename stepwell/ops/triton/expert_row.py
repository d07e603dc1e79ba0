"""A mixture of experts for one token: products of a single row, without tensor cores."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.scaled import Matrix, Scaled
from stepwell.ops.triton.overlap import follow, overlap
from stepwell.ops.triton.stored import block_row, block_scales, block_sums, block_tile, blocks_of, operands, scales_in

_ONE_ROW = 16384  # weights of one matrix that a program holds in registers at once


@triton.jit
def _up_one_kernel(
    x, chosen, gate_up, shared, h, EXPERTS: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    pair, k = tl.program_id(1), tl.arange(0, K)
    n = tl.program_id(0) * N + tl.arange(0, N)
    follow(OVERLAP)
    expert = tl.load(chosen + pair).to(tl.int64)
    matrix = shared if expert == EXPERTS else gate_up + expert * (2 * WIDTH * HIDDEN)
    at, seen = matrix + n[:, None] * HIDDEN + k[None, :], (n < WIDTH)[:, None] & (k < HIDDEN)[None, :]
    upper = tl.load(at, mask=seen, other=0.0)
    lower = tl.load(at + WIDTH * HIDDEN, mask=seen, other=0.0)
    row = tl.load(x + k, mask=k < HIDDEN, other=0.0).to(tl.float32)[None, :]
    tl.debug_barrier()  # the compiler would load a little at a time, to save registers
    gate, up = tl.sum(upper.to(tl.float32) * row, 1), tl.sum(lower.to(tl.float32) * row, 1)
    tl.store(h + pair * WIDTH + n, gate * tl.sigmoid(gate) * up, mask=n < WIDTH)


@triton.jit
def _down_one_kernel(
    h, chosen, weights, down, shared, parts, EXPERTS: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    pair, n, k = tl.program_id(1), tl.program_id(0) * N + tl.arange(0, N), tl.arange(0, K)
    seen = (n < HIDDEN)[:, None] & (k < WIDTH)[None, :]
    follow(OVERLAP)
    expert = tl.load(chosen + pair).to(tl.int64)
    matrix = shared if expert == EXPERTS else down + expert * (HIDDEN * WIDTH)
    values = tl.load(matrix + n[:, None] * WIDTH + k[None, :], mask=seen, other=0.0).to(tl.float32)
    row = tl.load(h + pair * WIDTH + k, mask=k < WIDTH, other=0.0).to(tl.float32)
    made = tl.sum(values * row[None, :], 1) * tl.load(weights + pair)
    tl.store(parts + pair * HIDDEN + n, made, mask=n < HIDDEN)


@triton.jit
def _scaled_up_one_kernel(
    x, chosen, gate_up, scales, shared, shared_scales, h, EXPERTS: tl.constexpr, HIDDEN: tl.constexpr, WIDTH: tl.constexpr,
    N: tl.constexpr, B: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    pair, n = tl.program_id(1), tl.program_id(0) * N + tl.arange(0, N)
    real = n < WIDTH
    follow(OVERLAP)
    expert = tl.load(chosen + pair).to(tl.int64)
    matrix = shared if expert == EXPERTS else gate_up + expert * (2 * WIDTH * HIDDEN)
    own = shared_scales if expert == EXPERTS else scales + expert * scales_in(2 * WIDTH, HIDDEN, HIGH, WIDE)
    upper = block_tile(matrix, n, real, 0, HIDDEN, B, WIDE)
    lower = block_tile(matrix + WIDTH * HIDDEN, n, real, 0, HIDDEN, B, WIDE)
    first = block_scales(own, n, real, 0, HIDDEN, B, HIGH, WIDE)
    second = block_scales(own, n + WIDTH, real, 0, HIDDEN, B, HIGH, WIDE)
    row = block_row(x, 0, HIDDEN, B, WIDE)
    tl.debug_barrier()  # the compiler would load a little at a time, to save registers
    gate, up = block_sums(upper, first, row), block_sums(lower, second, row)
    tl.store(h + pair * WIDTH + n, gate * tl.sigmoid(gate) * up, mask=real)


@triton.jit
def _scaled_down_one_kernel(
    h, chosen, weights, down, scales, shared, shared_scales, parts, EXPERTS: tl.constexpr, HIDDEN: tl.constexpr,
    WIDTH: tl.constexpr, N: tl.constexpr, B: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    pair, n = tl.program_id(1), tl.program_id(0) * N + tl.arange(0, N)
    real = n < HIDDEN
    follow(OVERLAP)
    expert = tl.load(chosen + pair).to(tl.int64)
    matrix = shared if expert == EXPERTS else down + expert * (HIDDEN * WIDTH)
    own = shared_scales if expert == EXPERTS else scales + expert * scales_in(HIDDEN, WIDTH, HIGH, WIDE)
    values = block_tile(matrix, n, real, 0, WIDTH, B, WIDE)
    scale = block_scales(own, n, real, 0, WIDTH, B, HIGH, WIDE) * tl.load(weights + pair)
    made = block_sums(values, scale, block_row(h + pair * WIDTH, 0, WIDTH, B, WIDE))
    tl.store(parts + pair * HIDDEN + n, made, mask=real)


def mixture_of_one(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    gate_up: Matrix,
    down: Matrix,
    shared_gate_up: Matrix,
    shared_down: Matrix,
) -> Tensor:
    """What each of one row's experts makes of it, weighted, float32 [top + 1, 1, hidden]: whoever norms the sum adds them up.
    Arguments are those of `experts.mixture`."""
    hidden, width, pairs = x.shape[1], shared_down.shape[1], chosen.shape[1]
    h, parts = x.new_empty(pairs, width), torch.empty(pairs, 1, hidden, dtype=torch.float32, device=x.device)
    sizes = {"EXPERTS": gate_up.shape[0], "HIDDEN": hidden, "WIDTH": width}
    k, n = triton.next_power_of_2(hidden), max(1, _ONE_ROW // 2 // triton.next_power_of_2(width))
    if isinstance(gate_up, Scaled) and isinstance(down, Scaled):
        matrices, stored = operands(gate_up, shared_gate_up)
        m = max(1, _ONE_ROW // 2 // k)
        _scaled_up_one_kernel[(triton.cdiv(width, m), pairs)](
            x, chosen, *matrices, h, **sizes, N=m, B=blocks_of(gate_up), **stored, num_warps=4, **overlap(x, 1),
        )  # fmt: skip
        matrices, stored = operands(down, shared_down)
        _scaled_down_one_kernel[(triton.cdiv(hidden, n), pairs)](
            h, chosen, weights, *matrices, parts, **sizes, N=n, B=blocks_of(down), **stored, num_warps=4, **overlap(x, 1),
        )  # fmt: skip
        return parts
    m = max(1, _ONE_ROW // k)
    _up_one_kernel[(triton.cdiv(width, m), pairs)](
        x, chosen, gate_up, shared_gate_up, h, **sizes, N=m, K=k, num_warps=4, **overlap(x, 1)
    )
    _down_one_kernel[(triton.cdiv(hidden, n), pairs)](
        h, chosen, weights, down, shared_down, parts, **sizes, N=n, K=triton.next_power_of_2(width), num_warps=4,
        **overlap(x, 1),
    )  # fmt: skip
    return parts
