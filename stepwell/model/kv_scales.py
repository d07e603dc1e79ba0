"""Static scales of keys and values in FP8, one for each head of each attention layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.base.errors import ConfigError
from stepwell.ops.scaled import LARGEST

_EXPONENTS = -14, 15
"""Least and largest binary logarithm of a scale: what float16 holds in full."""
_HEADROOM = 2.0
"""How many times larger than anything calibrated a value may be before it is clamped. It costs one of e4m3's 17 powers of two."""


@dataclass(frozen=True, slots=True, eq=False)
class KvScales:
    """`keys` and `values`, float32 [attention layers, kv_heads], on the device: pages hold x / scale.

    All are powers of two that float16 holds. So dividing and multiplying by them rounds nothing, in any type, wherever it is done: queries
    are multiplied by the scales of keys instead of every key, and what attention gives by those of values instead of every value. Attention
    kernels that know nothing of scales read such pages as they are.
    """

    keys: Tensor
    values: Tensor

    @classmethod
    def covering(cls, keys: Sequence[Tensor], values: Sequence[Tensor]) -> KvScales:
        """The least scales with which what is in these pages stays within half of e4m3's largest value. Pages are [pages, block, kv_heads,
        head_dim] a layer. Raises ConfigError where a value is not finite."""
        return cls(*(torch.stack([_power_above(_largest(layer)) for layer in layers]) for layers in (keys, values)))

    @property
    def exponents(self) -> tuple[int, int]:
        """The least and the largest binary logarithm of all scales."""
        powers = torch.cat((self.keys.flatten(), self.values.flatten())).log2().round().int().tolist()
        return min(powers), max(powers)

    def sound(self, layers: int, heads: int) -> bool:
        """Whether these are scales for so many layers and heads: powers of two within what is served."""
        least, most = (2.0**exponent for exponent in _EXPONENTS)
        return all(
            part.shape == (layers, heads)
            and part.dtype == torch.float32
            and bool(((part >= least) & (part <= most)).all())
            and bool((part.frexp().mantissa == 0.5).all())
            for part in (self.keys, self.values)
        )

    def to(self, device: torch.device) -> KvScales:
        return KvScales(self.keys.to(device), self.values.to(device))


def _largest(pages: Tensor) -> Tensor:
    """The largest magnitude of each head, float32 [kv_heads]."""
    found = pages.float().abs().amax((0, 1, 3))
    if not found.isfinite().all():
        raise ConfigError(
            "--calculate-kv-scales: the calibration computed keys or values that are not finite; check the weights, or leave the flag out"
        )
    return found


def _power_above(largest: Tensor) -> Tensor:
    """The least power of two within `_EXPONENTS` by which `largest` can be divided; 1 of a head that is always zero."""
    mantissa, exponent = torch.frexp(largest * (_HEADROOM / LARGEST))
    power = torch.ldexp(torch.ones_like(largest), (exponent - (mantissa == 0.5).int()).clamp(*_EXPONENTS))
    return torch.where(largest > 0, power, 1.0)
