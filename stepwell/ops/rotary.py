"""Rotary positions over the leading dimensions of each head, pairs (i, i + rotary / 2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Angles:
    """Factors of a batch's positions, each float32 [n, 1, head_dim]: 1 and 0 where a dimension is not rotated.

    The first `dim` dimensions are; the sign with which each is mixed with its partner is in `sin`.
    """

    cos: Tensor
    sin: Tensor
    dim: int


class Rotary:
    """Makes angles for positions. `dim` of `head_dim` dimensions rotate, with base `theta`."""

    __slots__ = ("_dim", "_frequencies", "_signs")

    def __init__(self, head_dim: int, dim: int, theta: float, device: torch.device) -> None:
        half = dim // 2
        powers = torch.arange(0, dim, 2, dtype=torch.float32) / dim
        frequencies = 1.0 / theta**powers
        signs = torch.zeros(head_dim)
        signs[:half], signs[half:dim] = -1.0, 1.0
        # a frequency of 0 leaves a dimension as it is: cos 0 = 1, sin 0 = 0
        still = torch.zeros(head_dim - dim)
        self._frequencies = torch.cat((frequencies, frequencies, still)).to(device)
        self._signs = signs.to(device)
        self._dim = dim

    def __call__(self, positions: Tensor) -> Angles:
        """Angles for int64 positions [n]."""
        angle = positions.float().unsqueeze(1) * self._frequencies
        return Angles(angle.cos().unsqueeze(1), angle.sin_().mul_(self._signs).unsqueeze(1), self._dim)


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Rotate float32 [n, heads, head_dim] by the angles of its n positions."""
    half, dim = angles.dim // 2, angles.dim
    partners = torch.cat((x[..., half:dim], x[..., :half], x[..., dim:]), -1)
    return (x * angles.cos).addcmul_(partners, angles.sin)
