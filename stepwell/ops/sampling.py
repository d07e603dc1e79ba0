"""From logits to tokens. Each row is on its own: its draw depends on its logits, its seed and its index alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NO_TOKEN = -1
"""Stands for the token of a row that none can be drawn from."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Draw:
    """How to choose one row's token. `index` counts the request's earlier draws; tokens whose chance is below `min_p` of the likeliest are
    never chosen."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    index: int = 0
    min_p: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature <= 0 or self.top_k == 1


def sample(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """One token for each row of float32 [n, vocab], int64 [n] beside them; NO_TOKEN where the row has no finite largest logit (NaN,
    ∞, everything forbidden). Rows that no draw is for take their likeliest.

    Waits for nothing that the device computes, unless a row has a `top_k`.
    """
    largest, tokens = logits.max(-1)
    for row, draw in enumerate(draws):
        if not draw.greedy:
            tokens[row] = _draw(logits[row], largest[row], draw)
    return tokens.masked_fill_((largest - largest).isnan(), NO_TOKEN)  # ∞ − ∞ is NaN: two operations instead of six


def uniform(seed: int, index: int) -> float:
    """Draw `index` of stream `seed`, in [0, 1): the splitmix64 finaliser over both numbers (Steele et al., 2014)."""
    state = _mix(_mix(seed & _MASK) ^ (index * 0x9E3779B97F4A7C15 & _MASK))
    return (state >> 11) / (1 << 53)


def _mix(z: int) -> int:
    z = (z + 0x9E3779B97F4A7C15) & _MASK
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & _MASK
    return z ^ (z >> 31)


def _draw(logits: Tensor, largest: Tensor, draw: Draw) -> Tensor:
    """Invert the distribution function, largest probability first and equal ones by token number. int64 []."""
    scaled = ((logits.double() - largest) / draw.temperature).nan_to_num_(nan=float("-inf"))
    if 0 < draw.top_k < logits.shape[0]:
        # the k-th value and all that equal it, so that ties are settled by token number below
        floor = scaled.topk(draw.top_k).values[-1]
        candidates = (scaled >= floor).nonzero().flatten()
        scaled = scaled[candidates]
    else:
        candidates = None
    ordered, order = scaled.sort(descending=True, stable=True)
    if draw.top_k > 0:
        ordered, order = ordered[: draw.top_k], order[: draw.top_k]
    chances = ordered.exp_()
    if draw.min_p > 0:
        chances = _first(chances, chances >= draw.min_p)  # the likeliest stands at 1
    reached = chances.cumsum(0)
    whole = reached[-1]
    if draw.top_p < 1.0:
        # the fewest tokens whose chances reach top_p; the first one always
        whole = _first(reached, reached - chances < draw.top_p * whole).amax()
    at = torch.searchsorted(reached, (uniform(draw.seed, draw.index) * whole).reshape(1), right=True)
    token = order[at.clamp_(max=reached.shape[0] - 1)]
    return (token if candidates is None else candidates[token])[0]


def _first(values: Tensor, kept: Tensor) -> Tensor:
    """`values`, and 0 where one is not `kept`; the first always is."""
    kept[0] = True
    return values * kept
