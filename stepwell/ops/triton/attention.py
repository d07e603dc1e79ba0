"""What surrounds attention over pages: queries and keys made ready, keys and values stored, and decoding itself.

    k_pages, v_pages   [pages, block, kv_heads, head_dim]: one layer's view into the arena, strided over the pages; of the model's type,
                       or e4m3 values as they are
    k_scale, v_scale   float32 [kv_heads], powers of two: pages hold keys and values divided by them; None: as they are. Whoever reads such
                       pages has queries that were multiplied by the scales of keys, and multiplies the result by those of values

Query heads come in groups that share a KV head: query head h reads KV head h // (heads / kv_heads).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from stepwell.ops.triton.overlap import follow, overlap


@triton.jit
def _stored(x, pages):
    """As pages hold it. e4m3 has no infinity: what is too large becomes the largest value, not NaN."""
    if pages.dtype.element_ty == tl.float8e4nv:
        x = tl.minimum(tl.maximum(x.to(tl.float32), -448.0), 448.0)
    return x.to(pages.dtype.element_ty)


@triton.jit
def _qkv_kernel(
    qk, qk_row, v, v_row, q_norm, k_norm, cos, sin, q_out, k_pages, v_pages, page_stride, page, offset, k_scale, v_scale, eps,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr, ROTARY: tl.constexpr, BLOCK: tl.constexpr,
    SCALED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    head, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    i = tl.arange(0, BLOCK)
    mask = i < DIM
    follow(OVERLAP)
    place = tl.load(page + row) * page_stride + tl.load(offset + row) * KV_HEADS * DIM + i
    if head >= HEADS + KV_HEADS:
        value_head = head - HEADS - KV_HEADS
        raw = tl.load(v + row * v_row + value_head * DIM + i, mask=mask)
        if SCALED:
            raw = raw.to(tl.float32) / tl.load(v_scale + value_head)
        tl.store(v_pages + place + value_head * DIM, _stored(raw, v_pages), mask=mask)
    else:
        own = qk + row * qk_row + head * DIM
        half: tl.constexpr = ROTARY // 2
        turns = i < ROTARY
        partner = tl.where(turns, (i + half) % ROTARY, i)
        weight = q_norm if head < HEADS else k_norm
        x = tl.load(own + i, mask=mask, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, 0) / DIM + eps)
        x = x * scale * tl.load(weight + i, mask=mask, other=0.0)
        y = tl.load(own + partner, mask=mask & turns, other=0.0).to(tl.float32) * scale
        y = y * tl.load(weight + partner, mask=mask & turns, other=0.0)
        c = tl.load(cos + row * half + i % half, mask=turns, other=1.0)
        s = tl.load(sin + row * half + i % half, mask=turns, other=0.0)
        x = x * c + y * tl.where(i < half, -s, s)
        if SCALED:
            by = tl.load(k_scale + tl.where(head < HEADS, head // (HEADS // KV_HEADS), head - HEADS))
            x = tl.where(head < HEADS, x * by, x / by)
        if head < HEADS:
            tl.store(q_out + (row * HEADS + head) * DIM + i, x, mask=mask)
        else:
            tl.store(k_pages + place + (head - HEADS) * DIM, _stored(x, k_pages), mask=mask)


def qkv_step(
    qk: Tensor, v: Tensor, q_norm: Tensor, k_norm: Tensor, cos: Tensor, sin: Tensor,
    k_pages: Tensor, v_pages: Tensor, page: Tensor, offset: Tensor, eps: float,
    k_scale: Tensor | None = None, v_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Norm queries and keys, rotate them, store keys and values in their pages; returns queries [rows, heads, head_dim].

    qk              [rows, (heads + kv_heads) · head_dim]: query heads, then key heads; rows may be strided
    v               [rows, kv_heads · head_dim]; rows may be strided
    q_norm, k_norm  float32 [head_dim], with the 1 + of a zero-centred norm already in them
    cos, sin        float32 [rows, rotary / 2] of the rows' positions; dimensions i and i + rotary / 2 are a pair
    page, offset    int64 [rows]; a row that must not be stored names a sacrificial page
    """
    rows, (kv_heads, dim) = qk.shape[0], k_pages.shape[2:]
    heads = qk.shape[1] // dim - kv_heads
    assert k_pages.stride() == v_pages.stride() and k_pages.stride(1) == kv_heads * dim
    assert (k_scale is None) == (v_scale is None)
    q_out = torch.empty(rows, heads, dim, dtype=qk.dtype, device=qk.device)
    _qkv_kernel[(heads + 2 * kv_heads, rows)](
        qk, qk.stride(0), v, v.stride(0), q_norm, k_norm, cos, sin, q_out, k_pages, v_pages, k_pages.stride(0),
        page, offset, q_norm if k_scale is None else k_scale, q_norm if v_scale is None else v_scale, eps, HEADS=heads, KV_HEADS=kv_heads,
        DIM=dim, ROTARY=2 * cos.shape[1], BLOCK=triton.next_power_of_2(dim), SCALED=k_scale is not None, num_warps=1, **overlap(qk, rows),
    )  # fmt: skip
    return q_out


@triton.jit
def _gather_kernel(k_pages, v_pages, page_stride, pages, first, count, k_out, v_out, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    item = tl.program_id(0)
    source, target = tl.load(pages + item) * page_stride, tl.load(first + item) * WIDTH
    size = tl.load(count + item) * WIDTH
    for a in range(0, size, BLOCK):
        i = a + tl.arange(0, BLOCK)
        mask = i < size
        tl.store(k_out + target + i, tl.load(k_pages + source + i, mask=mask).to(k_out.dtype.element_ty), mask=mask)
        tl.store(v_out + target + i, tl.load(v_pages + source + i, mask=mask).to(v_out.dtype.element_ty), mask=mask)


def gather_kv(
    k_pages: Tensor, v_pages: Tensor, pages: Tensor, first: Tensor, count: Tensor, k_out: Tensor, v_out: Tensor
) -> None:
    """Copy keys and values out of pages into contiguous rows, in the type of those, for attention kernels that want them so.

    pages          int64 [n]
    first          int64 [n]: the row of the output at which each page's tokens begin
    count          int64 [n]: tokens to copy from each page's start; the rest of the page is not read
    k_out, v_out   [rows, kv_heads, head_dim], contiguous; rows that no page names keep what they hold
    """
    assert k_pages.stride() == v_pages.stride() and k_out.is_contiguous() and v_out.is_contiguous()
    width = k_pages.shape[2] * k_pages.shape[3]
    assert k_pages.stride(1) == width
    _gather_kernel[(pages.shape[0],)](
        k_pages, v_pages, k_pages.stride(0), pages, first, count, k_out, v_out, WIDTH=width, BLOCK=2048, num_warps=4
    )


@triton.jit(do_not_specialize=["table_row"])
def _decode_kernel(
    q, k_pages, v_pages, page_stride, table, table_row, lengths, counts, acc_out, max_out, sum_out, scale,
    BLOCK: tl.constexpr, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    DIM: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, STAGES: tl.constexpr, T: tl.constexpr,
    OVERLAP: tl.constexpr,
):  # fmt: skip
    split, kv_head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    follow(OVERLAP)
    length = tl.load(lengths + row).to(tl.int32)
    share = tl.cdiv(tl.cdiv(length, SPLITS), TILE) * TILE
    begin, end = split * share, tl.minimum(length, (split + 1) * share)
    member, d = tl.arange(0, ROWS), tl.arange(0, DIM)
    real = member < T * GROUP
    head = (row * T + member // GROUP) * HEADS + kv_head * GROUP + member % GROUP
    # each of the new tokens looks on itself and what is before it
    limit = length - tl.load(counts + row).to(tl.int32) + 1 + member // GROUP if T > 1 else length
    queries = tl.load(q + head[:, None] * DIM + d[None, :], mask=real[:, None], other=0.0)
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIM], tl.float32)
    for a in tl.range(begin, end, TILE, num_stages=STAGES):
        t = a + tl.arange(0, TILE)
        seen = t < end
        where = tl.load(table + row * table_row + t // BLOCK, mask=seen, other=0).to(tl.int64) * page_stride
        at = where + ((t % BLOCK) * KV_HEADS + kv_head) * DIM
        keys = tl.load(k_pages + at[:, None] + d[None, :], mask=seen[:, None], other=0.0).to(queries.dtype)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        if T > 1:
            scores = tl.where(seen[None, :] & (t[None, :] < limit[:, None]), scores, float("-inf"))
        else:
            scores = tl.where(seen[None, :], scores, float("-inf"))
        best = tl.maximum(top, tl.max(scores, 1))
        if (
            T > 1
        ):  # a tile may hold nothing that the first of the tokens looks on; NaN stays NaN, so that a broken row is seen
            best = tl.where(best == float("-inf"), -1e30, best)
        chances = tl.exp2(scores - best[:, None])
        fade = tl.exp2(top - best)
        total = total * fade + tl.sum(chances, 1)
        values = tl.load(v_pages + at[:, None] + d[None, :], mask=seen[:, None], other=0.0).to(queries.dtype)
        acc = acc * fade[:, None] + tl.dot(chances.to(values.dtype), values, input_precision="ieee")
        top = best
    part = head * SPLITS + split
    tl.store(max_out + part, top, mask=real)
    tl.store(sum_out + part, total, mask=real)
    if begin < end:
        tl.store(acc_out + part[:, None] * DIM + d[None, :], acc, mask=real[:, None])


@triton.jit
def _merge_kernel(
    acc, tops, sums, gate, gate_row, v_scale, out, HEADS: tl.constexpr, DIM: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK: tl.constexpr, WIDTH: tl.constexpr, GATED: tl.constexpr, GROUP: tl.constexpr, SCALED: tl.constexpr, OVERLAP: tl.constexpr,
):  # fmt: skip
    head, row = tl.program_id(1), tl.program_id(2).to(tl.int64)
    item, s, d = row * HEADS + head, tl.arange(0, BLOCK), tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    mask = s < SPLITS
    follow(OVERLAP)
    top = tl.load(tops + item * SPLITS + s, mask=mask, other=float("-inf"))
    share = tl.load(sums + item * SPLITS + s, mask=mask, other=0.0)
    # a row without tokens (padding) is 0, not NaN
    weight = tl.exp2(top - tl.maximum(tl.max(top, 0), -1e30))
    used = share != 0.0  # what is not a number is used, and seen
    parts = tl.load(acc + (item * SPLITS + s)[:, None] * DIM + d[None, :], mask=used[:, None], other=0.0)
    total = tl.sum(share * weight, 0)
    y = tl.sum(parts * weight[:, None], 0) / tl.where(total == 0.0, 1.0, total)
    if SCALED:
        y = y * tl.load(v_scale + head // GROUP)
    if GATED:
        y = y * tl.sigmoid(tl.load(gate + row * gate_row + head * DIM + d).to(tl.float32))
    tl.store(out + item * DIM + d, y)


LOG2_E = 1.4426950408889634
_PROGRAMS = 264  # two for each multiprocessor of an H200
_AT_ONCE = 396  # of these programs run on it at once, three for each: as many as have room in its registers
_FULL = 0.9


def splits_for(rows: int, kv_heads: int) -> int:
    """Into how many parts to divide each row's tokens, from 2 to 128: from shapes alone, whatever the number of tokens.

    With few rows, so that there is something for each multiprocessor to do; a power of two, because each number is a kernel of its own
    to compile. With many, so that the last programs do not run alone: 512 of them take a third of their time for the last 116.

    >>> [splits_for(rows, 2) for rows in (1, 3, 8, 64, 500)]
    [128, 32, 16, 3, 3]
    """
    pairs = rows * kv_heads
    wanted = min(128, _PROGRAMS // pairs)
    if wanted >= 4:
        return 1 << (wanted.bit_length() - 1)
    filled = {splits: _filled(pairs * splits) for splits in (2, 3, 4)}
    return next((splits for splits, share in filled.items() if share >= _FULL), max(filled, key=filled.__getitem__))


def _filled(programs: int) -> float:
    """The share of what could run meanwhile."""
    rounds: int = triton.cdiv(programs, _AT_ONCE)
    return programs / (rounds * _AT_ONCE)


def paged_decode(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, table: Tensor, lengths: Tensor, gate: Tensor | None, *,
    splits: int, counts: Tensor | None = None, tile: int | None = None, out: Tensor | None = None, v_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of the last tokens of each sequence over its pages, times sigmoid(gate): [rows, heads · head_dim].

    q         [rows, heads, head_dim]: T = rows / sequences rows of each sequence, one behind the other
    table     int32 [sequences, width]: their pages; entries beyond a length are not read
    lengths   int32 [sequences], the new tokens included; 0 gives zeros
    gate      [rows, heads · head_dim], rows may be strided; None: no gate
    splits    parts into which each sequence's tokens are divided, so that few of them fill the card. The result depends on it
              in the last bits, and on nothing else of the batch
    counts    int32 [sequences], new tokens of each, 1 … T: the first `counts` rows are theirs, each of which sees itself and what is
              before it. Rows behind them are padding: finite where their queries are. None: one each

    tile      tokens that one program works on at once
    out       contiguous; None: a new one

    Tokens are read once; parts are merged by their largest score and sum (flash decoding, Dao et al., 2023).
    """
    rows, heads, dim = q.shape
    sequences, block, kv_heads = lengths.shape[0], k_pages.shape[1], k_pages.shape[2]
    group, new = heads // kv_heads, rows // sequences
    tile = tile or (32 if splits > 64 or splits == 3 else 64)
    assert k_pages.stride() == v_pages.stride() and k_pages.stride(1) == kv_heads * dim
    assert (new == 1) == (counts is None)
    acc = torch.empty(rows, heads, splits, dim, dtype=torch.float32, device=q.device)
    tops = torch.empty(2, rows, heads, splits, dtype=torch.float32, device=q.device)
    _decode_kernel[(splits, kv_heads, sequences)](
        q, k_pages, v_pages, k_pages.stride(0), table, table.stride(0), lengths, lengths if counts is None else counts, acc, tops[0],
        tops[1], dim**-0.5 * LOG2_E, BLOCK=block, HEADS=heads, KV_HEADS=kv_heads, GROUP=group,
        ROWS=max(16, triton.next_power_of_2(new * group)), DIM=dim, TILE=tile, SPLITS=splits, STAGES=3, T=new, num_warps=4,
        **overlap(q, rows),
    )  # fmt: skip
    if out is None:
        out = torch.empty(rows, heads * dim, dtype=q.dtype, device=q.device)
    width = min(64, dim)
    _merge_kernel[(dim // width, heads, rows)](
        acc, tops[0], tops[1], q if gate is None else gate, 0 if gate is None else gate.stride(0), acc if v_scale is None else v_scale, out,
        HEADS=heads, DIM=dim, SPLITS=splits, BLOCK=triton.next_power_of_2(splits), WIDTH=width, GATED=gate is not None, GROUP=group,
        SCALED=v_scale is not None, num_warps=4, **overlap(q, rows),
    )  # fmt: skip
    return out
