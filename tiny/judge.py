"""What a trained network needs, and how well its drafts guess: on held-out text, with true tokens before every guess.

loss          nats a token, over tokens that the model is to say, in the second half of each sequence
zero_state    the same with the recurrent states forgotten at the middle
zero_kv       the same with attention blind there to all before the middle
accuracy      share of tokens that are the likeliest
acceptance    share of drafts at the first position that are what the model itself says next (greedy)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tiny.corpus import MARKED
from tiny.masks import without
from tiny.network import Network


@dataclass(frozen=True, slots=True)
class Verdict:
    """Figures of `judge`, as the module's docstring has them."""

    loss: float
    zero_state: float
    zero_kv: float
    acceptance: float
    accuracy: float

    def rounded(self) -> dict[str, float]:
        return {name: round(value, 4) for name, value in asdict(self).items()}


@torch.no_grad()
def judge(
    network: Network, held: np.ndarray, tokens: int, device: torch.device, most: int = 64, rows: int = 8
) -> Verdict:
    """`held` are uint16 tokens with marks; `most` sequences of `tokens` are judged, `rows` at a time."""
    count = min(most, (len(held) - 1) // tokens)
    words = torch.from_numpy(held[: count * tokens + 1].astype(np.int64)).to(device)
    sums = torch.zeros(6, dtype=torch.float64, device=device)
    half = tokens // 2
    blind = without(tokens, half, device)
    for first in range(0, count, rows):
        own = range(first, min(count, first + rows))
        marked = torch.stack([words[i * tokens : (i + 1) * tokens + 1] for i in own])
        sums += _batch(network, marked, half, blind)
    said, loss, forgot, unseen, accepted, right = sums.tolist()
    return Verdict(loss / said, forgot / said, unseen / said, accepted / said, right / said)


def _batch(network: Network, marked: Tensor, half: int, blind: Tensor) -> Tensor:
    """Sums over the tokens that count: their number, three losses, drafts accepted, and guesses that are right."""
    ids = marked & (MARKED - 1)
    read, wanted = ids[:, :-1], ids[:, 1:]
    counts = marked[:, 1:] >= MARKED
    counts[:, :half] = False
    with torch.autocast(read.device.type, torch.bfloat16):
        hidden, drafts = network.hidden(read)
        logits = network.logits(hidden).float()
        guessed = network.logits(drafts).float().argmax(-1)
        with forgetting(network, half):
            forgot = network.logits(network.hidden(read)[0]).float()
        unseen = network.logits(network.hidden(read, blind)[0]).float()
    # row j of the drafter predicts what row j of the decoder does, one token later than its own hidden row could
    chosen = logits.argmax(-1)
    values = [counts.sum(), *(_loss(x, wanted, counts) for x in (logits, forgot, unseen))]
    values += [((guessed == chosen) & counts).sum(), ((chosen == wanted) & counts).sum()]
    return torch.stack([value.double() for value in values])


def _loss(logits: Tensor, wanted: Tensor, counts: Tensor) -> Tensor:
    return F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none")[counts].sum()


@contextmanager
def forgetting(network: Network, place: int) -> Iterator[None]:
    """Within it, every recurrent layer's state decays to nothing at token `place`."""
    layers = [layer.linear_attn for layer in network.model.layers if not layer.full]
    for layer in layers:
        layer.wiped = place
    try:
        yield
    finally:
        for layer in layers:
            layer.wiped = None
