"""What the plain torch backend plans of a pass: how its rows lie, and which states they work on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from stepwell.model.batch import Batch, Longs, States
from stepwell.ops.chunks import Chunks
from stepwell.ops.conv import ConvLayout
from stepwell.ops.pending import Lanes


@dataclass(frozen=True, slots=True, eq=False)
class Held:
    """Decodes whose slots keep inputs.

    width   tokens of the longest
    places  int64, where each of their rows lies when all are padded to `width`; None: as they are
    """

    lanes: Lanes
    width: int
    places: Tensor | None

    def pad(self, x: Tensor) -> Tensor:
        """Rows of all decodes as [decodes · width, …]. Padding is zero, and stays behind what is ever folded."""
        if self.places is None:
            return x
        padded = x.new_zeros(self.lanes.slots.shape[0] * self.width, *x.shape[1:])
        return padded.index_copy_(0, self.places, x)


@dataclass(frozen=True, slots=True, eq=False)
class InPlace:
    """Decodes whose live states lie side by side in float32: views of them, one of each layer. What is written to a view stays.

    live, first, count   the views are of these states' slots `first` … `first + count − 1`
    """

    live: States
    first: int
    count: int
    windows: tuple[Tensor, ...]
    states: tuple[Tensor, ...]

    @classmethod
    def of(cls, live: States, first: int, count: int) -> InPlace:
        own = slice(first, first + count)
        return cls(live, first, count, live.conv[:, own].unbind(0), live.recurrent[:, own].unbind(0))

    def shows(self, live: States, first: int, count: int) -> bool:
        """Whether the views are of these."""
        return self.live is live and self.first == first and self.count == count


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The decodes: rows 0 … `count` − 1 of the batch, and their live states: those that keep inputs, views of them, or their numbers,
    int64 [count]."""

    count: int
    slots: Held | InPlace | Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Folds:
    """The sequences of several new tokens, behind the decodes: their live states, and how their tokens are laid out.

    before  what is pending in the slots, to be folded first; None where nothing can be
    """

    slots: Tensor
    before: Lanes | None
    conv: ConvLayout
    chunks: Chunks


@dataclass(frozen=True, slots=True, eq=False)
class Carrying:
    """Where rows come from and go to that drafts go on from, all int64.

    slots     of all sequences
    before    of each row, where the row before it lies: behind one row for each sequence's slot
    kept      the slots that remember a row, and `rows`, these
    cut_rows  the rows before cuts
    """

    slots: Tensor
    before: Tensor
    kept: Tensor
    rows: Tensor
    cut_rows: Tensor

    @classmethod
    def of(cls, batch: Batch, upload: Callable[[Longs], Tensor]) -> Carrying:
        without_drafts = (np.arange(len(batch.slots)) >= batch.decodes) | (batch.counts == 1)
        return cls(*map(upload, rows_carried(batch, np.flatnonzero(without_drafts))))


def rows_carried(batch: Batch, ending: Longs) -> tuple[Longs, Longs, Longs, Longs, Longs]:
    """The fields of `Carrying`. `ending`, int64, are the sequences that end with their last row; of one with drafts it is only known after
    the pass which row is its last."""
    ends, every = np.cumsum(batch.counts), np.arange(len(batch.slots))
    firsts = ends - batch.counts
    before = np.arange(len(batch.tokens)) + len(every) - 1
    before[firsts] = every
    cut_rows = firsts[batch.cuts.sequence] + batch.cuts.after - 1
    return batch.slots, before, batch.slots[ending], ends[ending] - 1, cut_rows
