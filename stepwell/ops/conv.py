"""Causal depthwise convolution with SiLU, over tokens in rows, with its state in and out.

The state is the last `kernel − 1` inputs, oldest first: [kernel − 1, channels], in the model's type. Several sequences are convolved
at once, each behind its own state:

    state a │ tokens a │ state b │ tokens b …      a row's output is a sum over it and the kernel − 1 rows before it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ConvLayout:
    """Where sequences lie behind their states; row numbers are int64 on the device.

    states  rows of the states, those of the first sequence first
    tokens  rows of the tokens
    ends    rows of the state after each sequence
    cuts    rows of the state at each cut
    """

    rows: int
    states: Tensor
    tokens: Tensor
    ends: Tensor
    cuts: Tensor

    @classmethod
    def plan(
        cls, counts: Sequence[int], cuts: Sequence[tuple[int, int]], taps: int, device: torch.device
    ) -> ConvLayout:
        """`counts` tokens of each sequence; `cuts` as (sequence, its tokens before the cut)."""
        back = taps - 1
        ends = np.cumsum(np.array(counts) + back)
        firsts = ends - counts
        window = np.arange(-back, 0)
        at = [firsts[sequence] + after for sequence, after in cuts]
        tokens = [np.arange(first, end) for first, end in zip(firsts, ends, strict=True)]
        parts = (
            (firsts[:, None] + window).reshape(-1),
            np.concatenate(tokens),
            (ends[:, None] + window).reshape(-1),
            (np.array(at, np.int64)[:, None] + window).reshape(-1),
        )
        return cls(int(ends[-1]), *(torch.from_numpy(part.astype(np.int64)).to(device) for part in parts))


def causal_conv(x: Tensor, weight: Tensor, states: Tensor, layout: ConvLayout) -> tuple[Tensor, Tensor, Tensor]:
    """Convolve the sequences of `layout`.

    x        [n, channels], the sequences end to end
    weight   float32 [kernel, channels], oldest tap first
    states   [sequences, kernel − 1, channels], the inputs before each

    Returns activations float32 [n, channels], the states after the sequences, and the states at the cuts.
    """
    taps, shape = weight.shape[0], (-1, *states.shape[1:])
    if states.shape[0] == 1:
        laid = torch.cat((states[0], x))
    else:
        laid = x.new_empty(layout.rows, x.shape[1])
        laid.index_copy_(0, layout.states, states.flatten(0, 1)).index_copy_(0, layout.tokens, x)
    count = layout.rows - taps + 1
    wide = laid.float()
    out = wide[:count] * weight[0]
    for i in range(1, taps):
        out.addcmul_(wide[i : i + count], weight[i])
    if states.shape[0] > 1:
        out = out.index_select(0, layout.tokens - (taps - 1))
    ends, cuts = (laid.index_select(0, rows).view(shape) for rows in (layout.ends, layout.cuts))
    return F.silu(out, inplace=True), ends, cuts


def conv_update(x: Tensor, weight: Tensor, state: Tensor) -> Tensor:
    """One token for each of several sequences; `state` [sequences, kernel − 1, channels] moves on in place.

    x is [sequences, channels]; returns activations float32 of that shape.
    """
    window = torch.cat((state, x.unsqueeze(1)), 1)
    state.copy_(window[:, 1:])
    return F.silu((window.float() * weight).sum(1), inplace=True)
