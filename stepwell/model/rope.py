"""Rotary positions that are stretched to longer contexts, as config.json describes them: by YaRN, or as Llama 3.1 does.

Pairs of dimensions that turn often within the context that the model was trained on stay as they are, those that turn seldom go slower by
`factor`, and between the two there is a ramp: over the numbers of the pairs in YaRN (Peng et al., "YaRN: Efficient Context Window
Extension of Large Language Models", 2023, sections 3.2 to 3.4), over their turns in Llama 3.1 (`rope_type` "llama3" of Transformers).
YaRN also scales queries and keys, which sharpens attention over more tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stepwell.base.errors import ConfigError
from stepwell.base.shapes import Config

LARGEST_NUMBER = 1e15
"""Above all settings that are no counts, such as the base of rotary positions."""
SERVED = "'default', 'mrope', 'yarn' and 'llama3'"


@dataclass(frozen=True, slots=True)
class Stretch:
    """How far each pair of dimensions is slowed: 0 leaves it as it is, 1 slows it by `factor`; none: all stay. Rotated queries and keys are
    multiplied by `scale`."""

    factor: float
    slowed: tuple[float, ...]
    scale: float


NO_STRETCH = Stretch(1.0, (), 1.0)


@dataclass(frozen=True, slots=True)
class Yarn:
    """A stretch to `factor` times the `original` tokens of context.

    fast, slow   turns within the original context from which on a pair stays as it is, and below which it is slowed in full
    scale        of rotated queries and keys
    whole        the ramp begins and ends at whole pairs
    """

    factor: float
    original: int
    fast: float
    slow: float
    scale: float
    whole: bool

    @classmethod
    def from_config(cls, scaling: Config, positions: int) -> Yarn:
        """From `rope_parameters` or `rope_scaling`; `positions` is the model's own context. Raises ConfigError."""
        original = int(_number(scaling, "original_max_position_embeddings", positions))
        factor = _number(scaling, "factor", None)
        given = scaling.get("attention_factor")
        return cls(
            factor=factor,
            original=original,
            fast=_number(scaling, "beta_fast", 32.0),
            slow=_number(scaling, "beta_slow", 1.0),
            scale=_scale(scaling, factor) if given is None else _number(scaling, "attention_factor", None),
            whole=bool(scaling.get("truncate", True)),
        )

    @property
    def positions(self) -> int:
        """Tokens of context that it is made for."""
        return int(self.factor * self.original)

    def stretch(self, dim: int, theta: float) -> Stretch:
        """Of `dim` rotated dimensions with base `theta`."""
        low, high = self._ramp(dim, theta)
        slowed = tuple(_within((i - low) / max(high - low, 1e-3)) for i in range(dim // 2))
        return Stretch(self.factor, slowed, self.scale)

    def _ramp(self, dim: int, theta: float) -> tuple[float, float]:
        """The pairs at which slowing begins and is complete."""
        low, high = (
            dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (self.fast, self.slow)
        )
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, dim - 1)


@dataclass(frozen=True, slots=True)
class Llama3:
    """A stretch by `factor` of pairs that turn at most `slow` times within the `original` tokens of context, and less of those that turn
    up to `fast` times. The model's own context is the stretched one."""

    factor: float
    original: int
    slow: float
    fast: float

    @classmethod
    def from_config(cls, scaling: Config) -> Llama3:
        """From `rope_parameters` or `rope_scaling`. Raises ConfigError."""
        names = ("factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
        factor, original, slow, fast = (_number(scaling, name, None) for name in names)
        if fast <= slow:
            raise ConfigError(f"config.json needs high_freq_factor above low_freq_factor = {slow}, not {fast}")
        return cls(factor, int(original), slow, fast)

    @property
    def positions(self) -> int:
        """Tokens of context that it adds to what config.json says: none."""
        return 0

    def stretch(self, dim: int, theta: float) -> Stretch:
        """Of `dim` rotated dimensions with base `theta`."""
        turns = [self.original / (2 * math.pi) * theta ** (-2 * i / dim) for i in range(dim // 2)]
        return Stretch(
            self.factor, tuple(1 - _within((one - self.slow) / (self.fast - self.slow)) for one in turns), 1.0
        )


def _within(share: float) -> float:
    return min(max(share, 0.0), 1.0)


def _scale(scaling: Config, factor: float) -> float:
    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        above, below = (_number(scaling, name, None) for name in ("mscale", "mscale_all_dim"))
        return _sharper(factor, above) / _sharper(factor, below)
    return _sharper(factor, 1.0)


def _sharper(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _number(scaling: Config, name: str, default: float | None) -> float:
    value = scaling.get(name)
    value = default if value is None else value
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < LARGEST_NUMBER:
        kind = scaling.get("rope_type", scaling.get("type"))
        raise ConfigError(
            f"config.json has rope_type {kind!r} and needs {name} as a positive number, not {value!r:.40}"
        )
    return float(value)
