"""What is done to one row of logits before a token is chosen from it, and what the model itself thought of the token."""

from __future__ import annotations

from collections.abc import Sequence

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


def score(logits: Tensor, targets: Tensor, top: int) -> list[tuple[float, list[tuple[int, float]]]]:
    """For each row of float32 [n, vocab]: the log-probability of its target, and the `top` likeliest (token, log-probability).

    Every number is finite: what is less likely than a float can say is −9999.
    """
    chances = logits.log_softmax(-1)
    own = _finite(chances.gather(-1, targets[:, None])[:, 0])
    if top == 0:
        return [(value, []) for value in own]
    best = chances.topk(min(top, chances.shape[1]), -1)
    rivals = zip(best.indices.tolist(), _rows(best.values), strict=True)
    return [
        (value, list(zip(tokens, values, strict=True))) for value, (tokens, values) in zip(own, rivals, strict=True)
    ]


def _finite(values: Tensor) -> list[float]:
    finite: list[float] = values.nan_to_num(_FLOOR, _FLOOR, _FLOOR).clamp_min(_FLOOR).tolist()
    return finite


def _rows(values: Tensor) -> list[list[float]]:
    finite: list[list[float]] = values.nan_to_num(_FLOOR, _FLOOR, _FLOOR).clamp_min(_FLOOR).tolist()
    return finite
