"""Causal depthwise convolution with SiLU, over tokens in rows, with its state in and out.

The state is the last `kernel − 1` inputs, oldest first: [kernel − 1, channels], in the model's type.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def causal_conv(x: Tensor, weight: Tensor, state: Tensor, cuts: Sequence[int]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Convolve one sequence.

    x        [n, channels]
    weight   float32 [kernel, channels], oldest tap first
    state    [kernel − 1, channels], the inputs before x
    cuts     token counts in 1 … n

    Returns activations float32 [n, channels], the state after x, and the state after each cut (views: copy to keep).
    """
    taps, count = weight.shape[0], x.shape[0]
    padded = torch.cat((state, x))
    wide = padded.float()
    out = wide[:count] * weight[0]
    for i in range(1, taps):
        out.addcmul_(wide[i : i + count], weight[i])
    states = [padded[at : at + taps - 1] for at in (*cuts, count)]
    return F.silu(out, inplace=True), states[-1], states[:-1]


def conv_update(x: Tensor, weight: Tensor, state: Tensor) -> Tensor:
    """One token for each of several sequences; `state` [sequences, kernel − 1, channels] moves on in place.

    x is [sequences, channels]; returns activations float32 of that shape.
    """
    window = torch.cat((state, x.unsqueeze(1)), 1)
    state.copy_(window[:, 1:])
    return F.silu((window.float() * weight).sum(1), inplace=True)
