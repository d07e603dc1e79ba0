"""Which drafts are accepted, and where slots stand behind them: `ops/accept.py` in one launch."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.accept import COIN, Drawn, Forced, Standing

_BLOCK = 1024


@triton.jit
def _settle_kernel(
    tokens, rows, row_stride, slots, firsts, counts, starts, draws, pending, hidden, drafts, out, decodes, thousandths, vocab,
    T: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, FORCED: tl.constexpr, A: tl.constexpr, B: tl.constexpr,
):  # fmt: skip
    sequence = tl.program_id(0)
    slot, first, count = tl.load(slots + sequence), tl.load(firsts + sequence), tl.load(counts + sequence)
    start = tl.load(starts + sequence)
    last = tl.load(tokens + first)
    taken, right = first * 0, count > 0  # of the first token nothing has to be right
    for t in tl.static_range(T):
        there = t < count
        token = tl.load(tokens + first + t, mask=there, other=-1)
        right = right & there
        if t > 0:
            right = right & (token != -1)
        if t < T - 1:
            draft = tl.load(drafts + slot * (T - 1) + t)
            if FORCED:
                coin = ((start + t) * A + slot * B >> 4) % 1000
                other = tl.where(token == draft, (token + 1) % vocab, token)
                forced = tl.where(coin < thousandths, draft, other)
                token = tl.where(token == -1, token, forced)
        tl.store(out + first + t, tl.where(right, token, -1), mask=there)
        taken += tl.where(right, 1, 0)
        last = tl.where(right, token, last)
        if t < T - 1:
            right = right & (token == draft)
    tl.store(draws + slot, tl.maximum(last, 0))
    if sequence < decodes:
        tl.store(pending + slot, taken)
        source, lane = rows + (first + taken - 1) * row_stride, tl.arange(0, BLOCK)
        for at in range(0, WIDTH, BLOCK):
            inside = at + lane < WIDTH
            tl.store(hidden + slot * WIDTH + at + lane, tl.load(source + at + lane, mask=inside), mask=inside)


def settle(
    tokens: Tensor, rows: Tensor, drawn: Drawn, decodes: int, standing: Standing, forced: Forced | None = None
) -> Tensor:
    """As `ops.accept.settle`. `tokens` are contiguous; rows may be strided."""
    out, width = tokens.new_empty(tokens.shape), standing.hidden.shape[1]
    assert tokens.is_contiguous() and standing.hidden.is_contiguous() and standing.drafts.is_contiguous()
    _settle_kernel[(drawn.slot.shape[0],)](
        tokens, rows, rows.stride(0), drawn.slot, drawn.first, drawn.count, drawn.start, standing.draws, standing.pending,
        standing.hidden, standing.drafts, out, decodes, forced.thousandths if forced else 0, forced.vocab if forced else 1,
        T=1 + standing.drafts.shape[1], WIDTH=width, BLOCK=min(_BLOCK, triton.next_power_of_2(width)), FORCED=forced is not None,
        A=COIN[0], B=COIN[1], num_warps=4,
    )  # fmt: skip
    return out
