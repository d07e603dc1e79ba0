"""What is timed: for each kernel of a decode step its calls on memory of their own, and the bytes that it cannot avoid."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F

from kernels.shapes import (
    BLOCK,
    CHANNELS,
    DEVICE,
    DIM,
    EXPERTS,
    HEAD_DIM,
    HEADS,
    INNER,
    KEY_HEADS,
    ROTARY,
    TOP,
    VALUE_HEADS,
    VOCAB,
    WIDTH,
    Shape,
    chunks,
    lanes,
    nbytes,
    normal,
    ring,
    whole,
)  # fmt: skip
from kernels.timing import sets
from stepwell.ops.scaled import Scaled
from stepwell.ops.triton import attention, chunked, experts, grouped, linear, norm, recurrent, sampling
from stepwell.ops.triton.experts import Tiles
from stepwell.ops.triton.linear import Tile
from stepwell.ops.triton.sampling import Settings

Call = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """`calls` do the same on different memory; each has to move `bytes`."""

    name: str
    calls: list[Call]
    bytes: float


def cases(shape: Shape, batch: int) -> Iterator[Case]:
    for part in (recurrent_cases, attention_cases, norm_cases, linear_cases, sampling_cases):
        yield from part(shape, batch)
    if not shape.mlp:
        yield from expert_cases(shape, batch)


def recurrent_cases(shape: Shape, batch: int, blocks: tuple[int, ...] = (64,)) -> Iterator[Case]:
    each = 2 * batch * VALUE_HEADS * DIM * DIM * 4
    n = sets(each)
    pool, window = normal(n * batch + 1, VALUE_HEADS, DIM, DIM, dtype=torch.float32), normal(n * batch + 1, 3, CHANNELS)
    own, out = ring(n * batch + 1, 1), torch.empty(batch, VALUE_HEADS, DIM, device=DEVICE)
    weight, rate, bias = (
        normal(*size, dtype=torch.float32) for size in ((4, CHANNELS), (VALUE_HEADS,), (VALUE_HEADS,))
    )
    rungs, kept = pool[:1].clone(), window[:1].clone()
    mixed = normal(batch, CHANNELS + INNER + 2 * VALUE_HEADS)
    x, z, b, a = mixed.split((CHANNELS, INNER, VALUE_HEADS, VALUE_HEADS), -1)
    rows = [lanes(list(range(i * batch, (i + 1) * batch)), 100, [0] * batch) for i in range(n)]
    conv: list[Call] = [
        partial(recurrent.conv_step, x, b, a, weight, -rate.abs(), bias, window, kept, r, own, fold_new=True)
        for r in rows
    ]
    for call in conv:
        call()
    yield Case("conv_step", conv, 2 * batch * CHANNELS * (4 * 2 + 4))
    for block in blocks:
        delta: list[Call] = [
            partial(recurrent.delta_step, pool, rungs, r, own, out, fold_new=True, block=block) for r in rows
        ]
        yield Case("delta_step" if len(blocks) == 1 else f"delta_step {block}", delta, each)
    scale = rate.new_ones(DIM)
    yield Case("gated_norm", [partial(norm.gated_rms_norm, out, z, scale, 1e-6)] * 32, batch * INNER * 8)


def attention_cases(
    shape: Shape, batch: int, splits: tuple[int, ...] = (0,), tiles: tuple[int | None, ...] = (None,)
) -> Iterator[Case]:
    fused, first = normal(batch, (2 * HEADS + 2 * shape.kv_heads) * HEAD_DIM), (HEADS + shape.kv_heads) * HEAD_DIM
    qk, v, gate = fused[:, :first], fused[:, first : -HEADS * HEAD_DIM], fused[:, -HEADS * HEAD_DIM :]
    scale, angle = normal(HEAD_DIM, dtype=torch.float32), normal(batch, ROTARY // 2, dtype=torch.float32)
    cos, sin = angle.cos(), angle.sin()
    for context in (4096, 32768):
        width, token = context // BLOCK, 4 * shape.kv_heads * HEAD_DIM
        if batch * context > 1 << 19:
            continue
        n = min(shape.attention_layers, sets(batch * context * token))
        memory = torch.empty(batch * width + 1, shape.attention_layers, 2, BLOCK, shape.kv_heads, HEAD_DIM,
                             dtype=torch.bfloat16, device=DEVICE).normal_()  # fmt: skip
        layers = [(memory[:, i, 0], memory[:, i, 1]) for i in range(shape.attention_layers)]
        page, offset = whole(*[batch * width] * batch), whole(*[0] * batch)
        if context == 4096:
            step: list[Call] = [
                partial(attention.qkv_step, qk, v, scale, scale, cos, sin, *y, page, offset, 1e-6) for y in layers
            ]
            yield Case("qkv_step", step, batch * (first + HEADS * HEAD_DIM) * 2 * 2)
        table = torch.randperm(batch * width, device=DEVICE).int().view(batch, width)
        lengths = torch.full((batch,), context, dtype=torch.int32, device=DEVICE)
        q = normal(batch, HEADS, HEAD_DIM)
        for tile in tiles:
            for parts in splits:
                count = parts or attention.splits_for(batch, shape.kv_heads)
                calls: list[Call] = [
                    partial(attention.paged_decode, q, *y, table, lengths, gate, splits=count, tile=tile) for y in (layers * n)[: max(n, 8)]
                ]  # fmt: skip
                more = f" splits {parts} tile {tile}" if parts else ""
                yield Case(f"decode {context}{more}", calls, batch * context * token)
        del memory, layers


def norm_cases(shape: Shape, batch: int) -> Iterator[Case]:
    x, residual, scale = normal(batch, shape.hidden), normal(batch, shape.hidden), normal(shape.hidden).float()
    parts = normal(4, batch, shape.hidden, dtype=torch.float32)
    yield Case("add_norm", [partial(norm.add_rms_norm, x, residual, scale, 1e-6)] * 32, batch * shape.hidden * 8)
    yield Case(
        "add_norm parts", [partial(norm.add_rms_norm, parts, residual, scale, 1e-6)] * 32, batch * shape.hidden * 22
    )


def linear_cases(shape: Shape, batch: int, tiles: tuple[tuple[Tile, int], ...] = ()) -> Iterator[Case]:
    """Own products as a decode step calls them; `tiles` adds others, each with a number of parts."""
    for name, (width, depth) in shape.projections.items():
        count, tail = sets((1 if shape.fp8 else 2) * width * depth, 24), shape.tail(name)
        matrices = [shape.projection(name) for _ in range(count)]
        more = 0 if tail is None else tail.nbytes
        x, each = normal(batch, depth), nbytes(matrices[0]) + more + 2 * batch * (width + depth)
        plain = [w for w in matrices if not isinstance(w, Scaled)]
        if plain:
            yield Case(f"{name} torch", [partial(F.linear, x, w) for w in plain], each)
        if name == "mlp_in" and batch <= linear.MOST_GATED:
            yield Case(f"{name} gated", [partial(linear.gated, x, w) for w in matrices], each)
        parts = 1 if name.endswith("_in") else linear.parts_for(width, depth, batch, shape.fp8)
        yield Case(f"{name} own", [partial(linear.linear, x, w, tail=tail, parts=parts) for w in matrices], each)
        for tile, parts in tiles:
            if depth % (parts * tile.depth) == 0:
                own: list[Call] = [partial(linear.linear, x, w, tail=tail, tile=tile, parts=parts) for w in matrices]
                yield Case(f"{name} own {tile.columns}×{tile.depth}×{tile.stages}w{tile.warps}/{parts}", own, each)
        del matrices


def sampling_cases(shape: Shape, batch: int) -> Iterator[Case]:
    logits = [normal(batch, VOCAB, scale=3) for _ in range(8)]
    ones, seed = torch.ones(batch, device=DEVICE), torch.arange(batch, device=DEVICE)
    all_of = Settings(ones, ones.int() * 20, ones * 0.9, ones * 0, seed, seed)
    yield Case("greedy", [partial(sampling.greedy, y) for y in logits], batch * VOCAB * 2)
    yield Case("sample", [partial(sampling.sample, y, all_of) for y in logits], batch * VOCAB * 2)


def expert_cases(shape: Shape, batch: int, tiles: tuple[Tiles | None, ...] = (None,)) -> Iterator[Case]:
    gate_up, down = shape.matrix(EXPERTS, 2 * WIDTH, shape.hidden), shape.matrix(EXPERTS, shape.hidden, WIDTH)
    shared = shape.matrix(2 * WIDTH, shape.hidden), shape.matrix(shape.hidden, WIDTH)
    scale = normal(shape.hidden).float()
    logits = [normal(batch, EXPERTS + 1) for _ in range(12)]
    yield Case("route", [partial(experts.route, y, TOP, True) for y in logits], batch * EXPERTS * 2)
    routes = [experts.route(y, TOP, True) for y in logits]
    distinct = sum(int(chosen.unique().numel()) for chosen, _ in routes) / len(routes)
    each = distinct * (nbytes(gate_up) + nbytes(down)) / EXPERTS
    x, residual = normal(batch, shape.hidden), normal(batch, shape.hidden)
    for tile in tiles:
        calls: list[Call] = [
            partial(experts.mixture, x, c, w, gate_up, down, *shared, residual, scale, 1e-6, tile) for c, w in routes
        ]  # fmt: skip
        yield Case("mixture" if len(tiles) == 1 else f"mixture {tile}", calls, each)


def grouped_cases(shape: Shape, rows: int, tiles: tuple[grouped.Tiles | None, ...] = (None,)) -> Iterator[Case]:
    """A mixture for the tokens of a prompt; `bytes` holds the floating-point operations of its products instead."""
    gate_up, down = shape.matrix(EXPERTS, 2 * WIDTH, shape.hidden), shape.matrix(EXPERTS, shape.hidden, WIDTH)
    shared = shape.matrix(2 * WIDTH, shape.hidden), shape.matrix(shape.hidden, WIDTH)
    scale = normal(shape.hidden).float()
    x, residual = normal(rows, shape.hidden), normal(rows, shape.hidden)
    chosen, share = experts.route(normal(rows, EXPERTS + 1), TOP, True)
    flops = rows * (TOP + 1) * 6 * WIDTH * shape.hidden
    for tile in tiles:
        whole = partial(grouped.mixture_of_many, x, chosen, share, gate_up, down, *shared, residual, scale, 1e-6, tile)
        yield Case(f"mixture of {rows}" if tile is None else f"mixture of {rows} {tile}", [whole] * 4, flops)
    yield Case(f"  sort {rows}", [partial(grouped.sort_pairs, chosen, EXPERTS)] * 4, 0)


def prompt_cases(shape: Shape, rows: int) -> Iterator[Case]:
    """The delta rule of a prompt between the layer's products; `bytes` is 0."""
    mixed = normal(rows, CHANNELS + INNER + 2 * VALUE_HEADS)
    x, z, b, a = mixed.split((CHANNELS, INNER, VALUE_HEADS, VALUE_HEADS), -1)
    taps, scale = normal(4, CHANNELS, dtype=torch.float32), torch.ones(DIM, device=DEVICE)
    rate, window = -torch.rand(VALUE_HEADS, device=DEVICE), normal(1, 3, CHANNELS)
    pool, where = normal(1, VALUE_HEADS, DIM, DIM, dtype=torch.float32), chunks([rows], [0], [])
    none = window[:0], pool[:0]
    ready = partial(chunked.prepare, x, b, a, taps, rate, rate, window, none[0], where, KEY_HEADS, DIM)
    yield Case(f"prepare {rows}", [ready] * 4, 0)
    yield Case(f"fold {rows}", [partial(chunked.fold, ready(), z, scale, 1e-6, pool, none[1], where)] * 4, 0)
