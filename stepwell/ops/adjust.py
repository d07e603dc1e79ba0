"""What is done to one row of logits before a token is chosen from it, and what the model itself thought of the token.

Tokens are int64 tensors beside the row: nothing here waits for the device, but for `Rated.rows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_FLOOR = -9999.0  # JSON has no minus infinity


def repeat_less(row: Tensor, seen: Tensor, penalty: float) -> None:
    """Divide the positive and multiply the negative logits of the tokens `seen`, bool [vocab], by `penalty` (Keskar et al., 2019)."""
    row.copy_(torch.where(seen, torch.where(row > 0, row / penalty, row * penalty), row))


def penalise(row: Tensor, times: Tensor, presence: float, frequency: float) -> None:
    """Lower each token of an answer by `presence`, and by `frequency` for each of the `times` that it is there, float32 [vocab]."""
    row.sub_(presence * (times > 0) + frequency * times)


def add_bias(row: Tensor, tokens: Tensor, values: Tensor) -> None:
    """Add `values` to the logits of single tokens."""
    row.index_add_(0, tokens, values.to(row.dtype))


def keep_only(row: Tensor, tokens: Tensor) -> None:
    """Make every other token impossible."""
    values = row.index_select(0, tokens)
    row.fill_(float("-inf")).index_copy_(0, tokens, values)


def forbid(row: Tensor, tokens: Tensor) -> None:
    """Make these tokens impossible."""
    row.index_fill_(0, tokens, float("-inf"))


def completing(words: Sequence[Sequence[int]], answer: Sequence[int]) -> list[int]:
    """Tokens that would complete one of `words`, which are token sequences, behind the answer so far."""
    return [word[-1] for word in words if list(word[:-1]) == list(answer[len(answer) + 1 - len(word) :])]


@dataclass(frozen=True, slots=True, eq=False)
class Rated:
    """What the model thought of some tokens, still where it was computed: float32 [n] log-probabilities, and the likeliest tokens and
    theirs, [n, top]."""

    own: Tensor
    tokens: Tensor
    values: Tensor

    def rows(self) -> list[tuple[float, list[tuple[int, float]]]]:
        """For each row: the log-probability of its target, and the likeliest (token, log-probability). Waits for the device."""
        rivals = zip(self.tokens.tolist(), self.values.tolist(), strict=True)
        best = [list(zip(tokens, values, strict=True)) for tokens, values in rivals]
        return list(zip(self.own.tolist(), best, strict=True))


def score(logits: Tensor, targets: Tensor, top: int) -> Rated:
    """For each row of float32 [n, vocab]: the log-probability of its target, and the `top` likeliest.

    Every number is finite: what is less likely than a float can say is −9999. A negative target is scored as token 0.
    """
    chances = logits.log_softmax(-1)
    own = chances.gather(-1, targets.clamp_min(0)[:, None])[:, 0]
    best = chances.topk(min(top, chances.shape[1]), -1)
    return Rated(_finite(own), best.indices, _finite(best.values))


def _finite(values: Tensor) -> Tensor:
    return values.nan_to_num(_FLOOR, _FLOOR, _FLOOR).clamp_min(_FLOOR)
