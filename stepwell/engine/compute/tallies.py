"""How often each token is in a request's prompt and answer so far, kept where the logits are: a step counts its new tokens alone.

A tally can always be made again from the tokens, so the few that are kept are a convenience: nobody has to say when a request has ended.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.base.geometry import Ints

KEPT = 64
"""Tallies at most, of five bytes for each token of the vocabulary."""

Send = Callable[[Ints], Tensor]
"""Brings tokens to where the logits are, as int64."""


@dataclass(slots=True, eq=False)
class Tally:
    """`seen`: bool [vocab], what is in prompt or answer; `times`: float32 [vocab], how often in the answer; `count`: tokens so far."""

    seen: Tensor
    times: Tensor
    count: int = 0

    def add(self, past: Ints, answered: int, send: Send) -> None:
        """Count what of `past`, whose last `answered` tokens are the answer, has not been counted; tokens without a logit do not count.
        O(new tokens)."""
        prompt = len(past) - answered
        if self.count < len(past):
            fresh = past[self.count :]
            known = fresh < len(self.seen)
            tokens = send(fresh[known])
            self.seen.index_fill_(0, tokens, True)
            answer = tokens[int(known[: max(0, prompt - self.count)].sum()) :]
            self.times.index_add_(0, answer, torch.ones_like(answer, dtype=torch.float32))
        self.count = len(past)


class Tallies:
    """The last `KEPT` requests' tallies, by name."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: OrderedDict[str, Tally] = OrderedDict()

    def of(self, name: str, past: Ints, answered: int, row: Tensor, send: Send) -> Tally:
        """What is in `past` (prompt and answer) of the request `name`; `row` is one of logits. Begins anew with each first draw, since a
        name may be another request's by then. O(tokens since the last call) on the host."""
        tally = self._known.pop(name, None)
        if tally is None or not answered or tally.count > len(past) or tally.seen.device != row.device:
            seen = torch.zeros(len(row), dtype=torch.bool, device=row.device)
            tally = Tally(seen, torch.zeros(len(row), dtype=torch.float32, device=row.device))
        self._known[name] = tally
        if len(self._known) > KEPT:
            self._known.popitem(last=False)
        tally.add(np.asarray(past), answered, send)
        return tally
