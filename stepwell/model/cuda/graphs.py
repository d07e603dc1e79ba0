"""Passes over tensors that stay, captured once and replayed: one launch instead of hundreds. Here those of decodes; of prompts in
`prompt_graphs`.

A batch takes the smallest graph that holds it. The rows left over work on the spare slot and page, and attend to nothing. All that a
pass has to know lies in one tensor, so that a step sends one copy:

    int64   of each row: tokens … offset, settings of its draw │ of each sequence: slots … counts, cells, values

`cells` and `values` are what is new in the block tables. A sequence has one row, or, in another list of graphs, one and its drafts.

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
from stepwell.model.batch import Longs, Memory
from stepwell.model.cuda.forward import CudaForward
from stepwell.model.cuda.plans import SETTINGS, Drawing, New, setting_columns, settings_from
from stepwell.model.cuda.spread import Spread

if TYPE_CHECKING:
    from stepwell.model.cuda.backend import CudaBackend

_OF_ROWS, _OF_SEQUENCES = 4, 5


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """A pass over tensors that stay. `compute` also draws its likeliest tokens; `redraw` draws from its logits as the settings ask."""

    forward: CudaForward
    compute: Callable[[], Output]
    redraw: Callable[[Tensor], Tensor]

    def replay(self, rows: int | Tensor, plain: bool, greedy: bool) -> Output:
        """The first `rows`, or those that are named. A later replay may write to them."""
        made = self.compute()
        assert made.tokens is not None
        tokens = made.tokens if greedy or not plain else self.redraw(made.logits)
        drawn = _picked(tokens, rows) if plain else None
        return Output(_picked(made.hidden, rows), _picked(made.logits, rows), drawn)


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


def recorded(body: Callable[[], None], graphs: bool, pool: Any) -> tuple[Callable[[], None], Any]:
    """What repeats `body`, which works on tensors that stay, by a graph if `graphs`; and the pool of memory for the next."""
    body()
    if not graphs:
        return body, pool
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with _capturing(graph, pool):
        body()
    return graph.replay, graph.pool()


@dataclass(frozen=True, slots=True)
class Columns:
    """How the inputs of a pass of `sequences`, each with `width` rows, lie in one tensor."""

    sequences: int
    width: int

    @property
    def sizes(self) -> tuple[int, int]:
        return (_OF_ROWS + SETTINGS) * self.sequences * self.width, _OF_SEQUENCES * self.sequences

    def split(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Of each row: tokens, positions, page, offset, settings; of each sequence: slots, starts, counts, cells, values."""
        rows, sequences = inputs.split_with_sizes(self.sizes)
        return rows.view(-1, self.sequences * self.width), sequences.view(_OF_SEQUENCES, -1)

    def settings(self, inputs: Tensor) -> Sequence[Tensor]:
        return self.split(inputs)[0][_OF_ROWS:].unbind()

    def padding(self, memory: Memory, pages: int) -> tuple[Longs, Longs]:
        """Inputs of rows that nobody reads: they work on the spare page and slot, and change a cell of that slot's table, which has
        `pages` cells."""
        spare = memory.live.conv.shape[1] - 1
        rows = np.zeros((_OF_ROWS + SETTINGS, self.sequences * self.width), np.int64)
        sequences = np.zeros((_OF_SEQUENCES, self.sequences), np.int64)
        rows[2], sequences[0], sequences[3] = memory.keys[0].shape[0] - 1, spare, spare * pages
        return rows, sequences


class DecodeGraphs:
    """Recorded passes of decodes over one memory, `width` rows for each."""

    __slots__ = ("_backend", "_inputs", "_memory", "_passes", "_sizes", "_width")

    def __init__(self, backend: CudaBackend, memory: Memory, sizes: Sequence[int], width: int = 1) -> None:
        """`sizes` are numbers of decodes."""
        self._backend = backend
        self._memory = memory
        self._sizes = sorted(set(sizes))
        self._width = width
        self._inputs: dict[int, Tensor] = {}
        self._passes: dict[int, Recorded] = {}

    def record(self, recorder: Recorder, pool: Any = None) -> Any:
        """Largest first, so that the smaller ones find room in its memory. Returns the pool."""
        memory, pages = self._memory, self._backend.tables(self._memory, 1).width
        for count in reversed(self._sizes):
            columns = Columns(count, self._width)
            padding = np.concatenate([part.ravel() for part in columns.padding(memory, pages)])
            self._inputs[count] = inputs = torch.from_numpy(padding).to(memory.draws.device)
            static = partial(self._backend.static, memory, columns, inputs)
            self._passes[count], pool = recorder(static, partial(columns.settings, inputs), pool)
        return pool

    def fit(self, spread: Spread) -> bool:
        """Whether a recorded pass computes these decodes: if each of their rows draws."""
        return spread.all_draw and spread.batch.decodes <= self._sizes[-1]

    def load(self, spread: Spread, new: New) -> CudaForward:
        """Set the inputs of the smallest pass that holds the decodes; `new` is what changes in the block tables."""
        batch, count = spread.batch, spread.batch.decodes
        size = self._sizes[bisect_left(self._sizes, count)]
        target, passed, tables = self._inputs[size], self._passes[size], self._backend.tables(self._memory, 1)
        cells, values = new
        if len(cells) > size:  # a batch that decodes has as many at most, but for its first step
            tables.store(*self._backend.upload(new))
            cells = values = cells[:0]
        columns, drawing = Columns(size, self._width), len(spread.places)
        wanted: int | Tensor
        rows, sequences = columns.padding(self._memory, tables.width)
        real = count * self._width
        rows[:_OF_ROWS, :real] = [array[:real] for array in (batch.tokens, batch.positions, batch.page, batch.offset)]
        sequences[:3, :count] = batch.slots[:count], batch.starts[:count], spread.counts
        sequences[3, : len(cells)], sequences[4, : len(cells)] = cells, values
        greedy = not batch.draws.temperature[:drawing].any()
        if not greedy:
            rows[_OF_ROWS:, spread.places] = [column[:drawing] for column in setting_columns(batch.draws)]
        self._backend.fill(target, np.concatenate((rows.ravel(), sequences.ravel())))
        wanted, slots = drawing, passed.forward.drawing.slots
        if not spread.whole:
            (wanted,) = self._backend.upload([spread.places])
        settings = None
        if not (greedy or batch.plain):
            settings = settings_from([_picked(column, wanted) for column in columns.settings(target)])
        drawing_of = Drawing(drawing, batch.plain, _picked(slots, wanted), settings)
        return replace(passed.forward, drawing=drawing_of, replay=partial(passed.replay, wanted, batch.plain, greedy))


def _picked(column: Tensor, rows: int | Tensor) -> Tensor:
    return column[:rows] if isinstance(rows, int) else column.index_select(0, rows)
