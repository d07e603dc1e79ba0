"""Root-mean-square norms over the last dimension, computed in float32."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """`1 / sqrt(mean(x²) + eps)` over the last dimension, kept; `x` is float32."""
    return _inverse(x, eps, 1.0 / x.shape[-1])


def inverse_length(x: Tensor, eps: float) -> Tensor:
    """`1 / sqrt(sum(x²) + eps)` over the last dimension, kept; `x` is float32."""
    return _inverse(x, eps, 1.0)


def _inverse(x: Tensor, eps: float, share: float) -> Tensor:
    """Of one row the calls cost more than the numbers: a plain number as an operand would be a tensor made anew each time."""
    size: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return torch.addcmul(_constant(eps, x.device), size, size, value=share).rsqrt_()


@cache
def _constant(value: float, device: torch.device) -> Tensor:
    return torch.tensor(value, dtype=torch.float32, device=device)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`x / rms(x) * weight`, in the type of `x`. `weight` is float32 and already holds the 1 + of a zero-centred norm."""
    y = x.float()
    return torch.mul(y, inverse_rms(y, eps)).mul_(weight).to(x.dtype)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, eps: float, through: Callable[[Tensor], Tensor] = F.silu
) -> Tensor:
    """`x / rms(x) * weight * through(gate)`, in the type of `gate`. `weight` is float32 and plain, not zero-centred."""
    y = x.float()
    y = torch.mul(y, inverse_rms(y, eps)).mul_(weight)
    return y.mul_(through(gate.float())).to(gate.dtype)
