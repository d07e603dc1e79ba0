"""Which drafts what was drawn accepts: on the device, without a word to the host.

pass      token  draft 1  draft 2  draft 3          one decode computes all of them
drawn     a      b        c        d                what each row draws, as it would without drafts
          │      └ is draft 2? no: c and d are of a past that is not
          └ is draft 1? yes
kept      a b                                       the next step begins at b
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.ops.sampling import NO_TOKEN

COIN = 40_503, 30_011
"""Of a position and of a slot in a coin: odd, and far from each other's multiples."""


@dataclass(frozen=True, slots=True, eq=False)
class Drawn:
    """The rows of sequences that draw, int64 [sequences]: `count` from `first` on, a token and its drafts. `slot` is the live slot,
    `start` the position of the first row."""

    slot: Tensor
    first: Tensor
    count: Tensor
    start: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Standing:
    """Where live slots stand, which goes on as drafts are accepted.

    draws    int64 [slots], the last draw of each
    pending  int64 [slots], tokens of its last pass that it goes on behind
    hidden   [slots, hidden], the decoder's row for the last of these
    drafts   int64 [slots, drafts]
    """

    draws: Tensor
    pending: Tensor
    hidden: Tensor
    drafts: Tensor


@dataclass(frozen=True, slots=True)
class Forced:
    """A share of drafts, in thousandths, is accepted whatever was drawn, each by a coin of its own: for benches."""

    thousandths: int
    vocab: int


@dataclass(frozen=True, slots=True, eq=False)
class Accepted:
    """tokens  int64 [rows], as drawn; NO_TOKEN behind the first draft that is not what was drawn
    taken   int64 [sequences], tokens that each goes on by, 1 at least
    last    int64 [sequences], the last of them; NO_TOKEN where the first row broke
    """

    tokens: Tensor
    taken: Tensor
    last: Tensor


def settle(
    tokens: Tensor, rows: Tensor, drawn: Drawn, decodes: int, standing: Standing, forced: Forced | None = None
) -> Tensor:
    """Move the slots on behind the drafts that are accepted. Returns the tokens, NO_TOKEN behind a draft that is not.

    rows     [n, hidden], the decoder's: row i for token i
    decodes  how many sequences go on with an answer: the first ones; the state of the others is folded already
    """
    found = accept(tokens, standing.drafts, drawn, forced)
    standing.draws.index_copy_(0, drawn.slot, found.last.clamp_min(0))
    own, taken = drawn.slot[:decodes], found.taken[:decodes]
    standing.pending.index_copy_(0, own, taken)
    standing.hidden.index_copy_(0, own, rows.index_select(0, drawn.first[:decodes] + taken - 1))
    return found.tokens


def accept(tokens: Tensor, drafts: Tensor, drawn: Drawn, forced: Forced | None = None) -> Accepted:
    """See how far each sequence goes on. Deterministic drafts and draws that are exact make this rejection sampling: a draft is kept as
    often as the model would draw it (Leviathan et al., 2023; Chen et al., 2023).

    tokens  int64 [rows], drawn; NO_TOKEN where the logits were not finite
    drafts  int64 [slots, drafts]
    """
    slots, width, device = drawn.slot, 1 + drafts.shape[1], tokens.device
    behind = torch.arange(width, device=device)
    place = drawn.first.unsqueeze(1) + behind
    there = behind < drawn.count.unsqueeze(1)
    own = tokens.index_select(0, place.clamp(max=tokens.shape[0] - 1).flatten()).view(place.shape)
    guessed = drafts.index_select(0, slots)
    if forced is not None:
        own = torch.cat((_forced(own[:, :-1], guessed, drawn, forced), own[:, -1:]), 1)
    right = (own[:, :-1] == guessed) & there[:, 1:] & (own[:, 1:] != NO_TOKEN)
    taken = 1 + right.long().cumprod(1).sum(1)
    kept = torch.where((behind < taken.unsqueeze(1)) & there, place, tokens.shape[0])
    out = tokens.new_full((tokens.shape[0] + 1,), NO_TOKEN)
    out.scatter_(0, kept.flatten(), own.flatten())
    return Accepted(out[:-1], taken, own.gather(1, taken.unsqueeze(1) - 1).squeeze(1))


def _forced(own: Tensor, guessed: Tensor, drawn: Drawn, forced: Forced) -> Tensor:
    """Draws that accept a share of the drafts: such a draw is its draft, any other one is not."""
    position = drawn.start.unsqueeze(1) + torch.arange(guessed.shape[1], device=own.device)
    coin = (position * COIN[0] + drawn.slot.unsqueeze(1) * COIN[1] >> 4) % 1000
    other = torch.where(own == guessed, (own + 1) % forced.vocab, own)
    return torch.where(own == NO_TOKEN, own, torch.where(coin < forced.thousandths, guessed, other))
