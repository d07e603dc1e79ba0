"""Multi-token prediction: one attention layer that guesses the token after the next, from what the decoder has computed.

Its row at position j joins token j with the hidden row of token j − 1 (the decoder's output behind its final norm), and predicts token
j + 1. So what it stores at position j depends on tokens up to j alone, as the decoder's own KV does, and lies in the same page:

    position    0                 1                 2                 3 (just drawn)      4 (drafted)
    token       t₀                t₁                t₂                t₃                  d₄
    joined      (t₀, zeros)       (t₁, h₀)          (t₂, h₁)          (t₃, h₂)            (d₄, own row at 3)
                └──────── kept by the decoder's pass ────────┘        └──── drafting: predicts d₄, d₅ ────┘

What drafting stores is stored again, from the decoder's own rows, once the tokens are verified.

Structure and names: Qwen3-Next and Qwen3.5 checkpoints, tensors `mtp.*`; the embedding and the head are the decoder's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from stepwell.model.backend import Backend, Forward, Prepared
from stepwell.model.batch import Ahead, Behind, Memory, States
from stepwell.model.layers import Attention, Half, Norm
from stepwell.ops.accept import Drawn, Forced, Standing
from stepwell.ops.linear import Linear


@runtime_checkable
class DraftForward(Forward, Protocol):
    """A pass that can serve a draft layer."""

    def before(self, x: Tensor) -> Tensor:
        """Of each row of `x` [rows, hidden] the one before it in its sequence: of a sequence's first, what its slot holds."""

    def keep(self, layer: Attention, x: Tensor) -> None:
        """Store keys and values of `x`, the normed residual, and attend to nothing."""

    def carry(self, x: Tensor) -> None:
        """Keep rows of `x`, the decoder's output, that drafts go on from: the last of each sequence in its slot, and those before cuts
        in the checkpoints. A decode with drafts is left alone: which of its rows is the last is seen later."""


DRAFT_WORDS = 1 << 17
"""Words of the vocabulary that drafts are chosen among, the first ones: ids are given in the order in which a tokenizer was merged, so
that frequent words come first. Reading the head is most of what a draft costs (Zhao et al., FR-Spec, 2025), and a rare word that is not
drafted costs a draft, no answer."""

Further: TypeAlias = Callable[[DraftForward, Tensor], tuple[Tensor, Tensor]]
"""One token further: of a pass of attention layers alone, a token a sequence, and of the rows `hidden` [rows, hidden] before these tokens,
the rows that the next draft goes on from, and logits [rows, vocab] of the token after each."""


@runtime_checkable
class DraftBackend(Backend, Protocol):
    """A backend whose live slots keep inputs, and that drafts."""

    def settle(
        self, tokens: Tensor, rows: Tensor, drawn: Drawn, decodes: int, standing: Standing, forced: Forced | None
    ) -> Tensor:
        """Which drafts are accepted, as `ops.accept.settle` says. Waits for nothing that the device computes."""

    def words(self, head: Linear, count: int) -> Linear:
        """The head over its first `count` words alone, or in a form that is read faster; it need not round as the head does."""

    def look_ahead(self, ahead: Ahead, memory: Memory, states: States) -> None:
        """Write the states to `states`, [layers, entries, …], all but the hidden rows. Live states stay as they are."""

    def rehearse(self, memory: Memory, further: Further, wanted: Prepared) -> None:
        """Compile and record what drafting will need: `prepare` for `guess`."""

    def guess(self, behind: Behind, memory: Memory, further: Further) -> None:
        """Draft as many tokens as `memory.drafts` takes, each by a call of `further`. Waits for nothing that a GPU computes."""


@dataclass(frozen=True, slots=True)
class Drafter:
    """The layer with its norms.

    join        2 · hidden → hidden: the token's embedding first, the hidden row second
    attention   its index is behind those of the decoder's attention layers
    """

    join: Linear
    embedding_norm: Norm
    hidden_norm: Norm
    mixer_norm: Norm
    attention: Attention
    mlp_norm: Norm
    mlp: Half
    norm: Norm

    def keep(self, forward: DraftForward, table: Tensor, hidden: Tensor) -> None:
        """Store keys and values of all rows of a pass; `hidden` is the decoder's output for them, `table` the embedding."""
        residual = self._joined(forward, table, forward.before(hidden))
        forward.keep(self.attention, forward.norm(residual, self.mixer_norm))

    def __call__(self, forward: DraftForward, table: Tensor, hidden: Tensor) -> Tensor:
        """The layer's output for a pass whose tokens each follow a row of `hidden`."""
        residual = self._joined(forward, table, hidden)
        x = self.attention(forward, forward.norm(residual, self.mixer_norm), residual, self.mlp_norm)
        return self.mlp(forward, x, residual, self.norm)

    def _joined(self, forward: DraftForward, table: Tensor, hidden: Tensor) -> Tensor:
        embedded = forward.norm(forward.embed(table), self.embedding_norm)
        return self.join(torch.cat((embedded, forward.norm(hidden, self.hidden_norm)), -1))
