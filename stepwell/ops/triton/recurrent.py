"""One decode step of a gated delta net layer: short convolution, gates, and the gated delta rule over indexed states.

A live slot holds the state of its `committed` tokens, and a ring with the inputs of tokens that are computed but not yet
folded into it ("pending"). A step folds the accepted ones, writes the state back, and continues in registers over the new
tokens. The state is read once and written once, however many tokens were drafted, and every token is folded by the same
instructions: the state does not depend on how tokens were grouped into steps.

    position   … committed−1 | committed … committed+pending−1 | new tokens (T)
                in the state   in the ring, to be folded now     computed now, left in the ring

Without speculation `fold_new` folds the new tokens at once: nothing stays pending, and one ring serves all layers.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.pending import Lanes, Ring
from stepwell.ops.triton.overlap import follow, overlap

TAPS = 4
"""Width of the convolution; the kernels are written for it."""


@triton.jit
def softplus(x):
    grown = tl.exp(tl.minimum(x, 20.0))
    one = 1.0 + grown
    # log(1 + u) as log(w) · u / (w − 1) with w = 1 + u rounded: exact to rounding for small u too
    small = tl.where(one == 1.0, grown, tl.log(one) * grown / tl.where(one == 1.0, 1.0, one - 1.0))
    return tl.where(x > 20.0, x, small)


@triton.jit
def _three_rows(at, stride, mask):
    return (
        tl.load(at, mask=mask, other=0.0),
        tl.load(at + stride, mask=mask, other=0.0),
        tl.load(at + 2 * stride, mask=mask, other=0.0),
    )


@triton.jit
def _store_three(at, stride, mask, x0, x1, x2):
    tl.store(at, x0, mask=mask)
    tl.store(at + stride, x1, mask=mask)
    tl.store(at + 2 * stride, x2, mask=mask)


@triton.jit
def _conv_kernel(
    x, x_row, b, b_row, a, a_row, weight, rate, dt_bias, window, window_slot,
    slots, committed, pending, rung, rung_after, rungs, rung_column,
    ring_q, ring_k, ring_v, ring_g, ring_beta, eps,
    T: tl.constexpr, R: tl.constexpr, KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr, FOLD_NEW: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    channels = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    follow(OVERLAP)
    slot, waiting, at_rung = tl.load(slots + row), tl.load(pending + row), tl.load(rung + row)
    after, first = tl.load(rung_after + row), tl.load(committed + row) + waiting
    is_value = head >= 2 * KEY_HEADS
    value_head = tl.maximum(head - 2 * KEY_HEADS, 0)
    lane = tl.arange(0, BLOCK)
    mask = lane < tl.where(is_value, VALUE_DIM, KEY_DIM)
    channel = lane + tl.where(is_value, 2 * KEY_HEADS * KEY_DIM + value_head * VALUE_DIM, head * KEY_DIM)
    w0, w1, w2 = _three_rows(weight + channel, channels, mask)
    w3 = tl.load(weight + 3 * channels + channel, mask=mask, other=0.0)
    own = window + slot * window_slot + channel
    target = rungs + tl.maximum(at_rung, 0) * rung_column + channel
    if (at_rung >= 0) & (after <= waiting):
        r0, r1, r2 = _three_rows(own + after * channels, channels, mask)
        _store_three(target, channels, mask, r0, r1, r2)
    x0, x1, x2 = _three_rows(own + waiting * channels, channels, mask)
    if not FOLD_NEW:
        _store_three(own, channels, mask, x0, x1, x2)
    for t in range(T):
        token = row * T + t
        x3 = tl.load(x + token * x_row + channel, mask=mask, other=0.0)
        y = x0.to(tl.float32) * w0 + x1.to(tl.float32) * w1 + x2.to(tl.float32) * w2 + x3.to(tl.float32) * w3
        y = y * tl.sigmoid(y)
        place = slot * R + (first + t) % R
        if is_value:
            tl.store(ring_v + (place * VALUE_HEADS + value_head) * VALUE_DIM + lane, y, mask=mask)
            raw = tl.load(a + token * a_row + value_head).to(tl.float32) + tl.load(dt_bias + value_head)
            tl.store(ring_g + place * VALUE_HEADS + value_head, softplus(raw) * tl.load(rate + value_head))
            beta = tl.sigmoid(tl.load(b + token * b_row + value_head).to(tl.float32))
            tl.store(ring_beta + place * VALUE_HEADS + value_head, beta)
        else:
            y = y * tl.rsqrt(tl.sum(y * y, 0) + eps)
            ring = ring_q if head < KEY_HEADS else ring_k
            tl.store(ring + (place * KEY_HEADS + head % KEY_HEADS) * KEY_DIM + lane, y, mask=mask)
        x0, x1, x2 = x1, x2, x3
        if FOLD_NEW:
            if (at_rung >= 0) & (after == waiting + t + 1):
                _store_three(target, channels, mask, x0, x1, x2)
        else:
            tl.store(own + (3 + t) * channels, x3, mask=mask)
    if FOLD_NEW:
        _store_three(own, channels, mask, x0, x1, x2)


def conv_step(
    x: Tensor, b: Tensor, a: Tensor, weight: Tensor, rate: Tensor, dt_bias: Tensor,
    window: Tensor, rungs: Tensor, lanes: Lanes, ring: Ring, *, eps: float = 1e-6, fold_new: bool,
) -> None:  # fmt: skip
    """Convolution, SiLU, unit length of queries and keys, and gates of the new tokens; the results go into the ring.

    x         [rows · T, channels]: query, key and value channels before the convolution; rows may be strided
    b, a      [rows · T, value_heads], strided alike
    weight    float32 [4, channels], oldest tap first
    rate      float32 [value_heads], −exp(A_log); dt_bias float32 [value_heads]
    window    [slots, 3 + W, channels], one layer's: the three inputs before `committed`, then those of pending tokens.
              W ≥ T; with `fold_new` W may be 0. Moves on by `pending` (and T) tokens
    rungs     [columns, 3, channels], one layer's place in the rung buffers; columns may be strided

    Beta is sigmoid(b) and g = rate · softplus(a + dt_bias).
    """
    rows, heads = lanes.slots.shape[0], ring.v.shape[2]
    key_heads, key_dim, value_dim = ring.k.shape[2], ring.k.shape[3], ring.v.shape[3]
    assert weight.shape[0] == TAPS and window.stride(1) == x.shape[1] and rungs.stride(1) == x.shape[1]
    _conv_kernel[(2 * key_heads + heads, rows)](
        x, x.stride(0), b, b.stride(0), a, a.stride(0), weight, rate, dt_bias, window, window.stride(0),
        lanes.slots, lanes.committed, lanes.pending, lanes.rung, lanes.rung_after, rungs, rungs.stride(0),
        ring.q, ring.k, ring.v, ring.g, ring.beta, eps,
        T=x.shape[0] // rows, R=ring.k.shape[1], KEY_HEADS=key_heads, KEY_DIM=key_dim, VALUE_HEADS=heads,
        VALUE_DIM=value_dim, BLOCK=triton.next_power_of_2(max(key_dim, value_dim)), FOLD_NEW=fold_new, num_warps=1,
        **overlap(x, rows),
    )  # fmt: skip


@triton.jit
def _token(q, k, v, g, beta, place, KEYS: tl.constexpr, VALUE_HEADS: tl.constexpr, VALUE_DIM: tl.constexpr):
    """The inputs of the token at `place` of the rings."""
    return (
        tl.load(q + place * KEYS),
        tl.load(k + place * KEYS),
        tl.load(v + place * VALUE_HEADS * VALUE_DIM),
        tl.load(g + place * VALUE_HEADS),
        tl.load(beta + place * VALUE_HEADS),
    )


@triton.jit
def _delta_kernel(
    pool, pool_slot, slots, committed, pending, rung, rung_after, rungs, rung_column,
    ring_q, ring_k, ring_v, ring_g, ring_beta, out, scale,
    T: tl.constexpr, R: tl.constexpr, KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr, BLOCK: tl.constexpr, FOLD_NEW: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    head, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    follow(OVERLAP)
    slot, start, waiting = tl.load(slots + row), tl.load(committed + row), tl.load(pending + row)
    at_rung, after = tl.load(rung + row), tl.load(rung_after + row)
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    i, j = tl.arange(0, KEY_DIM), tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tile = head * KEY_DIM * VALUE_DIM + i[:, None] * VALUE_DIM + j[None, :]
    own = pool + slot * pool_slot + tile
    state = tl.load(own).to(tl.float32)
    folded, end = waiting + (T if FOLD_NEW else 0), waiting + T
    q_at, k_at = ring_q + key_head * KEY_DIM + i, ring_k + key_head * KEY_DIM + i
    v_at, g_at, beta_at = ring_v + head * VALUE_DIM + j, ring_g + head, ring_beta + head
    width: tl.constexpr = KEY_HEADS * KEY_DIM
    first = slot * R + start % R
    q, k, v, g, beta = _token(q_at, k_at, v_at, g_at, beta_at, first, width, VALUE_HEADS, VALUE_DIM)
    for t in range(end):
        # the next token's inputs are on their way while this one is folded; behind the last, its own once more
        then = slot * R + (start + tl.minimum(t + 1, end - 1)) % R
        next_q, next_k, next_v, next_g, next_beta = _token(
            q_at, k_at, v_at, g_at, beta_at, then, width, VALUE_HEADS, VALUE_DIM
        )
        state = state * tl.exp(g)
        delta = (v - tl.sum(state * k[:, None], 0)) * beta
        state = state + k[:, None] * delta[None, :]
        if t >= waiting:
            token = row * T + t - waiting
            tl.store(out + (token * VALUE_HEADS + head) * VALUE_DIM + j, tl.sum(state * (q * scale)[:, None], 0))
        q, k, v, g, beta = next_q, next_k, next_v, next_g, next_beta
        if (at_rung >= 0) & (t + 1 == after):
            tl.store(rungs + at_rung * rung_column + tile, state)
        if t + 1 == folded:
            tl.store(own, state)


def delta_step(
    pool: Tensor,
    rungs: Tensor,
    lanes: Lanes,
    ring: Ring,
    out: Tensor,
    *,
    fold_new: bool,
    block: int = 64,
    warps: int = 4,
) -> None:
    """The gated delta rule over states by slot: S ← e^g S;  S ← S + k ⊗ β(v − Sᵀk);  o = Sᵀq / √d.

    pool    [slots, value_heads, key_dim, value_dim], float32 or rounded, one layer's; slots may be strided. Folds `pending` tokens,
            and the new ones too with `fold_new`
    rungs   the same, [columns, value_heads, key_dim, value_dim], one layer's place in the rung buffers; columns may be strided
    out     float32 [rows · T, value_heads, value_dim]
    block, warps   columns of a state that one program holds, and its size: tuning parameters, which change last bits only. 64 rows of
                   32 heads of 128 × 128 take 71 µs on an H200, with 32 columns 75, with 16 99, where reading and writing takes 63
    """
    rows, heads, key_dim, value_dim = lanes.slots.shape[0], *pool.shape[1:]
    block = min(block, value_dim)
    _delta_kernel[(value_dim // block, heads, rows)](
        pool, pool.stride(0), lanes.slots, lanes.committed, lanes.pending, lanes.rung, lanes.rung_after,
        rungs, rungs.stride(0), ring.q, ring.k, ring.v, ring.g, ring.beta, out, key_dim**-0.5,
        T=out.shape[0] // rows, R=ring.k.shape[1], KEY_HEADS=ring.k.shape[2], KEY_DIM=key_dim, VALUE_HEADS=heads,
        VALUE_DIM=value_dim, BLOCK=block, FOLD_NEW=fold_new, num_warps=warps,
        **overlap(pool, rows),
    )  # fmt: skip
