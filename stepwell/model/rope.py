"""Rotary positions that YaRN stretches to longer contexts, as config.json describes them.

Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models", 2023, sections 3.2 to 3.4. Pairs of dimensions that turn
often within the context that the model was trained on stay as they are, those that turn less than once go slower by `factor`, and between
the two there is a ramp. Queries and keys are scaled, which sharpens attention over more tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stepwell.base.errors import ConfigError
from stepwell.base.shapes import Config

SERVED = "'default', 'mrope' and 'yarn'"


@dataclass(frozen=True, slots=True)
class Stretch:
    """Pairs up to `low` rotate as they are, from `high` on slower by `factor`; rotated queries and keys are multiplied by `scale`."""

    factor: float
    low: float
    high: float
    scale: float


NO_STRETCH = Stretch(1.0, 0.0, 1.0, 1.0)


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

    def ramp(self, dim: int, theta: float) -> tuple[float, float]:
        """The pairs, counted in `dim` rotated dimensions with base `theta`, at which slowing begins and is complete."""
        low, high = (
            dim * math.log(self.original / (turns * 2 * math.pi)) / (2 * math.log(theta))
            for turns in (self.fast, self.slow)
        )
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        return max(low, 0), min(high, dim - 1)


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
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"config.json has rope_type 'yarn' and needs {name} as a positive number, not {value!r}")
    return float(value)
