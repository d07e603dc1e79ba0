"""What attention may look at in training. A model that could always look back at everything would not need its state.

    whole     ▓▓▓▓▓▓▓▓▓▓▓▓▓      a third of the sequences: everything before
    window    ░░░░░░░░░▓▓▓▓      nearly half: the last 32 … 512 tokens
    gaps      ▓▓░░░▓▓▓░░▓▓▓      the rest: all but some stretches, once they are 32 tokens away

What is hidden from attention must be carried by the recurrent layers; what they forget, by attention.
"""

from __future__ import annotations

import torch
from torch import Tensor

WINDOWS = (32, 64, 128, 256, 512)
_WHOLE, _GAPS = 0.35, 0.2
_NEAR = 32
_STRETCH = 32  # tokens that are hidden, or shown, together
_HIDDEN = 0.4


def drawn(batch: int, tokens: int, generator: torch.Generator) -> Tensor:
    """bool [batch, 1, tokens, tokens], true where a token (row) may look (column)."""
    device = generator.device
    kind = torch.rand(batch, 1, generator=generator, device=device)
    chosen = torch.randint(len(WINDOWS), (batch, 1), generator=generator, device=device)
    windows = torch.tensor(WINDOWS, device=device)[chosen]
    reach = torch.where(kind < _WHOLE + _GAPS, tokens, windows).view(batch, 1, 1)
    stretches = torch.rand(batch, -(-tokens // _STRETCH), generator=generator, device=device) < _HIDDEN
    hidden = stretches.repeat_interleave(_STRETCH, 1)[:, :tokens] & (kind >= _WHOLE) & (kind < _WHOLE + _GAPS)
    place = torch.arange(tokens, device=device)
    back = place.unsqueeze(1) - place.unsqueeze(0)
    seen = (back >= 0) & (back < reach) & ~(hidden.unsqueeze(1) & (back >= _NEAR))
    return seen.unsqueeze(1)


def without(tokens: int, first: int, device: torch.device) -> Tensor:
    """bool [1, 1, tokens, tokens]: from token `first` on, nothing before it is seen."""
    place = torch.arange(tokens, device=device)
    seen = place.unsqueeze(1) >= place.unsqueeze(0)
    return (seen & ~((place.unsqueeze(1) >= first) & (place.unsqueeze(0) < first))).view(1, 1, tokens, tokens)
