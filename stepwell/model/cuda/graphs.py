"""Passes of decodes, captured once for each of a list of sizes and replayed: one launch instead of hundreds.

A batch takes the smallest graph that holds it. The rows left over work on the spare slot and page, and attend to nothing. All that a
pass has to know lies in one tensor that stays, so that a step sends one copy:

    int64 [columns, rows]   tokens … lengths │ cells, values: what is new in the block tables │ settings of draws

A graph ends with the likeliest token of each row, which its live slot remembers. Where some row wants another draw, a second graph draws
again from the same logits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stepwell.model.backend import Output
from stepwell.model.batch import Batch, Longs, Memory
from stepwell.model.cuda.forward import CudaForward
from stepwell.model.cuda.plans import SETTINGS, Drawing, setting_columns, settings_from

if TYPE_CHECKING:
    from stepwell.model.cuda.backend import CudaBackend

STATIC = ("tokens", "positions", "page", "offset", "slots", "lengths", "cells", "values")


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """Passes of `rows` decodes that read `inputs` int64 [columns, rows]. `redraw` draws from the logits as the settings ask."""

    rows: int
    inputs: Tensor
    forward: CudaForward
    compute: Callable[[], Output]
    redraw: Callable[[Tensor], Tensor]

    def replay(self, count: int, plain: bool, greedy: bool) -> Output:
        made = self.compute()
        assert made.tokens is not None
        tokens = made.tokens if greedy or not plain else self.redraw(made.logits)
        return Output(made.hidden[:count], made.logits[:count], tokens[:count] if plain else None)


class DecodeGraphs:
    """Captured passes over one memory."""

    __slots__ = ("_backend", "_captured", "_memory", "_sizes")

    def __init__(self, backend: CudaBackend, memory: Memory, captured: Sequence[Captured]) -> None:
        self._backend = backend
        self._memory = memory
        self._sizes = [one.rows for one in captured]
        self._captured = captured

    @classmethod
    def capture(
        cls, backend: CudaBackend, memory: Memory, compute: Callable[[CudaForward], Output], rows: Sequence[int]
    ) -> DecodeGraphs:
        """Largest first, so that the smaller ones find room in its memory."""
        made, pool = [], None
        for count in sorted(set(rows), reverse=True):
            inputs = torch.from_numpy(_padding(memory, backend.tables(memory, 1).width, count)).to(memory.draws.device)
            one, pool = _captured(backend, memory, compute, inputs, pool)
            made.append(one)
        return cls(backend, memory, made[::-1])

    def fit(self, batch: Batch, memory: Memory) -> bool:
        """Whether a captured pass computes this batch: of decodes alone, each of which draws."""
        rows = batch.decodes
        all_draw = rows == len(batch.slots) == len(batch.asked) == len(batch.draws)
        return all_draw and rows <= self._sizes[-1] and memory is self._memory

    def load(self, batch: Batch, new: tuple[Longs, Longs]) -> CudaForward:
        """Set the inputs of the smallest graph that fits; `new` is what changes in the block tables."""
        one, count = self._captured[bisect_left(self._sizes, batch.decodes)], batch.decodes
        tables = self._backend.tables(self._memory, 1)
        cells, values = new
        if len(cells) > one.rows:  # a batch that decodes has as many at most, but for its first step
            tables.store(*self._backend.upload(new))
            cells = values = cells[:0]
        inputs = _padding(self._memory, tables.width, one.rows)
        inputs[:6, :count] = (
            batch.tokens, batch.positions, batch.page, batch.offset, batch.slots, batch.starts + 1,
        )  # fmt: skip
        inputs[6, : len(cells)], inputs[7, : len(cells)] = cells, values
        draws = batch.draws
        if not draws.greedy:
            inputs[len(STATIC) :, :count] = setting_columns(draws)
        self._backend.fill(one.inputs, inputs)
        own = one.inputs[:, :count]
        settings = None if draws.greedy or batch.plain else settings_from(own[len(STATIC) :].unbind())
        drawing = Drawing(count, batch.plain, own[STATIC.index("slots")], settings)
        return replace(one.forward, drawing=drawing, replay=partial(one.replay, count, batch.plain, draws.greedy))


def _padding(memory: Memory, width: int, rows: int) -> Longs:
    """Inputs of rows that nobody reads: they work on the spare page and slot, and change a cell of that slot's table."""
    inputs = np.zeros((len(STATIC) + SETTINGS, rows), np.int64)
    spare = memory.live.conv.shape[1] - 1
    inputs[2], inputs[4], inputs[6] = memory.keys[0].shape[0] - 1, spare, spare * width
    return inputs


def _captured(
    backend: CudaBackend, memory: Memory, compute: Callable[[CudaForward], Output], inputs: Tensor, pool: Any
) -> tuple[Captured, Any]:
    """Runs everything once before: that compiles its kernels."""
    forward = backend.static(memory, inputs)

    def body() -> Output:
        return compute(backend.static(memory, inputs))

    def redraw(logits: Tensor) -> Tensor:
        settings = settings_from(inputs[len(STATIC) :].unbind())
        return replace(forward, drawing=replace(forward.drawing, settings=settings)).draw(logits)

    redraw(body().logits)
    if inputs.device.type != "cuda":  # Triton's interpreter: what is not captured is computed anew
        return Captured(inputs.shape[1], inputs, forward, body, redraw), None
    torch.cuda.synchronize(inputs.device)
    graph, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        made = body()
    with torch.cuda.graph(second, pool=graph.pool()):
        drawn = redraw(made.logits)

    def replayed() -> Output:
        graph.replay()
        return made

    def drawn_again(_: Tensor) -> Tensor:
        second.replay()
        return drawn

    return Captured(inputs.shape[1], inputs, forward, replayed, drawn_again), graph.pool()
