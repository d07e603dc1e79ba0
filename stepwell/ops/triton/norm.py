"""Norms and gates that sit between projections, one pass each, float32 inside."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.triton.overlap import follow, overlap


@triton.jit
def _add_norm_kernel(
    x, residual, weight, out, eps, PLANE, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64) * WIDTH
    i = tl.arange(0, BLOCK)
    mask = i < WIDTH
    follow(OVERLAP)
    total = tl.load(residual + row + i, mask=mask, other=0.0)
    if PARTS > 0:
        added = tl.zeros([BLOCK], tl.float32)
        for part in tl.static_range(PARTS):
            added += tl.load(x + part * PLANE + row + i, mask=mask, other=0.0).to(tl.float32)
        total = (total.to(tl.float32) + added).to(total.dtype)
        tl.store(residual + row + i, total, mask=mask)
    y = total.to(tl.float32)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / WIDTH + eps) * tl.load(weight + i, mask=mask, other=0.0)
    tl.store(out + row + i, y, mask=mask)


def add_rms_norm(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Add `x` to `residual` in place and return the RMS norm of the sum, in the type of `residual`.

    x          [rows, hidden]; or [parts, rows, hidden], summed first; or None: nothing is added
    residual   [rows, hidden]; the sum is rounded to its type before it is normed
    weight     float32 [hidden], with the 1 + of a zero-centred norm already in it
    """
    rows, width = residual.shape
    out = torch.empty_like(residual)
    block = triton.next_power_of_2(width)
    parts = 0 if x is None else x.numel() // residual.numel()
    _add_norm_kernel[(rows,)](
        residual if x is None else x, residual, weight, out, eps, residual.numel(), WIDTH=width, BLOCK=block, PARTS=parts,
        num_warps=min(8, max(1, block // 256)), **overlap(residual, rows),
    )  # fmt: skip
    return out


@triton.jit
def _gated_norm_kernel(
    x, gate, gate_row, weight, out, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr
):
    head, row, heads = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(0)
    i = tl.arange(0, BLOCK)
    mask = i < WIDTH
    follow(OVERLAP)
    y = tl.load(x + (row * heads + head) * WIDTH + i, mask=mask, other=0.0).to(tl.float32)
    z = tl.load(gate + row * gate_row + head * WIDTH + i, mask=mask, other=0.0).to(tl.float32)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / WIDTH + eps) * tl.load(weight + i, mask=mask, other=0.0)
    tl.store(out + (row * heads + head) * WIDTH + i, y * z * tl.sigmoid(z), mask=mask)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
    """`x / rms(x) · weight · silu(gate)` for each head, in the type of `gate`: [rows, heads · dim].

    x        [rows, heads, dim], contiguous
    gate     [rows, heads · dim]; rows may be strided
    weight   float32 [dim], plain
    out      contiguous; None: a new one
    """
    rows, heads, dim = x.shape
    if out is None:
        out = torch.empty(rows, heads * dim, dtype=gate.dtype, device=gate.device)
    _gated_norm_kernel[(heads, rows)](
        x,
        gate,
        gate.stride(0),
        weight,
        out,
        eps,
        WIDTH=dim,
        BLOCK=triton.next_power_of_2(dim),
        num_warps=1,
        **overlap(x, rows),
    )
    return out


@triton.jit
def _gate_kernel(
    x, gate, gate_row, scale, out, WIDTH: tl.constexpr, BLOCK: tl.constexpr, SPAN: tl.constexpr, OVERLAP: tl.constexpr
):
    row = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < WIDTH
    follow(OVERLAP)
    z = tl.load(gate + row * gate_row + i, mask=mask, other=0.0).to(tl.float32)
    y = tl.load(x + row * WIDTH + i, mask=mask, other=0.0).to(tl.float32) * tl.sigmoid(z)
    if SPAN > 0:
        y = y * tl.load(scale + i // SPAN, mask=mask, other=1.0)
    tl.store(out + row * WIDTH + i, y, mask=mask)


def sigmoid_gate(x: Tensor, gate: Tensor, out: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
    """`x · sigmoid(gate)`, [rows, width], into `out` if it is given. Both are contiguous; rows of `gate` may be strided.

    scale   float32 [n]: each of the n equal parts of a row is multiplied by its own, too; None: by nothing
    """
    rows, width = x.shape
    out = torch.empty_like(x) if out is None else out
    span = 0 if scale is None else width // scale.numel()
    _gate_kernel[(triton.cdiv(width, 1024), rows)](
        x,
        gate,
        gate.stride(0),
        x if scale is None else scale,
        out,
        WIDTH=width,
        BLOCK=1024,
        SPAN=span,
        num_warps=4,
        **overlap(x, rows),
    )
    return out
