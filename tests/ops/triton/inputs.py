"""Inputs for kernels: unit variance, drawn afresh from a seed, with NaN wherever nothing may be read."""

from __future__ import annotations

from typing import Any

import pytest
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


@pytest.fixture
def e4m3_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round to e4m3 as the hardware does: Triton's interpreter loses the carry of a mantissa, and cuts subnormal values off."""
    import triton.language as tl
    from triton.runtime import interpreter

    cast = interpreter.InterpreterBuilder.create_fp_to_fp

    def exact(self: Any, source: Any, kind: Any, rounding: Any) -> Any:
        if kind.scalar != tl.float8e4nv or source.dtype.scalar != tl.float32:
            return cast(self, source, kind, rounding)
        rounded = torch.from_numpy(source.data.copy()).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        return interpreter.TensorHandle(rounded, kind.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_fp_to_fp", exact)
