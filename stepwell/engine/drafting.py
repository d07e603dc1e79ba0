"""Verifies drafts, and makes the next ones, around the passes of a runner.

    pass      token  draft 1  draft 2  draft 3          one decode computes all of them
    drawn     a      b        c        d                what each row draws, as it would without drafts
              │      └ is draft 2? no: c and d are of a past that is not
              └ is draft 1? yes
    result    a b                                       the live state folds the token and draft 1; the next step begins at b

A row draws with its own count of earlier draws, so the answer is the one that would come without drafts: whatever is drafted, and at
any temperature. Drafts are the draft layer's likeliest tokens, one pass of that layer for each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.engine.batching import Laid
from stepwell.model.batch import Batch, Cuts, Draws, Longs, Memory
from stepwell.model.decoder import HybridDecoder
from stepwell.model.drafter import DraftBackend
from stepwell.ops.sampling import NO_TOKEN
from stepwell.sched.step import FIRST_DRAFT, LAST_DRAW
from stepwell.store.device import Images

_NONE = np.empty(0, np.int64)
_NO_DRAWS = Draws(np.empty(0), np.empty(0), np.empty(0), _NONE, _NONE, _NONE, _NONE)


@dataclass(frozen=True, slots=True, eq=False)
class _Next:
    """An answer to draft for: its next token, which has been drawn, stands at `position`."""

    slot: int
    position: int
    table: Ints


class Drafting:
    """The drafts of all live slots. `block` tokens are on a page."""

    __slots__ = ("_backend", "_block", "_count", "_decoder", "_memory")

    def __init__(self, decoder: HybridDecoder, memory: Memory, block: int) -> None:
        assert isinstance(decoder.backend, DraftBackend), "a decoder that drafts has a backend that does"
        self._decoder = decoder
        self._backend: DraftBackend = decoder.backend
        self._memory = memory
        self._count = memory.drafts.shape[1]
        self._block = block

    def carry(self, laid: Laid, rows: Tensor, inner: Images) -> None:
        """Keep the rows that a pass has left behind its sequences, in their slots, and before its cuts, in the images."""
        carried, (slots,) = rows[laid.carried :], self._backend.upload([laid.batch.slots])
        ends = len(laid.batch.slots)
        self._memory.hidden[0].index_copy_(0, slots, carried[:ends])
        inner.hidden[0].copy_(carried[ends:])

    def settle(self, laid: Laid, rows: Tensor, tokens: Tensor) -> Tensor:
        """See which drafts the drawn `tokens` accept, and draft anew behind the last of them. Returns them, NO_TOKEN behind a draft that
        was not accepted. Waits for the device."""
        drawn = tokens.tolist()
        drafts = self._memory.drafts.tolist()
        following: list[_Next] = []
        for sequence, first, count in _groups(laid.sampled):
            own, slot = drawn[first : first + count], int(laid.batch.slots[sequence])
            taken = _taken(own, drafts[slot])
            drawn[first + taken : first + count] = [NO_TOKEN] * (count - taken)
            if sequence < laid.batch.decodes:
                self._memory.pending[slot] = taken
                self._memory.hidden[0, slot] = rows[first + taken - 1]
            self._memory.draws[slot] = max(0, own[taken - 1])
            if own[0] != NO_TOKEN and not laid.asked.params[first].looks_back:
                computed = taken if sequence < laid.batch.decodes else int(laid.batch.counts[sequence])
                position = int(laid.batch.starts[sequence]) + computed
                following.append(_Next(slot, position, laid.batch.tables[sequence]))
        self._draft(following)
        return torch.tensor(drawn, dtype=torch.int64)

    def _draft(self, following: list[_Next]) -> None:
        """Draft for each as far as its pages reach."""
        hidden = self._memory.hidden[0].index_select(0, self._sent([one.slot for one in following]))
        for i in range(self._count):
            reach = [at for at, one in enumerate(following) if one.position + i < len(one.table) * self._block]
            following = [following[at] for at in reach]
            if not following:
                return
            forward = self._backend.glance(self._batch(following, i), self._memory)
            hidden = self._decoder.draft(forward, hidden.index_select(0, self._sent(reach)))
            chosen = self._decoder.logits(hidden).argmax(-1)
            self._memory.drafts[:, i].index_copy_(0, self._sent([one.slot for one in following]), chosen)

    def _batch(self, following: list[_Next], i: int) -> Batch:
        """A pass over one token each: the drawn one, or the draft before the `i`-th."""
        positions = np.array([one.position + i for one in following], np.int64)
        pages = [int(one.table[at]) for one, at in zip(following, positions // self._block, strict=True)]
        count = len(following)
        return Batch(
            tokens=np.full(count, FIRST_DRAFT + 1 - i if i else LAST_DRAW, np.int64),
            positions=positions,
            page=np.array(pages, np.int64),
            offset=positions % self._block,
            decodes=count,
            slots=np.array([one.slot for one in following], np.int64),
            starts=positions,
            counts=np.ones(count, np.int64),
            tables=tuple(one.table for one in following),
            known=np.zeros(count, np.int64),
            cuts=Cuts(_NONE, _NONE),
            asked=np.arange(count),
            draws=_NO_DRAWS,
        )

    def _sent(self, numbers: list[int]) -> Tensor:
        return self._backend.upload([np.array(numbers, np.int64)])[0]


def _groups(sampled: Longs) -> list[tuple[int, int, int]]:
    """(sequence, first row, rows) of each sequence that draws."""
    sequences, firsts, counts = np.unique(sampled, return_index=True, return_counts=True)
    return list(zip(sequences.tolist(), firsts.tolist(), counts.tolist(), strict=True))


def _taken(drawn: list[int], drafts: list[int]) -> int:
    """How many of the tokens `drawn` behind a token and its drafts count: up to the first that is not what was drafted."""
    taken = 1
    while taken < len(drawn) and drawn[taken - 1] == drafts[taken - 1] and drawn[taken] != NO_TOKEN:
        taken += 1
    return taken
