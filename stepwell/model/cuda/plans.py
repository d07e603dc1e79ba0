"""What a pass's kernels read that does not depend on the layer, on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from stepwell.model.batch import Batch, Draws, Longs
from stepwell.model.cuda.chunk_plan import plan_chunks
from stepwell.ops.pending import Lanes
from stepwell.ops.triton.chunked import Chunks
from stepwell.ops.triton.sampling import Settings

_NONE: Longs = np.empty(0, np.int64)
_ODD: Longs = np.zeros(1, np.int64)
New: TypeAlias = tuple[Longs, Longs]
"""Cells of the flattened block tables, and what they will hold."""
NOTHING_NEW: New = (_NONE, _NONE)

_STAGES = 16


class Uploader:
    """Sends arrays to the device in one copy from pinned memory. A buffer is used again once its last copy has ended."""

    __slots__ = ("_buffers", "_device", "_ended", "_next")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = [torch.empty(0, dtype=torch.int64)] * _STAGES
        self._ended: list[torch.cuda.Event | None] = [None] * _STAGES
        self._next = 0

    def __call__(self, arrays: Sequence[Longs]) -> list[Tensor]:
        """int64 tensors of the arrays' shapes. Does not wait for the device, unless it lags sixteen uploads behind.

        Each begins at a multiple of 16 bytes: a kernel is compiled once more for a pointer that does not.
        """
        rooms = [array.size + array.size % 2 for array in arrays]
        target = torch.empty(sum(rooms), dtype=torch.int64, device=self._device)
        self.into(target, [part for array in arrays for part in (array, _ODD[: array.size % 2])])
        parts = target.split_with_sizes(rooms)
        return [part[: array.size].view(array.shape) for part, array in zip(parts, arrays, strict=True)]

    def into(self, target: Tensor, arrays: Sequence[Longs]) -> None:
        """Fill `target`, int64 [sum of the sizes], with the arrays end to end, behind what the device has been told to do so far."""
        if not target.numel():
            return
        at, self._next = self._next, (self._next + 1) % _STAGES
        ended = self._ended[at]
        if ended is not None:
            ended.synchronize()
        cuda = self._device.type == "cuda"
        if self._buffers[at].numel() < target.numel():
            self._buffers[at] = torch.empty(max(4096, 2 * target.numel()), dtype=torch.int64, pin_memory=cuda)
        staged = self._buffers[at][: target.numel()]
        np.concatenate([np.ravel(array) for array in arrays], out=staged.numpy())
        target.view(-1).copy_(staged, non_blocking=True)
        if cuda:
            ended = torch.cuda.Event()  # type: ignore[no-untyped-call]
            ended.record()
            self._ended[at] = ended


class Tables:
    """The block tables of all live slots, where kernels read them: int32 [slots, width]. A batch sends what is new in them."""

    __slots__ = ("rows",)

    def __init__(self, slots: int, width: int, device: torch.device) -> None:
        self.rows = torch.zeros(slots, width, dtype=torch.int32, device=device)

    @property
    def width(self) -> int:
        return self.rows.shape[1]

    def new(self, batch: Batch) -> New:
        """What changes with this batch. O(sequences + new entries)."""
        lengths = np.fromiter(map(len, batch.tables), np.int64, len(batch.tables))
        grown = (batch.known < lengths).nonzero()[0].tolist()
        if not grown:
            return NOTHING_NEW
        firsts, ends = batch.known.tolist(), lengths.tolist()
        starts = (batch.slots * self.width).tolist()
        cells = [np.arange(starts[row] + firsts[row], starts[row] + ends[row]) for row in grown]
        return np.concatenate(cells), np.concatenate([batch.tables[row][firsts[row] :] for row in grown]).astype(
            np.int64
        )

    def store(self, cells: Tensor, values: Tensor) -> None:
        if cells.numel():
            self.rows.view(-1).index_copy_(0, cells, values.int())

    def widened(self, width: int) -> Tables:
        """The same tables with room for more pages."""
        wider = Tables(self.rows.shape[0], width, self.rows.device)
        wider.rows[:, : self.width] = self.rows
        return wider


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """The first rows: `width` for each of `count` sequences.

    table    int32 [count, pages]
    lengths  int64 [count], tokens with the new ones
    counts   int64 [count], new ones: the rows behind them are padding; None: one each
    """

    count: int
    width: int
    lanes: Lanes
    table: Tensor
    lengths: Tensor
    counts: Tensor | None
    splits: int

    @property
    def rows(self) -> int:
        return self.count * self.width


@dataclass(frozen=True, slots=True, eq=False)
class Gathered:
    """Attention over keys and values that are gathered out of their pages first.

    pages         int64 [blocks] of all sequences; `page_first` the row of the gathered keys at which each begins, `page_count` its tokens
    queries, keys int32 [sequences + 1], where each sequence begins and ends among rows, and among gathered keys
    counts, lengths  the same as sizes, on the host
    """

    pages: Tensor
    page_first: Tensor
    page_count: Tensor
    queries: Tensor
    keys: Tensor
    counts: tuple[int, ...]
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Paged:
    """Attention of sequences straight from their pages, of which nothing has to be known on the host. The last row of a sequence that
    attends is its last token.

    table    int32 [sequences, width]
    length   int32 [sequences], tokens with those of this pass
    queries  int32 [sequences + 1], where each sequence begins and ends among rows that attend
    padding  bool [rows], rows whose result is 0
    """

    table: Tensor
    length: Tensor
    queries: Tensor
    padding: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """The sequences of several new tokens; row numbers count from the first of these rows.

    before  what is pending in their slots, to be folded first; None where nothing can be
    """

    chunks: Chunks
    keys: Gathered | Paged
    before: Lanes | None


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """How the tokens of a pass are drawn.

    sampled    rows that draw, of those asked for
    plain      they are drawn from the model's own logits
    slots      int64 [sampled], live slots that remember their draws
    settings   None: every row takes its likeliest token
    """

    sampled: int
    plain: bool
    slots: Tensor
    settings: Settings | None


SETTINGS = 6


def setting_columns(draws: Draws) -> list[Longs]:
    """Six int64 columns for `settings_from`; the bits of float64 where numbers are real."""
    reals = (draws.temperature, draws.top_p, draws.min_p)
    return [*(np.ascontiguousarray(column).view(np.int64) for column in reals), draws.top_k, draws.seed, draws.index]


def settings_from(sent: Sequence[Tensor]) -> Settings:
    temperature, top_p, min_p = (column.view(torch.float64).float() for column in sent[:3])
    top_k, seed, index = sent[3:]
    return Settings(temperature, top_k.int(), top_p, min_p, seed, index)


def plan_prompts(
    batch: Batch, block: int, lanes: Callable[[Tensor, Tensor], Lanes | None]
) -> tuple[list[Longs], Callable[[Sequence[Tensor]], Prompts]]:
    """What has to be sent for the sequences of several new tokens, and what makes their plan of it once it is there.

    `lanes` makes of slots and starts what is pending in these slots.
    """
    first = batch.decodes
    starts, counts, slots = batch.starts[first:], batch.counts[first:], batch.slots[first:]
    lengths = starts + counts
    cuts = [(sequence - first, after) for sequence, after in batch.cuts.pairs()]
    blocks = -(-lengths // block)
    key_ends = np.cumsum(lengths)
    tables = [np.asarray(table[:n], np.int64) for table, n in zip(batch.tables[first:], blocks.tolist(), strict=True)]
    inner = [np.arange(n, dtype=np.int64) * block for n in blocks.tolist()]
    base, total = np.repeat(key_ends - lengths, blocks), np.repeat(lengths, blocks)
    offsets = np.concatenate(inner)
    arrays: list[Longs] = [
        np.concatenate(tables), base + offsets, np.minimum(block, total - offsets),
        np.concatenate(([0], np.cumsum(counts))), np.concatenate(([0], key_ends)), starts, *plan_chunks(counts, slots, cuts),
    ]  # fmt: skip

    def made(sent: Sequence[Tensor]) -> Prompts:
        pages, page_first, page_count, queries, keys, first, *fields = sent
        chunks, sizes = Chunks(*fields), (tuple(counts.tolist()), tuple(lengths.tolist()))
        gathered = Gathered(pages, page_first, page_count, queries.int(), keys.int(), *sizes)
        return Prompts(chunks, gathered, lanes(chunks.slots, first))

    return arrays, made
