"""What is done to one row of logits before a token is chosen from it, and what the model itself thought of the token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_FLOOR = -9999.0  # JSON has no minus infinity


def repeat_less(row: Tensor, seen: Tensor, penalty: float) -> None:
    """Divide the positive and multiply the negative logits of the `seen` tokens by `penalty` (Keskar et al., 2019)."""
    seen = torch.unique(seen)
    logits = row[seen]
    row[seen] = torch.where(logits > 0, logits / penalty, logits * penalty)


def penalise(row: Tensor, answer: Tensor, presence: float, frequency: float) -> None:
    """Lower each token of the answer by `presence`, and by `frequency` for each time that it is there."""
    said, times = torch.unique(answer, return_counts=True)
    row[said] -= presence + frequency * times.to(row.dtype)


def add_bias(row: Tensor, bias: Sequence[tuple[int, float]]) -> None:
    """Add to the logits of single tokens."""
    tokens = torch.tensor([token for token, _ in bias], device=row.device)
    row[tokens] += torch.tensor([value for _, value in bias], device=row.device, dtype=row.dtype)


def keep_only(row: Tensor, tokens: Sequence[int]) -> None:
    """Make every other token impossible."""
    kept = torch.tensor(tokens, dtype=torch.int64, device=row.device)
    values = row[kept]
    row.fill_(float("-inf"))
    row[kept] = values


def forbid(row: Tensor, words: Sequence[Sequence[int]], answer: Sequence[int]) -> None:
    """Make impossible what would complete one of `words`, which are token sequences, behind the answer so far."""
    last = [word[-1] for word in words if list(word[:-1]) == list(answer[len(answer) + 1 - len(word) :])]
    if last:
        row[last] = float("-inf")


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
