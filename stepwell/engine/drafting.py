"""Verifies drafts, and makes the next ones, around the passes of a runner: all on the device.

    pass ▸ draws ▸ which drafts are accepted ▸ tokens on their way to the host ▸ drafts for the next step

The host goes on with the tokens while the device still drafts: the next step says which drafts it takes, and never what they are.

A row draws with its own count of earlier draws, so the answer is the one that would come without drafts: whatever is drafted, and at
any temperature. Drafts are the draft layer's likeliest tokens, one pass of that layer for each.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from stepwell.engine.batching import Laid
from stepwell.model.batch import Behind, Longs, Memory
from stepwell.model.decoder import HybridDecoder
from stepwell.ops.accept import Drawn, accept


class Drafting:
    """The drafts of all live slots."""

    __slots__ = ("_decoder", "_forced", "_memory")

    def __init__(self, decoder: HybridDecoder, memory: Memory, forced: float | None = None) -> None:
        """`forced`: the share of drafts that is accepted whatever is drawn, for benches."""
        self._decoder = decoder
        self._memory = memory
        self._forced = forced

    def settle(self, laid: Laid, rows: Tensor, tokens: Tensor) -> Tensor:
        """See which drafts the drawn `tokens` accept; their live slots stand behind them then. `rows` are the decoder's, of each token.
        Returns the tokens, NO_TOKEN behind a draft that was not accepted."""
        batch, memory = laid.batch, self._memory
        sequences, firsts, counts = np.unique(laid.sampled, return_index=True, return_counts=True)
        if not len(counts) or int(counts.max()) == 1:
            return tokens
        several = sequences[: batch.decodes]  # a decode always draws
        numbers = batch.slots[sequences], firsts, counts, batch.starts[sequences]
        slot, first, count, start = self._decoder.backend.upload([array.astype(np.int64) for array in numbers])
        found = accept(
            tokens, memory.drafts, Drawn(slot, first, count, start), self._forced, self._decoder.config.shape.vocab
        )
        memory.draws.index_copy_(0, slot, found.last.clamp_min(0))
        own, taken = slot[: len(several)], found.taken[: len(several)]
        memory.pending.index_copy_(0, own, taken)
        memory.live.hidden[0].index_copy_(0, own, rows.index_select(0, first[: len(several)] + taken - 1))
        return found.tokens

    def draft(self, laid: Laid) -> None:
        """Draft behind the last draw of each sequence whose next token the model alone decides."""
        batch, looks_back = laid.batch, [params.looks_back for params in laid.asked.params]
        sequences: Longs = np.unique(laid.sampled[~np.array(looks_back, np.bool_)])
        if not len(sequences):
            return
        folded = np.where(sequences < batch.decodes, 0, batch.counts[sequences])
        tables = tuple([batch.tables[at] for at in sequences.tolist()])
        self._decoder.guess(Behind(batch.slots[sequences], batch.starts[sequences] + folded, tables), self._memory)
