"""Matrices as the kernels multiply with them: plain tensors, or FP8 as a checkpoint stores it."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from stepwell.ops.scaled import Matrix, Scaled, unpacked
from stepwell.ops.triton import linear

_SHALLOWEST = 16
"""Columns of a block: fewer than a tensor core takes at once are not worth a kernel."""


def holds(rows: int, columns: int) -> bool:
    """Whether kernels multiply FP8 in such blocks: tiles are powers of two, and lie in one block of columns each."""
    del rows
    return columns >= _SHALLOWEST and columns & (columns - 1) == 0


@dataclass(frozen=True, slots=True, eq=False)
class KernelLinear:
    """A matrix [out and more, in]; few rows are multiplied by a kernel of ours.

    width   rows that count; those behind them make a plain tensor as long as libraries like it
    tail    the last rows of an FP8 matrix, in the model's type: those that its checkpoint left alone
    """

    weight: Matrix
    width: int
    tail: Tensor | None = None

    @classmethod
    def of(cls, matrix: Matrix, tail: Tensor | None = None) -> KernelLinear:
        """Rows of zeros are added up to a multiple of 8: with 257 columns a product of 16k rows takes ten times as long as with 264."""
        width = matrix.shape[0]
        if isinstance(matrix, Scaled):
            return cls(matrix, width + (0 if tail is None else tail.shape[0]), tail)
        assert tail is None
        return cls(F.pad(matrix, (0, 0, 0, -width % 8)).contiguous(), width)

    @property
    def matrix(self) -> Matrix:
        """All rows that count. Where there is a tail they have no such form."""
        assert self.tail is None
        if isinstance(self.weight, Scaled) or self.width == self.weight.shape[0]:
            return self.weight
        return self.weight[: self.width]

    def __call__(self, x: Tensor) -> Tensor:
        return self._counting(linear.linear(x, self.weight, tail=self.tail))

    def parts(self, x: Tensor) -> Tensor:
        """The product in the form that is fastest, for a reader who sums parts: [rows, out], or float32 [parts, rows, out]."""
        (width, depth), rows = self.weight.shape, x.shape[0]
        scaled = isinstance(self.weight, Scaled)
        parts = linear.parts_for(width, depth, rows, scaled) if rows <= linear.MOST_ROWS else 1
        return self._counting(linear.linear(x, self.weight, tail=self.tail, parts=parts))

    def _counting(self, y: Tensor) -> Tensor:
        return y if self.width == y.shape[-1] else y[..., : self.width]


@dataclass(frozen=True, slots=True, eq=False)
class KernelStack:
    """The matrices [experts, out, in] of all experts, for the kernels of mixtures."""

    weight: Matrix

    @property
    def count(self) -> int:
        return int(self.weight.shape[0])

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        return F.grouped_mm(x, unpacked(self.weight, x.dtype).mT, offs=ends)
