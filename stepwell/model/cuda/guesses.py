"""Drafting on CUDA: the passes of the draft layer behind the last draw of each sequence, recorded together for a list of sizes.

Where a sequence stands only the device knows, since it has just seen which drafts are accepted: positions, pages and lengths are worked
out there. What lies behind a sequence's pages goes to the spare page, and attends to nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from stepwell.model.batch import Behind, Longs, Memory
from stepwell.model.cuda.forward import CudaForward
from stepwell.model.cuda.graphs import recorded
from stepwell.model.cuda.plans import Decodes, Drawing
from stepwell.model.drafter import Further
from stepwell.ops.triton import sampling
from stepwell.ops.triton.attention import splits_for

if TYPE_CHECKING:
    from stepwell.model.cuda.backend import CudaBackend

_COLUMNS = 3


class Guesses:
    """Passes of drafts over one memory. All that one has to know lies in a tensor: int64 [3, sequences], slots, starts, tokens that the
    pages hold."""

    __slots__ = ("_backend", "_further", "_inputs", "_last", "_memory", "_passes", "_sizes")

    def __init__(self, backend: CudaBackend, memory: Memory, further: Further, words: int) -> None:
        """`words`: of the vocabulary."""
        self._last = words - 1
        self._backend = backend
        self._memory = memory
        self._further = further
        self._sizes: list[int] = []
        self._inputs: dict[int, Tensor] = {}
        self._passes: dict[int, Callable[[], None]] = {}

    def record(self, sizes: Sequence[int], graphs: bool, pool: Any) -> None:
        """Largest first, so that the smaller ones find room in its memory."""
        self._sizes = sorted(set(sizes))
        for count in reversed(self._sizes):
            self._inputs[count] = inputs = torch.from_numpy(self._padding(count)).to(self._memory.draws.device)
            self._passes[count], pool = recorded(partial(self._draft, inputs), graphs, pool)

    def draft(self, behind: Behind) -> None:
        """Draft for each of these, into `memory.drafts`."""
        count, block = len(behind), self._memory.keys[0].shape[1]
        place = bisect_left(self._sizes, count)
        size = self._sizes[place] if place < len(self._sizes) else count
        inputs = self._padding(size)
        inputs[0, :count], inputs[1, :count] = behind.slots, behind.starts
        inputs[2, :count] = [len(table) * block for table in behind.tables]
        if size in self._passes:
            self._backend.fill(self._inputs[size], inputs)
            self._passes[size]()
        else:
            self._draft(self._backend.upload([inputs])[0])

    def _padding(self, count: int) -> Longs:
        inputs = np.zeros((_COLUMNS, count), np.int64)
        inputs[0] = self._memory.live.conv.shape[1] - 1
        return inputs

    @torch.inference_mode()
    def _draft(self, inputs: Tensor) -> None:
        (slots, starts, reach), memory, backend = inputs.unbind(), self._memory, self._backend
        (pages, block), (_, drafts) = memory.keys[0].shape[:2], memory.drafts.shape
        behind = torch.arange(drafts, device=slots.device).unsqueeze(1)
        positions = starts + memory.pending.index_select(0, slots) + behind
        there = positions < reach
        table = backend.tables(memory, 1).rows.index_select(0, slots)
        places = (positions // block).clamp(max=table.shape[1] - 1)
        page = torch.where(there, table.gather(1, places.T).T, pages - 1).long()
        offset, lengths = positions % block, torch.where(there, positions + 1, 0)
        cos, sin = (angle.view(*positions.shape, -1) for angle in backend.angles(positions.flatten()))
        lanes, splits = backend.lanes(slots, starts, memory), splits_for(slots.shape[0], memory.keys[0].shape[2])
        # where kernels are compiled ahead, what was drawn is garbage: it has to be a word of the vocabulary nevertheless
        tokens = memory.draws.index_select(0, slots).clamp(0, self._last)
        hidden = memory.live.hidden[0].index_select(0, slots)
        found = []
        for i in range(drafts):
            decodes = Decodes(slots.shape[0], 1, lanes, table, lengths[i], None, splits)
            forward = CudaForward(
                memory, memory.live, tokens, page[i], offset[i], cos[i], sin[i], None, backend.ring(memory), decodes, None,
                backend.kernels, Drawing(0, True, slots, None), ranks=backend.ranks,
            )  # fmt: skip
            hidden, logits = self._further(forward, hidden)
            tokens = sampling.greedy(logits).clamp(0, self._last)
            found.append(tokens)
        memory.drafts.index_copy_(0, slots, torch.stack(found, 1))
