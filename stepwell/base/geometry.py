"""The sizes that cache, scheduler, stores and runners share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.base.errors import ConfigError
from stepwell.base.units import ceil_div

Ints: TypeAlias = npt.NDArray[np.int32]
"""A one-dimensional array of tokens, page numbers or slot numbers."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """How tokens map to pages.

    block        tokens in one page's KV (the unit of prefix matching)
    rung_grid    tokens; prefill cuts and prompt rungs stand on its multiples (a multiple of `block`)
    page_bytes   bytes of one page: the KV of one block over all attention layers
    image_bytes  bytes of one rung's image; 0 in a model without recurrent layers
    """

    block: int = 16
    rung_grid: int = 64
    page_bytes: int = 4096
    image_bytes: int = 4096

    def __post_init__(self) -> None:
        if self.block < 1:
            raise ConfigError(f"--block-size must be at least 1, not {self.block}")
        if self.rung_grid < 1 or self.rung_grid % self.block:
            raise ConfigError(f"--rung-grid {self.rung_grid} must be a multiple of --block-size {self.block}")

    @property
    def image_pages(self) -> int:
        """Pages that hold one image."""
        return ceil_div(self.image_bytes, self.page_bytes)

    def pages_for(self, tokens: int) -> int:
        """Pages that hold the KV of `tokens` tokens."""
        return ceil_div(tokens, self.block)
