"""One forward pass's input, as plain arrays on the host, and the memory that it reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from stepwell.base.geometry import Ints
from stepwell.model.kv_scales import KvScales
from stepwell.ops.pending import Ring

Longs = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class States:
    """Recurrent states of all linear layers.

    conv       [layers, slots, kernel − 1 (and more), channels], the inputs that the next convolution looks back on, then pending ones
    recurrent  [layers, slots, value_heads, key_dim, value_dim]
    hidden     [draft layers, slots, hidden]: the decoder's output for the last token folded or pending; no layers where nothing drafts

    The checkpoints of a pass have the same shapes, with a column for each in place of `slots`.
    """

    conv: Tensor
    recurrent: Tensor
    hidden: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """What outlives the pass.

    keys, values  of attention layer i: its pages [pages + 1, block, kv_heads, head_dim]; the last page is spare: what must not be
                  stored goes there, and nobody reads it
    live          the states of the running sequences; the last slot is spare as well, for rows that pad a batch
    committed     int64 [slots + 1], tokens that each state has folded; −1: the batch says
    pending       int64 [slots + 1], tokens whose inputs are in the slot's ring, to be folded next
    rings         of each linear layer; none where tokens are folded at once
    draws         int64 [slots + 1], the token that each slot drew last
    drafts        int64 [slots + 1, drafts], what is thought to follow each slot's last draw; a guess, and any token as good as none
    scales        by which keys and values are divided before they are stored; None: they are stored as they are
    """

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    live: States
    committed: Tensor
    pending: Tensor
    rings: tuple[Ring, ...]
    draws: Tensor
    drafts: Tensor
    scales: KvScales | None = None


@dataclass(frozen=True, slots=True)
class Cuts:
    """Where the state is handed out: behind token `after[i]` (counted from 1) of the pass's sequence `sequence[i]`, into column i of the
    checkpoints. Ascending by sequence."""

    sequence: Longs
    after: Longs

    def __len__(self) -> int:
        return len(self.sequence)

    def pairs(self) -> list[tuple[int, int]]:
        return list(zip(self.sequence.tolist(), self.after.tolist(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """How the token behind each sampled row is chosen, arrays of [rows].

    temperature   0: the likeliest token
    top_k         0: any token
    top_p, min_p  1 and 0: any token
    seed, index   `index` counts the request's earlier draws: a draw depends on logits, settings, seed and index alone
    slots         live slots that remember what was drawn
    """

    temperature: Reals
    top_p: Reals
    min_p: Reals
    top_k: Longs
    seed: Longs
    index: Longs
    slots: Longs

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def greedy(self) -> bool:
        """Whether every row takes its likeliest token."""
        return not np.count_nonzero(self.temperature)


_REALS: Reals = np.empty(0)
_WHOLES: Longs = np.empty(0, np.int64)
NO_DRAWS = Draws(_REALS, _REALS, _REALS, _WHOLES, _WHOLES, _WHOLES, _WHOLES)


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The sequences of one pass, end to end. The first `decodes` of them go on from their slots' rings by one token each, and by drafts.

    tokens     int64 [rows]; of decodes LAST_DRAW where the token is still on the device: what the slot drew last; FIRST_DRAFT − i: its
               draft i
    positions  int64 [rows]
    page       int64 [rows], where a row's keys and values are stored: the spare page for those that must not be
    offset     int64 [rows], the place in that page
    slots      int64 [sequences], their live states
    starts     int64 [sequences], tokens before the first row of each, folded or pending
    counts     int64 [sequences], rows of each
    tables     block table of each
    known      int64 [sequences], entries at the start of each table that the last batch with its slot named as they are here
    cuts       where states are handed out, within sequences that are folded. Where a state is the live one after the pass, or where
               inputs are kept, it is copied then
    asked      int64, the rows whose logits are wanted: first those that `draws` are for, then those that are scored
    draws      how tokens are chosen
    plain      the model's own logits are drawn from; else somebody looks at them first, and calls `Forward.draw`
    """

    tokens: Longs
    positions: Longs
    page: Longs
    offset: Longs
    decodes: int
    slots: Longs
    starts: Longs
    counts: Longs
    tables: tuple[Ints, ...]
    known: Longs
    cuts: Cuts
    asked: Longs
    draws: Draws = NO_DRAWS
    plain: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class Ahead:
    """States that live slots will have once they have folded some of their last pass's tokens: arrays of one entry each.

    slots    live slots
    starts   tokens that the slot's state has folded by now
    after    how many more
    """

    slots: Longs
    starts: Longs
    after: Longs

    def __len__(self) -> int:
        return len(self.slots)


@dataclass(frozen=True, slots=True, eq=False)
class Behind:
    """Sequences to draft for, behind the last draw of each: arrays of one entry each.

    slots    live slots
    starts   position of the draw, less what is pending in the slot: only the device may know that
    tables   block tables, as the last pass with the slot named them; drafts end where these do
    """

    slots: Longs
    starts: Longs
    tables: tuple[Ints, ...]

    def __len__(self) -> int:
        return len(self.slots)
