"""What a pass's kernels read that does not depend on the layer, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.model.batch import Batch, Longs
from stepwell.model.cuda.chunk_plan import plan_chunks
from stepwell.ops.pending import Lanes
from stepwell.ops.triton.chunked import Chunks

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
class Prompts:
    """The sequences of several new tokens; row numbers count from the first of these rows.

    chunks        of the delta rule
    pages         int64 [blocks] of all sequences, with the row of the gathered keys at which each begins, and its tokens
    queries, keys int32 [sequences + 1], where each sequence begins and ends among rows, and among gathered keys
    """

    chunks: Chunks
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
        np.concatenate(([0], np.cumsum(counts))), np.concatenate(([0], key_ends)), *plan_chunks(counts, slots, cuts),
    ]  # fmt: skip
    pages, page_first, page_count, queries, keys, *chunks = upload(arrays)
    return Prompts(
        Chunks(*chunks), pages, page_first, page_count, queries.int(), keys.int(), tuple(counts.tolist()),
        tuple(lengths.tolist()),
    )  # fmt: skip
