"""Passes of one prompt, recorded for a list of sizes: a part of a prompt takes the smallest that holds it.

All that a pass has to know lies in one int64 tensor that stays:

    tokens, positions, page, offset [rows each] │ chunks [5 each] │ where the sequence stands, its slot, its draw

Rows left over are padding: they write to the spare page, what they attend to is dropped, and they are folded into no state.

With `fixed` there is one size, and passes are windows that lie at its multiples: a token's row depends on its position alone, and so
does the order in which its numbers are summed. A prompt computed in other parts, or from a rung on, is then the same to the bit.

    position   0            2,048          4,096                        a rung at 2,496, the prompt's end at 4,300
    cold       │ all rows    │ all rows     │ 204 rows, padding │
    resumed                  │ padding, 1,600 rows │ 204 rows, padding │
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stepwell.model.backend import Output
from stepwell.model.batch import Batch, Longs, Memory, States
from stepwell.model.cuda.chunk_plan import plan_chunks
from stepwell.model.cuda.forward import CudaForward
from stepwell.model.cuda.graphs import Recorded, Recorder
from stepwell.model.cuda.plans import SETTINGS, Drawing, Paged, Prompts, setting_columns
from stepwell.ops.triton.chunked import CHUNK, PAD, Chunks

if TYPE_CHECKING:
    from stepwell.model.cuda.backend import CudaBackend

CUTS = 4
"""Most rungs that a recorded pass leaves on its way."""
MOST = 2
"""Prompts of a step that are computed one by one; more are computed together, which reads the weights once."""
_NUMBERS = ("slot", "last", "pages", "length", "asked", "lead")


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """A part of a prompt for one pass.

    rows      of the pass; `lead` of them stand before the tokens
    tokens, page, offset  int64, of the tokens
    start     position of the first
    slot      live slot
    cuts      tokens before each cut; they go to columns `column`, … of the batch's checkpoints
    settings  of its draw; None: it draws no token
    """

    rows: int
    lead: int
    tokens: Longs
    page: Longs
    offset: Longs
    start: int
    slot: int
    cuts: tuple[int, ...] = ()
    column: int = 0
    settings: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class Room:
    """Where things lie in the inputs of a pass of `rows`, a multiple of 64. Everything begins at a multiple of 16 bytes."""

    rows: int

    @property
    def chunks(self) -> int:
        """Tokens and padding may share a chunk's 64 rows at both ends, and each cut may end one early."""
        count = self.rows // CHUNK + 2 + CUTS
        return count + count % 2

    @property
    def sizes(self) -> tuple[int, int, int]:
        return 4 * self.rows, 5 * self.chunks, 2 * (1 + len(_NUMBERS) + SETTINGS)

    def split(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[4, rows], [5, chunks], and the numbers, two places each: `ends` of the chunks, then one of each name, then settings."""
        rows, chunks, numbers = inputs.split_with_sizes(self.sizes)
        return rows.view(4, -1), chunks.view(5, -1), numbers.view(-1, 2)

    def inputs(self, piece: Piece, block: int, page: int, slot: int) -> Longs:
        """What the pass reads for this piece; `page` and `slot` are spare."""
        lead, count, base = piece.lead, len(piece.tokens), piece.start - piece.lead
        own = slice(lead, lead + count)
        rows = np.zeros((4, self.rows), np.int64)
        rows[0, own] = piece.tokens
        rows[1] = base + np.arange(self.rows)
        rows[2] = page
        rows[2, own], rows[3, own] = piece.page, piece.offset
        first, size, column, begin, own_slot, ends, _, _ = plan_chunks(
            np.array([count]), np.array([piece.slot]), [(0, after) for after in piece.cuts]
        )
        chunks = np.zeros((5, self.chunks), np.int64)
        chunks[2], chunks[4] = PAD, slot
        chunks[:, : len(first)] = first + lead, size, column, begin + lead, own_slot
        padding = [
            (at, min(CHUNK, end - at))
            for a, end in ((0, lead), (lead + count, self.rows))
            for at in range(a, end, CHUNK)
        ]
        chunks[:2, len(first) : len(first) + len(padding)] = np.array(padding, np.int64).reshape(-1, 2).T
        numbers = np.zeros((1 + len(_NUMBERS) + SETTINGS, 2), np.int64)
        numbers[0] = ends
        end = piece.start + count
        numbers[1:, 0] = [piece.slot, lead + count, -(-end // block), end, lead + count - 1, lead,
                          *(piece.settings or (0,) * SETTINGS)]  # fmt: skip
        return np.concatenate((rows.ravel(), chunks.ravel(), numbers.ravel()))


class PromptGraphs:
    """Recorded passes of prompts over one memory. They share the checkpoints that they write to."""

    __slots__ = ("_backend", "_checkpoints", "_fixed", "_inputs", "_memory", "_passes", "_sizes")

    def __init__(self, backend: CudaBackend, memory: Memory, sizes: Sequence[int], fixed: bool) -> None:
        """`sizes` are rows, multiples of 64; with `fixed` there is one."""
        assert not fixed or len(sizes) == 1, f"windows of one size, not of {sizes}"
        conv, recurrent, hidden = memory.live.conv, memory.live.recurrent, memory.live.hidden
        self._backend = backend
        self._memory = memory
        self._checkpoints = States(
            conv.new_zeros(conv.shape[0], CUTS, *conv.shape[2:]),
            recurrent.new_zeros(recurrent.shape[0], CUTS, *recurrent.shape[2:]),
            hidden.new_zeros(hidden.shape[0], CUTS, *hidden.shape[2:]),
        )
        self._fixed = fixed
        self._sizes = sorted(set(sizes))
        self._inputs: dict[int, Tensor] = {}
        self._passes: dict[int, Recorded] = {}

    def record(self, recorder: Recorder, pool: Any = None) -> Any:
        """Largest first, so that the smaller ones find room in its memory. Returns the pool."""
        page, slot = self._spare
        for rows in reversed(self._sizes):
            room, none = Room(rows), np.zeros(rows, np.int64)
            piece = Piece(rows, 0, none, none + page, none, 0, slot)
            self._inputs[rows] = inputs = torch.zeros(
                sum(room.sizes), dtype=torch.int64, device=self._memory.draws.device
            )
            self._backend.fill(inputs, room.inputs(piece, self._block, page, slot))
            self._passes[rows], pool = recorder(
                partial(self._static, room, inputs), partial(_settings, room, inputs), pool
            )
        return pool

    def fit(self, batch: Batch) -> bool:
        """Whether recorded passes compute the prompts of this batch, one by one."""
        if len(batch.asked) > len(batch.draws):
            return False  # somebody's targets are scored
        counts = batch.counts[batch.decodes :]
        if self._fixed:
            return True
        cuts = np.bincount(batch.cuts.sequence, minlength=1)
        return len(counts) <= MOST and int(counts.max()) <= self._sizes[-1] and int(cuts.max()) <= CUTS

    def pieces(self, batch: Batch) -> Iterator[Piece]:
        """The parts of all prompts, in order."""
        ends, columns = np.cumsum(batch.counts), setting_columns(batch.draws)
        drawing = {int(row): at for at, row in enumerate(batch.asked.tolist())}
        pairs = batch.cuts.pairs()
        for sequence in range(batch.decodes, len(batch.slots)):
            count, start, end = int(batch.counts[sequence]), int(batch.starts[sequence]), int(ends[sequence])
            cuts = [(after, column) for column, (which, after) in enumerate(pairs) if which == sequence]
            at = drawing.get(end - 1)
            settings = None if at is None else tuple([int(column[at]) for column in columns])
            for a, b in self._windows(start, count, [after for after, _ in cuts]):
                rows = slice(end - count + a, end - count + b)
                own = [(after - a, column) for after, column in cuts if a < after <= b]
                size = self._sizes[bisect_left(self._sizes, b - a)]
                yield Piece(
                    size,
                    (start + a) % size if self._fixed else 0,
                    batch.tokens[rows],
                    batch.page[rows],
                    batch.offset[rows],
                    start + a,
                    int(batch.slots[sequence]),
                    tuple([after for after, _ in own]),
                    own[0][1] if own else 0,
                    settings if b == count else None,
                )

    def run(self, piece: Piece, checkpoints: States, plain: bool) -> Output:
        """Compute a piece; its rungs go to the batch's checkpoints. A later piece may write to what is returned."""
        passed = self._passes[piece.rows]
        page, slot = self._spare
        self._backend.fill(self._inputs[piece.rows], Room(piece.rows).inputs(piece, self._block, page, slot))
        greedy = piece.settings is None or not piece.settings[0]
        output = passed.replay(1, plain, greedy)
        left, columns = len(piece.cuts), slice(piece.column, piece.column + len(piece.cuts))
        if left:
            checkpoints.conv[:, columns].copy_(self._checkpoints.conv[:, :left])
            checkpoints.recurrent[:, columns].copy_(self._checkpoints.recurrent[:, :left])
        return output

    @property
    def forward(self) -> CudaForward:
        """A pass to stand for them all: it shares their memory."""
        return self._passes[self._sizes[0]].forward

    @property
    def _spare(self) -> tuple[int, int]:
        """Page and slot that nobody reads."""
        return self._memory.keys[0].shape[0] - 1, self._memory.live.conv.shape[1] - 1

    @property
    def _block(self) -> int:
        return self._memory.keys[0].shape[1]

    def _windows(self, start: int, count: int, cuts: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Where the parts of `count` tokens begin and end that are computed in a pass each, with at most `CUTS` cuts."""
        if not self._fixed:
            yield 0, count
            return
        size, at = self._sizes[0], 0
        while at < count:
            end = min(count, at + size - (start + at) % size)
            inside = [after for after in cuts if at < after <= end]
            end = inside[CUTS - 1] if len(inside) > CUTS else end
            yield at, end
            at = end

    def _static(self, room: Room, inputs: Tensor) -> CudaForward:
        memory, backend = self._memory, self._backend
        rows, chunks, numbers = room.split(inputs)
        slot, last, pages, length, asked, lead = (numbers[1 + at, :1] for at in range(len(_NUMBERS)))
        tables, place = backend.tables(memory, 1), torch.arange(room.rows, device=inputs.device)
        table = tables.rows.index_select(0, slot)
        table = torch.where(torch.arange(tables.width, device=inputs.device) < pages, table, self._spare[0]).int()
        queries = torch.cat((torch.zeros_like(last), last)).int()
        paged = Paged(table, length.int(), queries, (place < lead) | (place >= last))
        first, size, column, begin, own_slot = chunks
        prompts = Prompts(Chunks(first, size, column, begin, own_slot, numbers[0], slot, last), paged)
        cos, sin = backend.angles(rows[1])
        return CudaForward(
            memory, self._checkpoints, rows[0], rows[2], rows[3], cos, sin, asked, backend.ring(memory), None, prompts,
            backend.kernels, Drawing(1, True, slot, None), splits=1 if self._fixed else 0,
        )  # fmt: skip


def _settings(room: Room, inputs: Tensor) -> Sequence[Tensor]:
    numbers = room.split(inputs)[2]
    return [numbers[1 + len(_NUMBERS) + at, :1] for at in range(SETTINGS)]
