"""One forward pass's input: sequences laid end to end, decodes first, and the memory that they read and write."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.ops.kernels import Attend


@dataclass(frozen=True, slots=True)
class States:
    """Recurrent states of all linear layers, layers first.

    conv       [layers, …, kernel − 1, channels], the inputs that the next convolution looks back on
    recurrent  [layers, …, value_heads, key_dim, value_dim]

    `…` is the slots of the live states, and nothing for a single image.
    """

    conv: Tensor
    recurrent: Tensor


@dataclass(frozen=True, slots=True)
class Memory:
    """What outlives the pass. `keys[i]` and `values[i]` are attention layer i's pages [pages, block, kv_heads, head_dim]."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    live: States


@dataclass(frozen=True, slots=True)
class Prefill:
    """One sequence of several new tokens: rows `first` … `first + count − 1` of the batch, its state in live slot `slot`.

    cuts    ascending token counts in 1 … count at which the state is handed out, into the image at the same place
            of `images`
    """

    first: int
    count: int
    slot: int
    start: int
    cuts: tuple[int, ...]
    images: tuple[States, ...]
    attend: Attend

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.count)


@dataclass(frozen=True, slots=True)
class Decodes:
    """The sequences of one new token each: the batch's first `count` rows. `slots` are their live slots, in row order;
    a slice where they are consecutive, so that states are updated where they lie."""

    count: int
    slots: slice | Tensor
    attend: Attend


@dataclass(frozen=True, slots=True)
class Batch:
    """The sequences of one pass.

    tokens, positions   int64 [n]
    written             int64: the rows whose keys and values are stored; None for all
    page, offset        int64: where each written row's go
    asked               int64: the rows whose logits are wanted
    """

    tokens: Tensor
    positions: Tensor
    decodes: Decodes | None
    prefills: tuple[Prefill, ...]
    written: Tensor | None
    page: Tensor
    offset: Tensor
    asked: Tensor


def joined(parts: list[Tensor]) -> Tensor:
    """The parts' rows in order; a single part is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)
