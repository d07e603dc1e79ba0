"""Passes over tensors that stay, captured once and replayed: one launch instead of hundreds. Here those of decodes; of prompts in
`prompt_graphs`.

A batch takes the smallest graph that holds it. The rows left over work on the spare slot and page, and attend to nothing. All that a
pass has to know lies in one tensor, so that a step sends one copy:

    int64 [columns, rows]   tokens … lengths │ cells, values: what is new in the block tables │ settings of draws

A graph ends with the likeliest token of each row, which its live slot remembers. Where some row wants another draw, a second graph draws
again from the same logits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
class Recorded:
    """A pass over tensors that stay. `compute` also draws its likeliest tokens; `redraw` draws from its logits as the settings ask."""

    forward: CudaForward
    compute: Callable[[], Output]
    redraw: Callable[[Tensor], Tensor]

    def replay(self, count: int, plain: bool, greedy: bool) -> Output:
        """The first `count` rows. A later replay may write to them."""
        made = self.compute()
        assert made.tokens is not None
        tokens = made.tokens if greedy or not plain else self.redraw(made.logits)
        return Output(made.hidden[:count], made.logits[:count], tokens[:count] if plain else None)


@dataclass(frozen=True, slots=True)
class Recorder:
    """Records passes that `compute` runs; with `graphs` it captures them, else they are computed anew each time."""

    compute: Callable[[CudaForward], Output]
    graphs: bool

    def __call__(
        self, static: Callable[[], CudaForward], settings: Callable[[], Sequence[Tensor]], pool: Any
    ) -> tuple[Recorded, Any]:
        """`static` plans the pass, `settings` are the columns of its draws. Runs everything once before: that compiles its kernels.
        Returns the pool of memory as well, for the next."""
        forward = static()

        def body() -> Output:
            return self.compute(static())

        def redraw(logits: Tensor) -> Tensor:
            drawing = replace(forward.drawing, settings=settings_from(settings()))
            return replace(forward, drawing=drawing).draw(logits)

        redraw(body().logits)
        if not self.graphs:
            return Recorded(forward, body, redraw), pool
        torch.cuda.synchronize()
        graph, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        with _capturing(graph, pool):
            made = body()
        with _capturing(second, graph.pool()):
            drawn = redraw(made.logits)

        def replayed() -> Output:
            graph.replay()
            return made

        def drawn_again(_: Tensor) -> Tensor:
            second.replay()
            return drawn

        return Recorded(forward, replayed, drawn_again), graph.pool()


@contextmanager
def _capturing(graph: torch.cuda.CUDAGraph, pool: Any) -> Iterator[None]:
    """Capture the block. Where that fails, torch leaves its own stream of captures current: what is computed afterwards would follow
    nothing that is queued on the stream of before."""
    stream = torch.cuda.current_stream()
    try:
        with torch.cuda.graph(graph, pool=pool):
            yield
    finally:
        torch.cuda.set_stream(stream)


class DecodeGraphs:
    """Recorded passes of decodes over one memory."""

    __slots__ = ("_backend", "_inputs", "_memory", "_passes", "_sizes")

    def __init__(self, backend: CudaBackend, memory: Memory, sizes: Sequence[int]) -> None:
        self._backend = backend
        self._memory = memory
        self._sizes = sorted(set(sizes))
        self._inputs: dict[int, Tensor] = {}
        self._passes: dict[int, Recorded] = {}

    def record(self, recorder: Recorder, pool: Any = None) -> Any:
        """Largest first, so that the smaller ones find room in its memory. Returns the pool."""
        memory, width = self._memory, self._backend.tables(self._memory, 1).width
        for count in reversed(self._sizes):
            inputs = torch.from_numpy(_padding(memory, width, count)).to(memory.draws.device)
            self._inputs[count] = inputs
            static = partial(self._backend.static, memory, inputs)
            self._passes[count], pool = recorder(static, partial(_settings, inputs), pool)
        return pool

    def fit(self, batch: Batch) -> bool:
        """Whether a recorded pass computes the decodes of this batch: if each of them draws."""
        rows = batch.decodes
        all_draw = len(batch.draws) >= rows and bool((batch.asked[:rows] == np.arange(rows)).all())
        return all_draw and rows <= self._sizes[-1]

    def load(self, batch: Batch, new: tuple[Longs, Longs]) -> CudaForward:
        """Set the inputs of the smallest pass that holds the decodes; `new` is what changes in the block tables."""
        count = batch.decodes
        size = self._sizes[bisect_left(self._sizes, count)]
        target, passed, tables = self._inputs[size], self._passes[size], self._backend.tables(self._memory, 1)
        cells, values = new
        if len(cells) > size:  # a batch that decodes has as many at most, but for its first step
            tables.store(*self._backend.upload(new))
            cells = values = cells[:0]
        inputs = _padding(self._memory, tables.width, size)
        rows = (batch.tokens, batch.positions, batch.page, batch.offset, batch.slots, batch.starts + 1)
        inputs[:6, :count] = [array[:count] for array in rows]
        inputs[6, : len(cells)], inputs[7, : len(cells)] = cells, values
        greedy = not batch.draws.temperature[:count].any()
        if not greedy:
            inputs[len(STATIC) :, :count] = [column[:count] for column in setting_columns(batch.draws)]
        self._backend.fill(target, inputs)
        own = target[:, :count]
        settings = None if greedy or batch.plain else settings_from(_settings(own))
        drawing = Drawing(count, batch.plain, own[STATIC.index("slots")], settings)
        return replace(passed.forward, drawing=drawing, replay=partial(passed.replay, count, batch.plain, greedy))


def _settings(inputs: Tensor) -> Sequence[Tensor]:
    return inputs[len(STATIC) :].unbind()


def _padding(memory: Memory, width: int, rows: int) -> Longs:
    """Inputs of rows that nobody reads: they work on the spare page and slot, and change a cell of that slot's table."""
    inputs = np.zeros((len(STATIC) + SETTINGS, rows), np.int64)
    spare = memory.live.conv.shape[1] - 1
    inputs[2], inputs[4], inputs[6] = memory.keys[0].shape[0] - 1, spare, spare * width
    return inputs
