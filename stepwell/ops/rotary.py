"""Rotary positions over the leading dimensions of each head, pairs (i, i + rotary / 2)."""

from __future__ import annotations

from collections.abc import Sequence
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


def frequencies(dim: int, theta: float, factor: float = 1.0, slowed: Sequence[float] = ()) -> Tensor:
    """Radians a token of each pair of `dim` rotated dimensions, float32 [dim / 2]: by base `theta`, and slower by `factor` as far as
    `slowed` says of each pair, from 0 (not) to 1; none: no pair is."""
    plain: Tensor = 1.0 / theta ** (torch.arange(0, dim, 2, dtype=torch.float32) / dim)
    if factor == 1.0 or not slowed:
        return plain
    ramp = torch.tensor(slowed, dtype=torch.float32)
    return plain * (1 - ramp) + plain / factor * ramp


class Rotary:
    """Makes angles for positions. The leading pairs of `head_dim` dimensions rotate, each by its `frequencies` float32 [pairs], and are
    multiplied by `scale`."""

    __slots__ = ("_dim", "_frequencies", "_scale", "_signs")

    def __init__(self, head_dim: int, frequencies: Tensor, scale: float, device: torch.device) -> None:
        half = frequencies.shape[0]
        dim = 2 * half
        signs = torch.zeros(head_dim)
        signs[:half], signs[half:dim] = -scale, scale
        # a frequency of 0 leaves a dimension as it is: cos 0 = 1, sin 0 = 0
        still = torch.zeros(head_dim - dim)
        self._frequencies = torch.cat((frequencies, frequencies, still)).to(device)
        self._signs = signs.to(device)
        self._scale = scale
        self._dim = dim

    def __call__(self, positions: Tensor) -> Angles:
        """Angles for int64 positions [n]."""
        angle = positions.float().view(-1, 1, 1) * self._frequencies
        cos = angle.cos()
        if self._scale != 1.0:
            cos[..., : self._dim] *= self._scale
        return Angles(cos, angle.sin_().mul_(self._signs), self._dim)


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Rotate float32 [n, heads, head_dim] by the angles of its n positions."""
    half, dim = angles.dim // 2, angles.dim
    partners = torch.cat((x[..., half:dim], x[..., :half], x[..., dim:]), -1)
    return (x * angles.cos).addcmul_(partners, angles.sin)
