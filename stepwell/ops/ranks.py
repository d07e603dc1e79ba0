"""What tensor-parallel ranks ask of each other within a pass: sums of what each has computed, and columns side by side.

Every rank makes the same calls in the same order and gets the same bits, so that what follows from them (choices of experts, tokens drawn)
is the same on all ranks without another word.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from stepwell.ops.linear import Linear


class Ranks(Protocol):
    """All ranks of a model, seen by one of them.

    number   this one, counted from 0
    count    how many there are
    """

    @property
    def number(self) -> int: ...

    @property
    def count(self) -> int: ...

    def sum(self, x: Tensor) -> Tensor:
        """The sum over all ranks of their `x`, which may be written to."""

    def side_by_side(self, x: Tensor) -> Tensor:
        """Columns of all ranks: of `x` [rows, n] on each, [rows, count · n]."""


@dataclass(frozen=True, slots=True)
class Alone:
    """The one rank that holds all of the model."""

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


ALONE = Alone()


class ProcessRanks:
    """The processes of torch's default group, which must have been initialised."""

    __slots__ = ("count", "number")

    def __init__(self) -> None:
        self.number = dist.get_rank()
        self.count = dist.get_world_size()

    def sum(self, x: Tensor) -> Tensor:
        x = x.contiguous()
        dist.all_reduce(x)
        return x

    def side_by_side(self, x: Tensor) -> Tensor:
        found = x.new_empty(self.count, *x.shape)
        dist.all_gather_into_tensor(found, x.contiguous())
        return found.transpose(0, 1).reshape(x.shape[0], -1)

    def least(self, number: int, device: torch.device) -> int:
        """The least of all ranks' numbers. Waits for the others."""
        found = torch.tensor([number], dtype=torch.int64, device=device)
        dist.all_reduce(found, dist.ReduceOp.MIN)
        return int(found)


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
