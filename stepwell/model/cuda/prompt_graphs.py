"""Passes of up to four prompts, recorded for a list of sizes: prompts whose tokens fit together take the smallest that holds them.

All that a pass has to know lies in one int64 tensor that stays:

    tokens, positions, page, offset, row before [rows each] │ chunks [5 each] │ rows before cuts │ of each prompt: where it stands, its
    slot │ of each draw

Rows left over are padding: they write to the spare page, what they attend to is dropped, and they are folded into no state. Prompts left
over have no rows and the spare slot.

With `fixed` there is one size, and passes are windows that lie at its multiples: a token's row depends on its position alone, and so
does the order in which its numbers are summed. A prompt computed in other parts, or from a rung on, is then the same to the bit.

    position   0            2,048          4,096                        a rung at 2,496, the prompt's end at 4,300
    cold       │ all rows    │ all rows     │ 204 rows, padding │
    resumed                  │ padding, 1,600 rows │ 204 rows, padding │
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
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
from stepwell.model.torch_plans import Carrying
from stepwell.ops.triton.chunked import CHUNK, PAD, Chunks
from stepwell.ops.triton.recurrent import TAPS

if TYPE_CHECKING:
    from stepwell.model.cuda.backend import CudaBackend

CUTS = 6
"""Most rungs that a recorded pass leaves on its way."""
SEQUENCES = 4
"""Most prompts of a recorded pass."""
MOST = 2
"""Passes for the prompts of a step: each reads the weights once more. Beyond that, prompts are computed as they come."""
_PLACES = ("slot", "last", "pages", "length", "start")
"""What there is of each prompt: its live slot, the row behind its last, pages and tokens with those of this pass, tokens before it."""
_DRAWS = ("slot", "asked")
"""What there is of each draw, before its settings: a live slot, a row."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """New tokens of a prompt.

    tokens, page, offset  int64
    start     position of the first
    slot      live slot
    cuts      tokens before each cut
    settings  of its draw; None: it draws no token
    """

    tokens: Longs
    page: Longs
    offset: Longs
    start: int
    slot: int
    cuts: tuple[int, ...] = ()
    settings: tuple[int, ...] | None = None

    @property
    def end(self) -> int:
        return self.start + len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Piece:
    """Parts of prompts for one pass, end to end.

    rows      of the pass; `lead` of them stand before the tokens
    column    of the batch's checkpoints that the first cut goes to; the others follow
    """

    rows: int
    lead: int
    parts: tuple[Part, ...]
    column: int = 0

    @property
    def cuts(self) -> list[tuple[int, int]]:
        """(part, tokens of it before the cut), in order."""
        return [(at, after) for at, part in enumerate(self.parts) for after in part.cuts]

    @property
    def draws(self) -> list[tuple[int, ...]]:
        """Settings of each draw."""
        return [part.settings for part in self.parts if part.settings is not None]


@dataclass(frozen=True, slots=True)
class Room:
    """Where things lie in the inputs of a pass of `rows`, a multiple of 64, and so many prompts. Everything begins at a multiple of 16
    bytes."""

    rows: int
    sequences: int

    @property
    def chunks(self) -> int:
        """A prompt, padding before or behind, and a cut may each leave a chunk short; one more stands behind all."""
        return _even(self.rows // CHUNK + self.sequences + CUTS + 3)

    @property
    def width(self) -> int:
        """Of a row of numbers: `ends` has one more than there are prompts."""
        return _even(self.sequences + 1)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        numbers = self.width * (2 + len(_PLACES) + len(_DRAWS) + SETTINGS)
        return 5 * self.rows, 5 * self.chunks, CUTS, numbers

    def split(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """[5, rows], [5, chunks], the rows before cuts, and the numbers [n, width]: lead and end, `ends` of the chunks, places, draws,
        settings."""
        rows, chunks, cut_rows, numbers = inputs.split_with_sizes(self.sizes)
        return rows.view(5, -1), chunks.view(5, -1), cut_rows, numbers.view(-1, self.width)

    def inputs(self, piece: Piece, block: int, page: int, slot: int) -> Longs:
        """What the pass reads for this piece; `page` and `slot` are spare."""
        counts = np.array([len(part.tokens) for part in piece.parts])
        slots = np.array([part.slot for part in piece.parts])
        plan = plan_chunks(counts, slots, piece.cuts)
        lasts = piece.lead + plan[-1]
        rows = self._rows(piece, lasts.tolist(), page)
        chunks = self._chunks(piece.lead, int(lasts[-1]), plan, slot)
        numbers = self._numbers(piece, lasts, plan[5], block, slot)
        cut_rows = np.zeros(CUTS, np.int64)
        cut_rows[: len(piece.cuts)] = [lasts[at] - counts[at] + after - 1 for at, after in piece.cuts]
        return np.concatenate((rows.ravel(), chunks.ravel(), cut_rows, numbers.ravel()))

    def _rows(self, piece: Piece, lasts: Sequence[int], page: int) -> Longs:
        rows = np.zeros((5, self.rows), np.int64)
        rows[2] = page
        rows[4] = np.arange(self.rows) + self.sequences - 1
        for at, (part, last) in enumerate(zip(piece.parts, lasts, strict=True)):
            own = slice(last - len(part.tokens), last)
            rows[:4, own] = part.tokens, np.arange(part.start, part.end), part.page, part.offset
            rows[4, own.start] = at
        return rows

    def _chunks(self, lead: int, end: int, plan: Sequence[Longs], slot: int) -> Longs:
        """The chunks of all parts, then those of padding, which say that their sequence begins behind all parts."""
        first, size, column, begin, own_slot = plan[:5]
        chunks = np.zeros((5, self.chunks), np.int64)
        chunks[2], chunks[3], chunks[4] = PAD, end, slot
        chunks[:, : len(first)] = first + lead, size, column, begin + lead, own_slot
        padding = [
            (at, min(CHUNK, stop - at)) for a, stop in ((0, lead), (end, self.rows)) for at in range(a, stop, CHUNK)
        ]
        chunks[:2, len(first) : len(first) + len(padding)] = np.array(padding, np.int64).reshape(-1, 2).T
        return chunks

    def _numbers(self, piece: Piece, lasts: Longs, ends: Longs, block: int, slot: int) -> Longs:
        count, draws, end = len(piece.parts), piece.draws, int(lasts[-1])
        whole, own_ends = np.zeros((1, self.width), np.int64), np.full((1, self.width), ends[-1])
        whole[0, :2], own_ends[0, : len(ends)] = (piece.lead, end), ends
        lengths = np.array([part.end for part in piece.parts])
        places = np.repeat(np.array([[slot], [end], [0], [1], [0]]), self.width, 1)
        starts = [part.start for part in piece.parts]
        places[:, :count] = [part.slot for part in piece.parts], lasts, -(-lengths // block), lengths, starts
        drawn = np.zeros((len(_DRAWS) + SETTINGS, self.width), np.int64)
        drawn[0] = slot
        drawing = [at for at, part in enumerate(piece.parts) if part.settings is not None]
        if draws:
            drawn[:2, : len(draws)] = places[0, drawing], lasts[drawing] - 1
            drawn[2:, : len(draws)] = np.array(draws, np.int64).T
        return np.concatenate((whole, own_ends, places, drawn))


def _even(count: int) -> int:
    return count + count % 2


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
            conv.new_zeros(conv.shape[0], CUTS, TAPS - 1, conv.shape[3]),
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
            room, none = Room(rows, self._sequences), np.zeros(rows, np.int64)
            piece = Piece(rows, 0, (Part(none, none + page, none, 0, slot),))
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
        first = batch.decodes
        return self._fixed or len(self._groups(batch.counts[first:], _cuts_of(batch)[first:])) in range(1, MOST + 1)

    def pieces(self, batch: Batch) -> Iterator[Piece]:
        """The parts of all prompts, in order."""
        first, cuts = batch.decodes, _cuts_of(batch)
        parts, column = list(_parts(batch)), int(cuts[:first].sum())
        groups: Iterable[tuple[Part, ...]] = ((part,) for whole in parts for part in self._windows(whole))
        if not self._fixed:
            together = self._groups(batch.counts[first:], cuts[first:])
            groups = (tuple([parts[at] for at in group]) for group in together)
        for group in groups:
            count = sum(len(part.tokens) for part in group)
            size = self._sizes[bisect_left(self._sizes, count)]
            yield Piece(size, group[0].start % size if self._fixed else 0, group, column)
            column += sum(len(part.cuts) for part in group)

    def run(self, piece: Piece, checkpoints: States, plain: bool) -> Output:
        """Compute a piece; its rungs go to the batch's checkpoints. Returns a row for each draw, which a later piece may write to."""
        passed, room = self._passes[piece.rows], Room(piece.rows, self._sequences)
        page, slot = self._spare
        self._backend.fill(self._inputs[piece.rows], room.inputs(piece, self._block, page, slot))
        draws, left = piece.draws, len(piece.cuts)
        output = passed.replay(len(draws), plain, greedy=not any(settings[0] for settings in draws))
        columns = slice(piece.column, piece.column + left)
        if left:
            checkpoints.conv[:, columns].copy_(self._checkpoints.conv[:, :left])
            checkpoints.recurrent[:, columns].copy_(self._checkpoints.recurrent[:, :left])
            checkpoints.hidden[:, columns].copy_(self._checkpoints.hidden[:, :left])
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

    @property
    def _sequences(self) -> int:
        return 1 if self._fixed else SEQUENCES

    def _groups(self, counts: Longs, cuts: Longs) -> list[list[int]]:
        """Prompts that are computed in a pass each, in order; none if together they are longer than the longest pass, or leave too many
        rungs."""
        if int(counts.sum()) > self._sizes[-1] or int(cuts.max()) > CUTS:
            return []
        groups: list[list[int]] = [[]]
        left = 0
        for at, own in enumerate(cuts.tolist()):
            if len(groups[-1]) == SEQUENCES or left + own > CUTS:
                groups.append([])
                left = 0
            groups[-1].append(at)
            left += own
        return groups

    def _windows(self, whole: Part) -> Iterator[Part]:
        """Its parts that are computed in a pass each: they end at multiples of the one size, and have at most `CUTS` cuts."""
        size, at, count = self._sizes[0], 0, len(whole.tokens)
        while at < count:
            end = min(count, at + size - (whole.start + at) % size)
            inside = [after for after in whole.cuts if at < after <= end]
            end = inside[CUTS - 1] if len(inside) > CUTS else end
            rows = slice(at, end)
            yield Part(
                whole.tokens[rows], whole.page[rows], whole.offset[rows], whole.start + at, whole.slot,
                tuple([after - at for after in inside if after <= end]), whole.settings if end == count else None,
            )  # fmt: skip
            at = end

    def _static(self, room: Room, inputs: Tensor) -> CudaForward:
        memory, backend = self._memory, self._backend
        rows, chunks, cut_rows, numbers = room.split(inputs)
        lead, end = numbers[0, 0], numbers[0, 1]
        ends, (slot, last, pages, length, start) = numbers[1, : room.sequences + 1], numbers[2:7, : room.sequences]
        drawers, asked = numbers[7:9, : room.sequences]
        tables, place = backend.tables(memory, 1), torch.arange(room.rows, device=inputs.device)
        table = tables.rows.index_select(0, slot)
        held = torch.arange(tables.width, device=inputs.device) < pages[:, None]
        table = torch.where(held, table, self._spare[0]).int()
        queries = torch.cat((torch.zeros_like(last[:1]), last)).int()
        paged = Paged(table, length.int(), queries, (place < lead) | (place >= end))
        first, size, column, begin, own_slot = chunks
        chunked = Chunks(first, size, column, begin, own_slot, ends, slot, last)
        prompts = Prompts(chunked, paged, backend.pending(slot, start, memory))
        cos, sin = backend.angles(rows[1])
        carrying = None
        if memory.live.hidden.shape[0]:
            carrying = Carrying(slot, rows[4], slot, last - 1, cut_rows)
        return CudaForward(
            memory, self._checkpoints, rows[0], rows[2], rows[3], cos, sin, asked, backend.ring(memory), None, prompts,
            backend.kernels, Drawing(room.sequences, True, drawers, None), carrying, splits=1 if self._fixed else 0,
            ranks=backend.ranks,
        )  # fmt: skip


def _parts(batch: Batch) -> Iterator[Part]:
    """The prompts of a batch, in order."""
    ends, columns = np.cumsum(batch.counts), setting_columns(batch.draws)
    drawing = {int(row): at for at, row in enumerate(batch.asked.tolist())}
    pairs = batch.cuts.pairs()
    for sequence in range(batch.decodes, len(batch.slots)):
        end = int(ends[sequence])
        rows, at = slice(end - int(batch.counts[sequence]), end), drawing.get(end - 1)
        yield Part(
            batch.tokens[rows],
            batch.page[rows],
            batch.offset[rows],
            int(batch.starts[sequence]),
            int(batch.slots[sequence]),
            tuple([after for which, after in pairs if which == sequence]),
            None if at is None else tuple([int(column[at]) for column in columns]),
        )


def _cuts_of(batch: Batch) -> Longs:
    """Cuts of each sequence."""
    return np.bincount(batch.cuts.sequence, minlength=len(batch.slots))


def _settings(room: Room, inputs: Tensor) -> Sequence[Tensor]:
    return room.split(inputs)[3][-SETTINGS:, : room.sequences].unbind()
