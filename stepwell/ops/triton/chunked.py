"""The delta rule of prompts, chunk by chunk: everything between a gated delta net layer's two products, in five launches.

Sequences are laid end to end and cut into chunks of up to 64 rows. What a chunk is, where it lies and what becomes of the state
behind it are numbers on the device, so that a pass of a given number of rows, chunks and sequences can be captured in a graph.

    prepare        chunk × head: convolution and SiLU, queries and keys to unit length, decays summed up, windows of rungs
    keep_windows   the last three inputs of each sequence, into its slot
    _inside        chunk × head: what the chunk's tokens do to each other (the WY form of Yang et al., 2024, arXiv 2412.06464)
    _through       sequence × head: the state, from chunk to chunk; rungs receive it, the slot the last
    _out_of        chunk × head: outputs, normed and gated

With d the running sum of log2-decays inside a chunk, β its shares and S the state before it:

    T = (I + L)⁻¹,  Lᵢⱼ = βᵢ (kᵢ·kⱼ) 2^(dᵢ − dⱼ) below the diagonal
    u = T (β v),    w = T (β 2^d k),    n = u − w S
    S ← 2^d_last S + Σⱼ 2^(d_last − dⱼ) kⱼ ⊗ nⱼ
    oᵢ = (2^dᵢ qᵢ S + Σ_{j ≤ i} (qᵢ·kⱼ) 2^(dᵢ − dⱼ) nⱼ) / √dim
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.triton.recurrent import TAPS, softplus

CHUNK = 64
PAD = -2
"""As a chunk's column: its rows are padding."""
_PAD = tl.constexpr(PAD)
_LOG2_E = tl.constexpr(1.4426950408889634)


@dataclass(frozen=True, slots=True, eq=False)
class Chunks:
    """int64 on the device. Of each chunk:

    first    row at which it begins
    count    its rows, at most 64
    column   column of the rungs that receives window and state behind it; −1: none; PAD: its rows are padding, nothing is
             folded and outputs are 0
    begin    first row of its sequence
    slot     its sequence's live slot

    and of each sequence: chunks ends[s] … ends[s + 1] − 1, its slot, and `last`, the row behind its last. Chunks of a sequence
    follow each other in the order of their rows; those of padding lie behind all sequences.
    """

    first: Tensor
    count: Tensor
    column: Tensor
    begin: Tensor
    slot: Tensor
    ends: Tensor
    slots: Tensor
    last: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class Mixed:
    """What `prepare` makes of a chunk's rows. Rows of padding keep what they hold, which may be NaN.

    qkv     [rows, channels]: queries and keys of unit length, values
    decay   float32 [rows, value_heads]: log2 of the decay since the chunk began, the row's own included
    beta    float32 [rows, value_heads]
    """

    qkv: Tensor
    decay: Tensor
    beta: Tensor
    key_heads: int
    key_dim: int
    value_dim: int


@triton.jit
def _input(x, x_row, window, window_slot, CHANNELS, row, begin, slot, channel, mask):
    """Inputs of the convolution at `row`, from the batch or, before the sequence's first row, from its window."""
    here, before = mask & (row >= begin), mask & (row < begin)
    new = tl.load(x + row * x_row + channel, mask=here, other=0.0)
    old = tl.load(window + slot * window_slot + (3 + row - begin) * CHANNELS + channel, mask=before, other=0.0)
    return tl.where(here, new, old)


@triton.jit
def _convolved(
    x, x_row, taps, window, window_slot, CHANNELS, row, begin, slot, channel, mask, inside, BEHIND: tl.constexpr
):  # fmt: skip
    """BEHIND: some of the rows look back on the window."""
    y = tl.zeros(mask.shape, tl.float32)
    for i in tl.static_range(4):
        if BEHIND:
            value = _input(x, x_row, window, window_slot, CHANNELS, row - 3 + i, begin, slot, channel, mask)
        else:
            value = tl.load(x + (row - 3 + i) * x_row + channel, mask=mask, other=0.0)
        y += value.to(tl.float32) * tl.load(taps + i * CHANNELS + channel, mask=inside, other=0.0)
    return y


@triton.jit
def _prepare_kernel(
    x, x_row, b, b_row, a, a_row, taps, rate, dt_bias, window, window_slot, rungs, rung_column,
    firsts, counts, columns, begins, slots, qkv, decay, betas, eps,
    KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_HEADS: tl.constexpr, VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    head, chunk = tl.program_id(0), tl.program_id(1)
    column, first, count = tl.load(columns + chunk), tl.load(firsts + chunk), tl.load(counts + chunk)
    if column != _PAD:
        begin, slot = tl.load(begins + chunk), tl.load(slots + chunk)
        CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
        is_value = head >= 2 * KEY_HEADS
        value_head = tl.maximum(head - 2 * KEY_HEADS, 0)
        t, lane = tl.arange(0, ROWS), tl.arange(0, BLOCK)[None, :]
        real, inside = t < count, lane < tl.where(is_value, VALUE_DIM, KEY_DIM)
        channel = lane + tl.where(is_value, 2 * KEY_HEADS * KEY_DIM + value_head * VALUE_DIM, head * KEY_DIM)
        row, mask = first + t[:, None], real[:, None] & inside
        if first >= begin + 3:
            y = _convolved(
                x, x_row, taps, window, window_slot, CHANNELS, row, begin, slot, channel, mask, inside, False
            )
        else:
            y = _convolved(x, x_row, taps, window, window_slot, CHANNELS, row, begin, slot, channel, mask, inside, True)
        y = y * tl.sigmoid(y)
        if is_value:
            place = (first + t) * VALUE_HEADS + value_head
            raw = tl.load(a + (first + t) * a_row + value_head, mask=real, other=0.0).to(tl.float32)
            g = softplus(raw + tl.load(dt_bias + value_head)) * tl.load(rate + value_head)
            tl.store(decay + place, tl.cumsum(tl.where(real, g, 0.0), 0) * _LOG2_E, mask=real)
            beta = tl.load(b + (first + t) * b_row + value_head, mask=real, other=0.0).to(tl.float32)
            tl.store(betas + place, tl.sigmoid(beta), mask=real)
        else:
            y = y * tl.rsqrt(tl.sum(y * y, 1) + eps)[:, None]
        tl.store(qkv + row * CHANNELS + channel, y, mask=mask)
        if column >= 0:
            back = tl.arange(0, 4)[:, None]
            kept = (back < 3) & inside
            at = first + count - 3 + back
            window_row = _input(x, x_row, window, window_slot, CHANNELS, at, begin, slot, channel, kept)
            tl.store(rungs + column * rung_column + back * CHANNELS + channel, window_row, mask=kept)


def prepare(
    x: Tensor, b: Tensor, a: Tensor, taps: Tensor, rate: Tensor, dt_bias: Tensor, window: Tensor, rungs: Tensor,
    chunks: Chunks, key_heads: int, key_dim: int, *, eps: float = 1e-6,
) -> Mixed:  # fmt: skip
    """Convolution, SiLU, unit length of queries and keys, and gates of all rows; rungs receive their windows.

    x        [rows, channels]: query, key and value channels before the convolution; rows may be strided
    b, a     [rows, value_heads], strided alike
    taps     float32 [4, channels], oldest first
    rate     float32 [value_heads], −exp(A_log); dt_bias float32 [value_heads]
    window   [slots, 3 + …, channels], one layer's: the three inputs before each sequence's first row. Stays as it is
    rungs    [columns, 3, channels], one layer's place in the rung buffers; columns may be strided

    Beta is sigmoid(b) and g = rate · softplus(a + dt_bias).
    """
    (rows, channels), value_heads = x.shape, b.shape[1]
    value_dim = (channels - 2 * key_heads * key_dim) // value_heads
    assert taps.shape[0] == TAPS and window.stride(1) == channels and rungs.stride(1) == channels
    qkv = torch.empty(rows, channels, dtype=x.dtype, device=x.device)
    decay, beta = torch.empty(2, rows, value_heads, dtype=torch.float32, device=x.device)
    _prepare_kernel[(2 * key_heads + value_heads, chunks.first.shape[0])](
        x, x.stride(0), b, b.stride(0), a, a.stride(0), taps, rate, dt_bias, window, window.stride(0), rungs, rungs.stride(0),
        chunks.first, chunks.count, chunks.column, chunks.begin, chunks.slot, qkv, decay, beta, eps, KEY_HEADS=key_heads,
        KEY_DIM=key_dim, VALUE_HEADS=value_heads, VALUE_DIM=value_dim, ROWS=CHUNK,
        BLOCK=triton.next_power_of_2(max(key_dim, value_dim)), num_warps=8,
    )  # fmt: skip
    return Mixed(qkv, decay, beta, key_heads, key_dim, value_dim)


@triton.jit
def _keep_kernel(
    x, x_row, window, window_slot, begins, ends, slots, lasts, CHANNELS: tl.constexpr, BLOCK: tl.constexpr
):
    sequence = tl.program_id(1)
    begin, slot = tl.load(begins + tl.load(ends + sequence)), tl.load(slots + sequence)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask, row = channel < CHANNELS, tl.load(lasts + sequence) + tl.zeros([BLOCK], tl.int64)
    at = window + slot * window_slot + channel
    # all three are read before one is written
    x0 = _input(x, x_row, window, window_slot, CHANNELS, row - 3, begin, slot, channel, mask)
    x1 = _input(x, x_row, window, window_slot, CHANNELS, row - 2, begin, slot, channel, mask)
    x2 = _input(x, x_row, window, window_slot, CHANNELS, row - 1, begin, slot, channel, mask)
    tl.store(at, x0, mask=mask)
    tl.store(at + CHANNELS, x1, mask=mask)
    tl.store(at + 2 * CHANNELS, x2, mask=mask)


def keep_windows(x: Tensor, window: Tensor, chunks: Chunks) -> None:
    """Store each sequence's last three inputs in its slot's window. Comes after `prepare`, which reads the windows as they were.

    x, window   as in `prepare`
    """
    channels, block = x.shape[1], 1024
    _keep_kernel[(triton.cdiv(channels, block), chunks.slots.shape[0])](
        x, x.stride(0), window, window.stride(0), chunks.begin, chunks.ends, chunks.slots, chunks.last, CHANNELS=channels,
        BLOCK=block, num_warps=4,
    )  # fmt: skip


@triton.jit
def _inside_kernel(
    qkv, decay, beta, firsts, counts, columns, u, w,
    KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_HEADS: tl.constexpr, VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, chunk = tl.program_id(0), tl.program_id(1)
    first, count = tl.load(firsts + chunk), tl.load(counts + chunk)
    if tl.load(columns + chunk) != _PAD:
        CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
        key_head = head // (VALUE_HEADS // KEY_HEADS)
        t, i, j = tl.arange(0, ROWS), tl.arange(0, KEY_DIM), tl.arange(0, VALUE_DIM)
        real = t < count
        row, place = (first + t)[:, None], (first + t) * VALUE_HEADS + head
        k = tl.load(qkv + row * CHANNELS + (KEY_HEADS + key_head) * KEY_DIM + i[None, :], mask=real[:, None], other=0.0)
        d = tl.load(decay + place, mask=real, other=0.0)
        share = tl.load(beta + place, mask=real, other=0.0)
        from_row, to_row = t[None, :], t[:, None]
        below = (from_row < to_row) & (to_row < count)
        lower = tl.dot(k, tl.trans(k), input_precision=PRECISION) * share[:, None]
        lower = tl.where(below, lower * tl.exp2(tl.minimum(d[:, None] - d[None, :], 0.0)), 0.0)
        # [[A, 0], [C, B]]⁻¹ = [[A⁻¹, 0], [−B⁻¹ C A⁻¹, B⁻¹]], for blocks of 1, 2, 4, … 32 at once
        pair = (to_row // 2 == from_row // 2) & (from_row < to_row)
        inverse = tl.where(from_row == to_row, 1.0, tl.where(pair, -lower, 0.0))
        for level in tl.static_range(1, 6):
            corner = (to_row >> level + 1 == from_row >> level + 1) & (to_row >> level > from_row >> level)
            half = tl.dot(inverse, tl.where(corner, lower, 0.0), input_precision=PRECISION)
            inverse -= tl.dot(half, inverse, input_precision=PRECISION)
        solved = inverse.to(k.dtype)
        at = qkv + row * CHANNELS + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + j[None, :]
        v = (tl.load(at, mask=real[:, None], other=0.0).to(tl.float32) * share[:, None]).to(k.dtype)
        made = tl.dot(solved, v, input_precision=PRECISION)
        tl.store(u + place[:, None] * VALUE_DIM + j[None, :], made, mask=real[:, None])
        scaled = (k.to(tl.float32) * (share * tl.exp2(d))[:, None]).to(k.dtype)
        made = tl.dot(solved, scaled, input_precision=PRECISION)
        tl.store(w + place[:, None] * KEY_DIM + i[None, :], made, mask=real[:, None])


@triton.jit
def _through_kernel(
    qkv, decay, u, w, h, pool, pool_slot, rungs, rung_column, firsts, counts, columns, ends, slots,
    KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_HEADS: tl.constexpr, VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, sequence = tl.program_id(1), tl.program_id(2)
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    key = (KEY_HEADS + head // (VALUE_HEADS // KEY_HEADS)) * KEY_DIM
    t, i = tl.arange(0, ROWS), tl.arange(0, KEY_DIM)
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tile = i[:, None] * VALUE_DIM + j[None, :]
    own = pool + tl.load(slots + sequence) * pool_slot + head * KEY_DIM * VALUE_DIM + tile
    state = tl.load(own).to(tl.float32)
    for chunk in tl.range(tl.load(ends + sequence), tl.load(ends + sequence + 1), num_stages=STAGES):
        first, count = tl.load(firsts + chunk), tl.load(counts + chunk)
        real = t < count
        place = (first + t) * VALUE_HEADS + head
        kept = state.to(h.dtype.element_ty)
        tl.store(h + (chunk * VALUE_HEADS + head) * KEY_DIM * VALUE_DIM + tile, kept)
        old = tl.load(w + place[:, None] * KEY_DIM + i[None, :], mask=real[:, None], other=0.0)
        at = u + place[:, None] * VALUE_DIM + j[None, :]
        new = tl.load(at, mask=real[:, None], other=0.0).to(tl.float32)
        new -= tl.dot(old, kept, input_precision=PRECISION)
        tl.store(at, new, mask=real[:, None])
        last = tl.load(decay + (first + count - 1) * VALUE_HEADS + head)
        new *= tl.exp2(last - tl.load(decay + place, mask=real, other=0.0))[:, None]
        k = tl.load(qkv + (first + t)[:, None] * CHANNELS + key + i[None, :], mask=real[:, None], other=0.0)
        state = tl.dot(tl.trans(k), new.to(k.dtype), state * tl.exp2(last), input_precision=PRECISION)
        column = tl.load(columns + chunk)
        if column >= 0:
            tl.store(rungs + column * rung_column + head * KEY_DIM * VALUE_DIM + tile, state)
    tl.store(own, state)


@triton.jit
def _out_of_kernel(
    qkv, decay, u, h, z, z_row, weight, out, firsts, counts, columns, eps, scale,
    KEY_HEADS: tl.constexpr, KEY_DIM: tl.constexpr, VALUE_HEADS: tl.constexpr, VALUE_DIM: tl.constexpr,
    ROWS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    head, chunk = tl.program_id(0), tl.program_id(1)
    first, count = tl.load(firsts + chunk), tl.load(counts + chunk)
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + VALUE_HEADS * VALUE_DIM
    t, i, j = tl.arange(0, ROWS), tl.arange(0, KEY_DIM), tl.arange(0, VALUE_DIM)
    row, real = (first + t)[:, None], (t < count)[:, None]
    place = (first + t) * VALUE_HEADS + head
    target = out + place[:, None] * VALUE_DIM + j[None, :]
    if tl.load(columns + chunk) == _PAD:
        tl.store(target, tl.zeros([ROWS, VALUE_DIM], tl.float32), mask=real)
    else:
        own = qkv + row * CHANNELS + head // (VALUE_HEADS // KEY_HEADS) * KEY_DIM + i[None, :]
        q, k = tl.load(own, mask=real, other=0.0), tl.load(own + KEY_HEADS * KEY_DIM, mask=real, other=0.0)
        d = tl.load(decay + place, mask=t < count, other=0.0)
        tile = (chunk.to(tl.int64) * VALUE_HEADS + head) * KEY_DIM * VALUE_DIM + i[:, None] * VALUE_DIM + j[None, :]
        y = tl.dot(q, tl.load(h + tile), input_precision=PRECISION) * tl.exp2(d)[:, None]
        seen = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        seen = tl.where(t[None, :] <= t[:, None], seen * tl.exp2(tl.minimum(d[:, None] - d[None, :], 0.0)), 0.0)
        new = tl.load(u + place[:, None] * VALUE_DIM + j[None, :], mask=real, other=0.0)
        y = tl.dot(seen.to(new.dtype), new, y, input_precision=PRECISION) * scale
        gate = tl.load(z + row * z_row + head * VALUE_DIM + j[None, :], mask=real, other=0.0).to(tl.float32)
        y = y * tl.rsqrt(tl.sum(y * y, 1) / VALUE_DIM + eps)[:, None] * tl.load(weight + j)[None, :]
        tl.store(target, y * gate * tl.sigmoid(gate), mask=real)


@dataclass(frozen=True, slots=True)
class Tiles:
    """Columns of a state that one program carries, stages of its pipeline, and warps of the three kernels. They change last bits only."""

    columns: int = 32
    stages: int = 3
    inside: int = 4
    through: int = 4
    out_of: int = 4


def fold(
    mixed: Mixed, z: Tensor, weight: Tensor, eps: float, pool: Tensor, rungs: Tensor, chunks: Chunks,
    out: Tensor | None = None, tiles: Tiles | None = None,
) -> Tensor:  # fmt: skip
    """The gated delta rule over all rows, its outputs normed and gated: [rows, value_heads · value_dim] in the type of `z`.

    mixed    of the same chunks
    z        [rows, value_heads · value_dim]; rows may be strided
    weight   float32 [value_dim], plain; the norm is of each head
    pool     float32 [slots, value_heads, key_dim, value_dim], one layer's; slots may be strided. Moves on
    rungs    float32 [columns, value_heads, key_dim, value_dim], one layer's place in the rung buffers; columns may be strided
    out      contiguous; None: a new one
    tiles    None: the fastest tried

    A sequence that goes on at a multiple of 64 rows from where it began gives the same bits as one that was never cut.
    """
    tiles, rows, heads = tiles or Tiles(), mixed.qkv.shape[0], mixed.beta.shape[1]
    key_dim, value_dim, count = mixed.key_dim, mixed.value_dim, chunks.first.shape[0]
    sizes = {
        "KEY_HEADS": mixed.key_heads,
        "KEY_DIM": key_dim,
        "VALUE_HEADS": heads,
        "VALUE_DIM": value_dim,
        "ROWS": CHUNK,
    }
    exact = {"PRECISION": "ieee" if mixed.qkv.dtype == torch.float32 else "tf32"}
    u, w = mixed.qkv.new_empty(rows, heads, value_dim), mixed.qkv.new_empty(rows, heads, key_dim)
    _inside_kernel[(heads, count)](
        mixed.qkv, mixed.decay, mixed.beta, chunks.first, chunks.count, chunks.column, u, w, **sizes, **exact,
        num_warps=tiles.inside,
    )  # fmt: skip
    h, columns = mixed.qkv.new_empty(count, heads, key_dim, value_dim), min(tiles.columns, value_dim)
    _through_kernel[(value_dim // columns, heads, chunks.slots.shape[0])](
        mixed.qkv, mixed.decay, u, w, h, pool, pool.stride(0), rungs, rungs.stride(0), chunks.first, chunks.count,
        chunks.column, chunks.ends, chunks.slots, **sizes, **exact, BLOCK=columns, STAGES=tiles.stages,
        num_warps=tiles.through,
    )  # fmt: skip
    if out is None:
        out = torch.empty(rows, heads * value_dim, dtype=z.dtype, device=z.device)
    _out_of_kernel[(heads, count)](
        mixed.qkv, mixed.decay, u, h, z, z.stride(0), weight, out, chunks.first, chunks.count, chunks.column, eps,
        key_dim**-0.5, **sizes, **exact, num_warps=tiles.out_of,
    )  # fmt: skip
    return out
