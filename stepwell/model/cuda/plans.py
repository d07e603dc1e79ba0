"""What a pass's kernels read that does not depend on the layer, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.model.batch import Batch, Longs
from stepwell.ops.pending import Lanes
from stepwell.ops.triton.prompt import Rows

_STAGES = 4


class Uploader:
    """Sends arrays to the device in one copy from pinned memory. A buffer is used again once its last copy has ended."""

    __slots__ = ("_buffers", "_device", "_ended", "_next")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = [torch.empty(0, dtype=torch.int64)] * _STAGES
        self._ended: list[torch.cuda.Event | None] = [None] * _STAGES
        self._next = 0

    def __call__(self, arrays: Sequence[Longs]) -> list[Tensor]:
        """int64 tensors of the arrays' shapes. Does not wait for the device, unless it lags four uploads behind."""
        flat = np.concatenate([np.ravel(array) for array in arrays]) if arrays else np.empty(0, np.int64)
        parts = self._send(flat).split_with_sizes([array.size for array in arrays])
        return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]

    def _send(self, flat: Longs) -> Tensor:
        if self._device.type != "cuda":
            return torch.from_numpy(flat).to(self._device)
        at, self._next = self._next, (self._next + 1) % _STAGES
        ended = self._ended[at]
        if ended is not None:
            ended.synchronize()
        if self._buffers[at].numel() < flat.size:
            self._buffers[at] = torch.empty(max(4096, 2 * flat.size), dtype=torch.int64, pin_memory=True)
        pinned = self._buffers[at][: flat.size]
        pinned.numpy()[:] = flat
        sent = pinned.to(self._device, non_blocking=True)
        ended = torch.cuda.Event()  # type: ignore[no-untyped-call]
        ended.record()
        self._ended[at] = ended
        return sent


@dataclass(frozen=True, slots=True, eq=False)
class Decodes:
    """The first `count` rows: one token each. `table` int64 [count, width], `lengths` int64 [count] with the new token."""

    count: int
    lanes: Lanes
    table: Tensor
    lengths: Tensor
    splits: int


@dataclass(frozen=True, slots=True, eq=False)
class Wave:
    """Segments of prompts that may be folded together: at most one of each sequence.

    rows     int64, rows of the prompts in order; None: all of them
    ends     int64 [segments + 1], where each segment begins and ends among these rows; on the device, and the same on the host
    sequence int64 [segments]
    starts   position of each segment's first token
    cuts     (segment, column) as two int64 tensors: states that go to checkpoints
    """

    rows: Tensor | None
    ends: Tensor
    host_ends: Tensor
    sequence: Tensor
    starts: tuple[int, ...]
    cut_segments: Tensor
    cut_columns: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Prompts:
    """The sequences of several new tokens; row numbers count from the first of these rows.

    rows          of each token: its sequence's first row, and its live slot
    slots         int64 [sequences]
    last          int64 [sequences], rows behind the last token of each
    cut_rows      int64 [cuts], rows behind the token of each cut; `columns` int64 [cuts], 0 … cuts − 1
    pages         int64 [blocks] of all sequences, with the row of the gathered keys at which each begins, and its tokens
    queries, keys int32 [sequences + 1], where each sequence begins and ends among rows, and among gathered keys
    """

    rows: Rows
    slots: Tensor
    last: Tensor
    cut_rows: Tensor
    columns: Tensor
    waves: tuple[Wave, ...]
    pages: Tensor
    page_first: Tensor
    page_count: Tensor
    queries: Tensor
    keys: Tensor
    counts: tuple[int, ...]
    lengths: tuple[int, ...]


def padded_table(tables: Sequence[Ints], width: int, fill: int) -> Longs:
    """Block tables as int64 [n, width]."""
    out = np.full((len(tables), width), fill, np.int64)
    for row, table in enumerate(tables):
        used = min(width, len(table))
        out[row, :used] = table[:used]
    return out


def plan_prompts(batch: Batch, block: int, upload: Uploader) -> Prompts:
    first = batch.decodes
    starts, counts, slots = batch.starts[first:], batch.counts[first:], batch.slots[first:]
    ends = np.cumsum(counts)
    firsts, lengths = ends - counts, starts + counts
    cuts = [(sequence - first, after) for sequence, after in batch.cuts.pairs()]
    blocks = -(-lengths // block)
    key_ends = np.cumsum(lengths)
    tables = [np.asarray(table[:n], np.int64) for table, n in zip(batch.tables[first:], blocks.tolist(), strict=True)]
    inner = [np.arange(n, dtype=np.int64) * block for n in blocks.tolist()]
    base, total = np.repeat(key_ends - lengths, blocks), np.repeat(lengths, blocks)
    offsets = np.concatenate(inner)
    segments = _waves(counts, cuts)
    waves = [_wave_arrays(wave, firsts) for wave in segments]
    positions = [tuple(int(starts[sequence]) + begin for sequence, begin, _, _ in wave) for wave in segments]
    arrays: list[Longs] = [
        np.repeat(firsts, counts), np.repeat(slots, counts), slots, ends,
        np.array([firsts[sequence] + after for sequence, after in cuts], np.int64), np.arange(len(cuts), dtype=np.int64),
        np.concatenate(tables), base + offsets, np.minimum(block, total - offsets),
        np.concatenate(([0], ends)), np.concatenate(([0], key_ends)), *(array for wave in waves for array in wave),
    ]  # fmt: skip
    sent = upload(arrays)
    own = [sent[11 + 5 * i : 16 + 5 * i] for i in range(len(waves))]
    return Prompts(
        Rows(sent[0], sent[1]), sent[2], sent[3], sent[4], sent[5],
        tuple(_wave(*parts, int(ends[-1])) for parts in zip(own, waves, positions, strict=True)),
        sent[6], sent[7], sent[8], sent[9].int(), sent[10].int(), tuple(counts.tolist()), tuple(lengths.tolist()),
    )  # fmt: skip


def _waves(counts: Longs, cuts: Sequence[tuple[int, int]]) -> list[list[tuple[int, int, int, int]]]:
    """Segments (sequence, begin, end, column or −1): wave i holds the i-th of each sequence. Cuts divide sequences into segments."""
    waves: list[list[tuple[int, int, int, int]]] = []
    for sequence, count in enumerate(counts.tolist()):
        own = [(after, column) for column, (which, after) in enumerate(cuts) if which == sequence]
        begin = 0
        for i, (end, column) in enumerate([*own, (count, -1)]):
            if i == len(waves):
                waves.append([])
            waves[i].append((sequence, begin, end, column))
            begin = end
    return waves


def _wave_arrays(wave: Sequence[tuple[int, int, int, int]], firsts: Longs) -> list[Longs]:
    """Rows, ends, sequences, segments with a cut, their columns."""
    rows = np.concatenate([np.arange(firsts[s] + begin, firsts[s] + end) for s, begin, end, _ in wave])
    ends = np.cumsum([0, *(end - begin for _, begin, end, _ in wave)])
    cut = [(i, column) for i, (_, _, _, column) in enumerate(wave) if column >= 0]
    segments, columns = np.array(cut, np.int64).reshape(-1, 2).T
    sequences = np.array([sequence for sequence, _, _, _ in wave], np.int64)
    return [rows.astype(np.int64), ends.astype(np.int64), sequences, segments, columns]


def _wave(sent: Sequence[Tensor], arrays: Sequence[Longs], starts: tuple[int, ...], rows: int) -> Wave:
    whole = sent[0].numel() == rows
    return Wave(None if whole else sent[0], sent[1], torch.from_numpy(arrays[1]), sent[2], starts, sent[3], sent[4])
