"""What tensor-parallel ranks ask of each other within a pass: sums of what each has computed, and columns side by side.

Every rank makes the same calls in the same order and gets the same bits, so that what follows from them (choices of experts, tokens drawn)
is the same on all ranks without another word.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from stepwell.ops.linear import Linear

# older versions of torch have it under another name
_gather = dist.all_gather_single if hasattr(dist, "all_gather_single") else dist.all_gather_into_tensor


class Ranks(Protocol):
    """All ranks of a model, seen by one of them.

    number   this one, counted from 0
    count    how many there are
    name     how they sum, for people; empty for one that is alone
    """

    @property
    def name(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def count(self) -> int: ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all ranks of their `x`, which may be written to."""

    def side_by_side(self, x: Tensor) -> Tensor:
        """Columns of all ranks: of `x` [rows, n] on each, [rows, count · n]."""

    def largest(self, value: float) -> float:
        """The largest of all ranks' values. Waits for the others: for what they have to agree on as they start."""

    def apart(self) -> AbstractContextManager[None]:
        """In the block no rank waits for another, so sums and joined columns mean nothing. For rehearsals, which differ by rank."""


@dataclass(frozen=True, slots=True)
class Alone:
    """The one rank that holds all of the model."""

    @property
    def name(self) -> str:
        return ""

    @property
    def number(self) -> int:
        return 0

    @property
    def count(self) -> int:
        return 1

    def sum(self, x: Tensor) -> Tensor:
        return x

    def side_by_side(self, x: Tensor) -> Tensor:
        return x

    def largest(self, value: float) -> float:
        return value

    def apart(self) -> AbstractContextManager[None]:
        return nullcontext()


ALONE = Alone()


class ProcessRanks:
    """The processes of torch's default group, which must have been initialised. `device` is this one's, `name` is for people."""

    __slots__ = ("_apart", "_device", "begun", "count", "name", "number")

    def __init__(self, device: torch.device) -> None:
        self.number = dist.get_rank()
        self.count = dist.get_world_size()
        self.name = f"sums over ranks: {dist.get_backend()}"
        self.begun = 0
        """Calls to the others so far: who has begun fewer is waited for. Those of a graph count as it is captured alone."""
        self._device = device
        self._apart = False

    def sum(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        if not self._apart:
            self.begun += 1
            dist.all_reduce(x)
        return x

    def side_by_side(self, x: Tensor) -> Tensor:
        rows, width = x.shape
        found = x.new_empty(self.count * rows, width)
        if not self._apart:
            self.begun += 1
            _gather(found, x.contiguous())
        return found.view(self.count, rows, width).transpose(0, 1).reshape(rows, -1)

    def largest(self, value: float) -> float:
        found = torch.tensor([value], dtype=torch.float64, device=self._device)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return float(found)

    @contextmanager
    def apart(self) -> Iterator[None]:
        self._apart = True
        try:
            yield
        finally:
            self._apart = False


@dataclass(frozen=True, slots=True, eq=False)
class SideBySide:
    """A matrix whose rows are shared among ranks: each multiplies by its own, and all get all columns of the product.

    width   columns that count: the last rank's rows may be filled up with zeros
    """

    own: Linear
    ranks: Ranks
    width: int

    def __call__(self, x: Tensor) -> Tensor:
        return self.ranks.side_by_side(self.own(x))[:, : self.width]
