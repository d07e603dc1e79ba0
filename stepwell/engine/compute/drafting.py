"""Verifies drafts, and makes the next ones, around the passes of a runner: all on the device.

    pass ▸ draws ▸ which drafts are accepted ▸ tokens on their way to the host ▸ drafts for the next step

The host goes on with the tokens while the device still drafts: the next step says which drafts it takes, and never what they are.

A row draws with its own count of earlier draws, so the answer is the one that would come without drafts: whatever is drafted, and at
any temperature. Drafts are the draft layer's likeliest tokens, one pass of that layer for each.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from stepwell.engine.compute.batching import Laid
from stepwell.model.batch import Behind, Longs, Memory
from stepwell.model.decoder import HybridDecoder
from stepwell.model.drafter import DraftBackend
from stepwell.ops.accept import Drawn, Forced, Standing


class Drafting:
    """The drafts of all live slots."""

    __slots__ = ("_backend", "_decoder", "_forced", "_memory", "_standing")

    def __init__(self, decoder: HybridDecoder, memory: Memory, forced: float | None = None) -> None:
        """`forced`: the share of drafts that is accepted whatever is drawn, for benches."""
        backend = decoder.backend
        assert isinstance(backend, DraftBackend), "a decoder that drafts has a backend that does"
        self._backend: DraftBackend = backend
        self._decoder = decoder
        self._memory = memory
        self._standing = Standing(memory.draws, memory.pending, memory.live.hidden[0], memory.drafts)
        self._forced = None if forced is None else Forced(round(1000 * forced), decoder.config.shape.vocab)

    def settle(self, laid: Laid, rows: Tensor, tokens: Tensor) -> Tensor:
        """See which drafts the drawn `tokens` accept; their live slots stand behind them then. `rows` are the decoder's, of each token.
        Returns the tokens, NO_TOKEN behind a draft that was not accepted."""
        batch, backend = laid.batch, self._backend
        sequences, firsts, counts = np.unique(laid.sampled, return_index=True, return_counts=True)
        if not len(counts) or int(counts.max()) == 1:
            return tokens
        numbers = batch.slots[sequences], firsts, counts, batch.starts[sequences]
        drawn = Drawn(*backend.upload([array.astype(np.int64) for array in numbers]))
        # a decode always draws
        return backend.settle(tokens, rows, drawn, batch.decodes, self._standing, self._forced)

    def draft(self, laid: Laid) -> None:
        """Draft behind the last draw of each sequence whose next token the model alone decides."""
        batch, looks_back = laid.batch, [params.looks_back for params in laid.asked.params]
        sequences: Longs = np.unique(laid.sampled[~np.array(looks_back, np.bool_)])
        if not len(sequences):
            return
        folded = np.where(sequences < batch.decodes, 0, batch.counts[sequences])
        tables = tuple([batch.tables[at] for at in sequences.tolist()])
        self._decoder.guess(Behind(batch.slots[sequences], batch.starts[sequences] + folded, tables), self._memory)
