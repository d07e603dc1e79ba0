"""Ranks on threads of one process, one of which computes at a time: what they sum and gather is handed over in a list."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from threading import Barrier, Lock
from typing import TypeVar

import torch
from torch import Tensor

from stepwell.ops.ranks import ALONE, Ranks

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Where the ranks meet."""

    count: int
    given: list[Tensor] = field(default_factory=list)
    barrier: Barrier = field(default_factory=lambda: Barrier(1))
    turn: Lock = field(default_factory=Lock)

    def meet(self) -> None:
        """Wait for the others, which compute meanwhile."""
        self.turn.release()
        try:
            self.barrier.wait()
        finally:
            self.turn.acquire()

    @classmethod
    def of(cls, count: int) -> Table:
        return cls(count, [torch.empty(0)] * count, Barrier(count, timeout=30))


@dataclass(frozen=True, slots=True, eq=False)
class ThreadRanks:
    """One rank's seat at the table."""

    number: int
    table: Table
    name: str = "threads"

    @property
    def count(self) -> int:
        return self.table.count

    def sum(self, x: Tensor) -> Tensor:
        return self._all(x, lambda given: torch.stack(given).sum(0))

    def side_by_side(self, x: Tensor) -> Tensor:
        return self._all(x, lambda given: torch.cat(given, -1))

    def largest(self, value: float) -> float:
        return float(self._all(torch.tensor(value), lambda given: torch.stack(given).max()))

    def apart(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _all(self, x: Tensor, join: Callable[[list[Tensor]], Tensor]) -> Tensor:
        self.table.given[self.number] = x
        self.table.meet()
        joined = join(self.table.given)
        self.table.meet()  # nobody writes to what others still read
        return joined


def on_ranks(count: int, work: Callable[[Ranks], T]) -> list[T]:
    """What `work` returns on each of so many ranks, each on a thread of its own."""
    if count == 1:
        return [work(ALONE)]
    table = Table.of(count)

    def one(number: int) -> T:
        try:
            with table.turn:
                return work(ThreadRanks(number, table))
        except BaseException:
            table.barrier.abort()
            raise

    with ThreadPoolExecutor(count) as threads:
        return [future.result() for future in [threads.submit(one, number) for number in range(count)]]
