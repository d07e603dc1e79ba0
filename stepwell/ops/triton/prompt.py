"""What a gated delta net layer does to the tokens of prompts before the delta rule: convolution, gates, and windows kept.

Sequences are laid end to end. Each token knows the row at which its sequence begins here and the slot whose window holds the
three inputs before that row; so a batch of many sequences, cut anywhere, is one launch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.triton.recurrent import TAPS, softplus


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Of each token, int64 [tokens]: the first row of its sequence in the batch, and its sequence's live slot."""

    first: Tensor
    slots: Tensor


@triton.jit
def _input(x, x_row, window, window_slot, CHANNELS, row, first, slot, channel, mask):
    """Inputs of the convolution at `row`, from the batch or, before the sequence's first row, from its window."""
    here, before = mask & (row >= first), mask & (row < first)
    new = tl.load(x + row * x_row + channel, mask=here, other=0.0)
    old = tl.load(window + slot * window_slot + (3 + row - first) * CHANNELS + channel, mask=before, other=0.0)
    return tl.where(here, new, old)


@triton.jit
def _conv_kernel(
    x, x_row, weight, window, window_slot, firsts, slots, out, TOKENS, CHANNELS: tl.constexpr, N: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    t = tl.program_id(1).to(tl.int64) * N + tl.arange(0, N)
    channel = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    real = t < TOKENS
    first, slot = tl.load(firsts + t, mask=real, other=0)[:, None], tl.load(slots + t, mask=real, other=0)[:, None]
    mask, row = real[:, None] & (channel < CHANNELS), t[:, None]
    y = tl.zeros([N, BLOCK], tl.float32)
    for i in tl.static_range(4):
        value = _input(x, x_row, window, window_slot, CHANNELS, row - 3 + i, first, slot, channel, mask)
        y += value.to(tl.float32) * tl.load(weight + i * CHANNELS + channel, mask=channel < CHANNELS, other=0.0)
    tl.store(out + row * CHANNELS + channel, y * tl.sigmoid(y), mask=mask)


def conv_prompts(x: Tensor, weight: Tensor, window: Tensor, rows: Rows) -> Tensor:
    """Causal convolution and SiLU of all tokens, [tokens, channels] in the type of x. The windows stay as they are.

    x        [tokens, channels]; rows may be strided
    weight   float32 [4, channels], oldest tap first
    window   [slots, 3 + …, channels], one layer's: the three inputs before each sequence's first row
    """
    tokens, channels = x.shape
    assert weight.shape[0] == TAPS and window.stride(1) == channels
    out = torch.empty(tokens, channels, dtype=x.dtype, device=x.device)
    block, n = min(256, triton.next_power_of_2(channels)), 16
    _conv_kernel[(triton.cdiv(channels, block), triton.cdiv(tokens, n))](
        x, x.stride(0), weight, window, window.stride(0), rows.first, rows.slots, out, tokens, CHANNELS=channels, N=n,
        BLOCK=block, num_warps=4,
    )  # fmt: skip
    return out


@triton.jit
def _keep_kernel(
    x,
    x_row,
    window,
    window_slot,
    firsts,
    slots,
    ends,
    target,
    target_slot,
    targets,
    CHANNELS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    end = tl.load(ends + tl.program_id(1))
    first, slot = tl.load(firsts + end - 1), tl.load(slots + end - 1)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask, row = channel < CHANNELS, end + tl.zeros([BLOCK], tl.int64)
    at = target + tl.load(targets + tl.program_id(1)) * target_slot + channel
    # all three are read before one is written: the target may be the window itself
    x0 = _input(x, x_row, window, window_slot, CHANNELS, row - 3, first, slot, channel, mask)
    x1 = _input(x, x_row, window, window_slot, CHANNELS, row - 2, first, slot, channel, mask)
    x2 = _input(x, x_row, window, window_slot, CHANNELS, row - 1, first, slot, channel, mask)
    tl.store(at, x0, mask=mask)
    tl.store(at + CHANNELS, x1, mask=mask)
    tl.store(at + 2 * CHANNELS, x2, mask=mask)


def keep_windows(x: Tensor, window: Tensor, rows: Rows, ends: Tensor, target: Tensor, targets: Tensor) -> None:
    """Store the three inputs before row `ends[i]` at `target[targets[i]]`, for rungs and, last of all, for the slots themselves.

    x, window   as in `conv_prompts`
    ends        int64 [n]: rows of the batch, each at least one after its sequence's first
    target      [columns or slots, 3 + …, channels], may be strided over the first; `targets` int64 [n]
    """
    channels, block = x.shape[1], 1024
    assert target.stride(1) == channels
    _keep_kernel[(triton.cdiv(channels, block), ends.shape[0])](
        x, x.stride(0), window, window.stride(0), rows.first, rows.slots, ends, target, target.stride(0), targets,
        CHANNELS=channels, BLOCK=block, num_warps=4,
    )  # fmt: skip


@triton.jit
def _gates_kernel(
    b, b_row, a, a_row, rate, dt_bias, g, beta, TOKENS, HEADS: tl.constexpr, N: tl.constexpr, BLOCK: tl.constexpr
):
    t, head = tl.program_id(0).to(tl.int64) * N + tl.arange(0, N)[:, None], tl.arange(0, BLOCK)[None, :]
    mask, real = (t < TOKENS) & (head < HEADS), head < HEADS
    raw = tl.load(a + t * a_row + head, mask=mask, other=0.0).to(tl.float32) + tl.load(
        dt_bias + head, mask=real, other=0.0
    )
    tl.store(g + t * HEADS + head, softplus(raw) * tl.load(rate + head, mask=real, other=0.0), mask=mask)
    tl.store(
        beta + t * HEADS + head,
        tl.sigmoid(tl.load(b + t * b_row + head, mask=mask, other=0.0).to(tl.float32)),
        mask=mask,
    )


def gates(b: Tensor, a: Tensor, rate: Tensor, dt_bias: Tensor) -> tuple[Tensor, Tensor]:
    """g = rate · softplus(a + dt_bias) and beta = sigmoid(b), float32 [tokens, value_heads].

    b, a            [tokens, value_heads]; rows may be strided
    rate, dt_bias   float32 [value_heads]; rate is −exp(A_log)
    """
    tokens, heads = a.shape
    g, beta = (torch.empty(tokens, heads, dtype=torch.float32, device=a.device) for _ in range(2))
    _gates_kernel[(triton.cdiv(tokens, 16),)](
        b, b.stride(0), a, a.stride(0), rate, dt_bias, g, beta, tokens, HEADS=heads, N=16,
        BLOCK=triton.next_power_of_2(heads), num_warps=4,
    )  # fmt: skip
    return g, beta
