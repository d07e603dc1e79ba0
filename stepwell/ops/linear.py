"""Matrices as layers hold them: something that multiplies rows, whatever form its numbers have.

A backend makes them from loaded weights (`Backend.linear`, `Backend.stack`) and may choose any layout or precision; layers only
call them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


class Linear(Protocol):
    """One matrix [out, in]."""

    def __call__(self, x: Tensor) -> Tensor:
        """`x` [rows, in] times the matrix: [rows, out], in the type of `x`."""


class LinearStack(Protocol):
    """Matrices of one shape [out, in], one for each expert."""

    @property
    def count(self) -> int: ...

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        """`x` [rows, in], sorted by expert: rows up to `ends[0]` times the first matrix, up to `ends[1]` the second, and so on.

        ends   int32 [count], on the device
        Returns [rows, out]; nothing here waits for the device.
        """


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A plain tensor [out, in]."""

    weight: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


@dataclass(frozen=True, slots=True, eq=False)
class DenseStack:
    """A plain tensor [count, out, in]."""

    weight: Tensor

    @property
    def count(self) -> int:
        return self.weight.shape[0]

    def __call__(self, x: Tensor, ends: Tensor) -> Tensor:
        return F.grouped_mm(x, self.weight.mT, offs=ends)


def placed(weight: Tensor, device: torch.device) -> Tensor:
    """[…, out, in] on `device`. On a CPU the memory order is […, in, out], which makes products with a few rows up to twice as fast."""
    weight = weight.to(device)
    return weight.mT.contiguous().mT if device.type == "cpu" else weight.contiguous()
