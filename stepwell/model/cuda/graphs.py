"""Passes of decodes, captured once for each of a list of sizes and replayed: one launch instead of hundreds.

A batch takes the smallest graph that holds it. The rows left over work on the spare slot and page, and attend to nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from stepwell.model.batch import Batch, Memory
from stepwell.model.cuda.forward import CudaForward
from stepwell.model.cuda.plans import padded_table

if TYPE_CHECKING:
    from stepwell.model.cuda.backend import CudaBackend

_ROWS = 6  # tokens, positions, page, offset, slots, lengths


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """A pass of `rows` decodes: `graph` reads `ints` int64 [6, rows] and `table` int64 [rows, width] and writes `out`."""

    rows: int
    ints: Tensor
    table: Tensor
    graph: torch.cuda.CUDAGraph
    out: Tensor

    def replay(self) -> Tensor:
        self.graph.replay()
        return self.out


class DecodeGraphs:
    """Captured passes over one memory."""

    __slots__ = ("_backend", "_captured", "_forwards", "_memory", "_sizes", "_width")

    def __init__(
        self,
        backend: CudaBackend,
        memory: Memory,
        captured: Sequence[Captured],
        forwards: Sequence[CudaForward],
        width: int,
    ) -> None:
        self._backend = backend
        self._memory = memory
        self._sizes = [one.rows for one in captured]
        self._captured = captured
        self._forwards = forwards
        self._width = width

    @classmethod
    def capture(
        cls,
        backend: CudaBackend,
        memory: Memory,
        compute: Callable[[CudaForward], Tensor],
        rows: Sequence[int],
        width: int,
    ) -> DecodeGraphs:
        """Largest first, so that the smaller ones find room in its memory. Runs each once before: that compiles its kernels."""
        device, made, forwards = memory.draws.device, [], []
        pool = None
        for count in sorted(rows, reverse=True):
            ints = torch.zeros(_ROWS, count, dtype=torch.int64, device=device)
            ints[2], ints[4] = memory.keys[0].shape[0] - 1, memory.live.conv.shape[1] - 1
            table = torch.zeros(count, width, dtype=torch.int64, device=device)
            compute(backend.static(memory, ints, table))
            torch.cuda.synchronize(device)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                forward = backend.static(memory, ints, table)
                out = compute(forward)
            pool = graph.pool()
            made.append(Captured(count, ints, table, graph, out))
            forwards.append(forward)
        return cls(backend, memory, made[::-1], forwards[::-1], width)

    def fit(self, batch: Batch, memory: Memory) -> bool:
        """Whether a captured pass computes this batch of decodes."""
        widest = max(len(table) for table in batch.tables)
        return memory is self._memory and batch.decodes <= self._sizes[-1] and widest <= self._width

    def load(self, batch: Batch) -> CudaForward:
        """Set the inputs of the smallest graph that fits."""
        at = bisect_left(self._sizes, batch.decodes)
        one, count = self._captured[at], batch.decodes
        width = max(len(table) for table in batch.tables)
        ints = np.zeros((_ROWS, one.rows), np.int64)
        ints[2] = self._memory.keys[0].shape[0] - 1
        ints[4] = self._memory.live.conv.shape[1] - 1
        ints[:, :count] = batch.tokens, batch.positions, batch.page, batch.offset, batch.slots, batch.starts + 1
        sent, table, asked = self._backend.upload([ints, padded_table(batch.tables, width, 0), batch.asked])
        one.ints.copy_(sent)
        one.table[:count, :width].copy_(table)
        return replace(self._forwards[at], asked_rows=asked, replay=one.replay)
