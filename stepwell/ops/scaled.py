"""Matrices in FP8 that are kept as they are stored: e4m3 values, and a scale for each block of them.

weight[i, j] = values[i, j] · scales[i // rows, j // columns]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from stepwell.base.units import ceil_div

LARGEST = 448.0
"""The largest e4m3 value. There is no infinity: what is larger becomes NaN, unless it is clamped before the cast."""


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A matrix [out, in], or a stack of them.

    values          float8_e4m3fn […, out, in], contiguous
    scales          float32 […, ⌈out / rows⌉, ⌈in / columns⌉], contiguous
    rows, columns   of a block that shares a scale
    """

    values: Tensor
    scales: Tensor
    rows: int
    columns: int

    @property
    def shape(self) -> torch.Size:
        return self.values.shape

    @property
    def nbytes(self) -> int:
        return self.values.nbytes + self.scales.nbytes

    def unpacked(self, dtype: torch.dtype) -> Tensor:
        """The weights, computed in float32 and rounded once to `dtype`."""
        *_, out, depth = self.values.shape
        wide = self.scales.repeat_interleave(self.rows, -2).narrow(-2, 0, out)
        return self.values.float().mul_(wide.repeat_interleave(self.columns, -1).narrow(-1, 0, depth)).to(dtype)

    def by_row(self) -> Scaled:
        """The same with scales of its own for each row."""
        scales = self.scales.repeat_interleave(self.rows, -2).narrow(-2, 0, self.values.shape[-2]).contiguous()
        return Scaled(self.values, scales, 1, self.columns)

    def take(self, order: Tensor) -> Scaled:
        """Rows of one matrix in another order, int64 [out]. Blocks stay whole where the order keeps them together."""
        firsts = order[:: self.rows]
        run = firsts.unsqueeze(1) + torch.arange(self.rows, device=order.device)
        if len(order) % self.rows or (firsts % self.rows).any() or not torch.equal(order.view(-1, self.rows), run):
            whole = self.by_row()
            return Scaled(_rows(whole.values, order), whole.scales[order], 1, self.columns)
        return Scaled(_rows(self.values, order), self.scales[firsts // self.rows], self.rows, self.columns)


Matrix: TypeAlias = Tensor | Scaled


def unpacked(matrix: Matrix, dtype: torch.dtype) -> Tensor:
    """The matrix as a tensor of `dtype`."""
    return matrix.unpacked(dtype) if isinstance(matrix, Scaled) else matrix.to(dtype)


def taken(matrix: Matrix, order: Tensor) -> Matrix:
    """Rows of a matrix in another order."""
    return matrix.take(order) if isinstance(matrix, Scaled) else matrix[order]


def joined(parts: Sequence[Matrix], dtype: torch.dtype) -> Matrix:
    """Matrices stacked by rows: as they are stored if all are in FP8 with scales for as many columns, else unpacked."""
    if len(parts) == 1:
        return parts[0]
    scaled = [part for part in parts if isinstance(part, Scaled)]
    if len(scaled) < len(parts) or len({part.columns for part in scaled}) > 1:
        return torch.cat([unpacked(part, dtype) for part in parts])
    rows = scaled[0].rows
    if any(part.rows != rows or part.shape[0] % rows for part in scaled):
        scaled, rows = [part.by_row() for part in scaled], 1
    values = torch.cat([part.values.view(torch.uint8) for part in scaled]).view(torch.float8_e4m3fn)
    return Scaled(values, torch.cat([part.scales for part in scaled]), rows, scaled[0].columns)


def alike(parts: Sequence[Matrix]) -> bool:
    """Whether all are in FP8, with scales for as many rows."""
    scaled = [part for part in parts if isinstance(part, Scaled)]
    return len(scaled) == len(parts) and len({part.rows for part in scaled}) == 1


def stack_like(matrix: Matrix, count: int) -> Matrix:
    """Room for so many matrices like this one; see `put`."""
    if isinstance(matrix, Scaled):
        values, scales = (y.new_empty(count, *y.shape) for y in (matrix.values, matrix.scales))
        return Scaled(values, scales, matrix.rows, matrix.columns)
    return matrix.new_empty(count, *matrix.shape)


def put(stack: Matrix, at: int, matrix: Matrix, dtype: torch.dtype) -> Matrix:
    """Write a matrix into its place; returns the stack, which becomes a plain one of `dtype` where the two are not stored alike."""
    if isinstance(stack, Scaled):
        if isinstance(matrix, Scaled) and (matrix.rows, matrix.columns) == (stack.rows, stack.columns):
            stack.values.view(torch.uint8)[at] = matrix.values.view(torch.uint8)
            stack.scales[at] = matrix.scales
            return stack
        stack = stack.unpacked(dtype)
    stack[at] = unpacked(matrix, dtype)
    return stack


def packed(weight: Tensor, rows: int, columns: int) -> Scaled:
    """A matrix, or a stack of them, in FP8: the largest value of each block becomes the largest of e4m3."""
    if weight.ndim == 3:
        stack = stack_like(packed(weight[0], rows, columns), len(weight))
        for at, one in enumerate(weight):  # one by one: each takes several times its size on the way
            stack = put(stack, at, packed(one, rows, columns), weight.dtype)
        assert isinstance(stack, Scaled)
        return stack
    out, depth = weight.shape
    high, wide = ceil_div(out, rows), ceil_div(depth, columns)
    padded = torch.nn.functional.pad(weight.float(), (0, wide * columns - depth, 0, high * rows - out))
    blocks = padded.view(high, rows, wide, columns)
    scales = blocks.abs().amax((1, 3)).div_(LARGEST).clamp_min_(torch.finfo(torch.float32).tiny)
    values = (blocks / scales[:, None, :, None]).clamp_(-LARGEST, LARGEST).view_as(padded)[:out, :depth]
    return Scaled(values.to(torch.float8_e4m3fn).contiguous(), scales, rows, columns)


def _rows(values: Tensor, order: Tensor) -> Tensor:
    return values.view(torch.uint8)[order].view(values.dtype)
