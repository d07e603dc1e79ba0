"""Inputs for kernels: unit variance, drawn afresh from a seed, with NaN wherever nothing may be read."""

from __future__ import annotations

import torch
from torch import Tensor

NAN = float("nan")


class Made:
    """Draws from one seed."""

    def __init__(self, seed: int) -> None:
        self._rng = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._rng)

    def uniform(self, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self._rng)

    def shuffled(self, count: int) -> Tensor:
        return torch.randperm(count, generator=self._rng)

    def strided(self, rows: int, width: int, extra: int = 3) -> Tensor:
        """[rows, width] with NaN between the rows, as a column of a wider projection."""
        wide = torch.full((rows, width + extra), NAN)
        wide[:, :width] = self.normal(rows, width)
        return wide[:, :width]


def close(found: Tensor, expected: Tensor, tolerance: float = 2e-5) -> bool:
    """Equal to rounding, NaN where the other is NaN."""
    return torch.allclose(found, expected, atol=tolerance, rtol=tolerance, equal_nan=True)
