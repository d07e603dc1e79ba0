"""Every kernel against its twin in float64 on real shapes: the error as a share of the twin's size."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

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
    arena,
    chunks,
    lanes,
    normal,
    ring,
    weights,
    whole,
)  # fmt: skip
from stepwell.ops.triton import attention, chunked, experts, grouped, linear, norm, recurrent, sampling, twins
from stepwell.ops.triton.sampling import Settings

WIDE = torch.float64


def error(found: Tensor, expected: Tensor) -> float:
    """‖found − expected‖ / ‖expected‖, NaN and missing values included."""
    expected = expected.to(WIDE)
    return float((found.to(WIDE) - expected).norm() / expected.norm())


def checks(shape: Shape) -> Iterator[tuple[str, float]]:
    torch.manual_seed(int.from_bytes(shape.name.encode(), "big"))
    for part in (_recurrent, _chunked, _attention, _norms, _linear, _sampling):
        yield from part(shape)
    if not shape.mlp:
        yield from _experts(shape)


def _recurrent(shape: Shape) -> Iterator[tuple[str, float]]:
    slots, rows, new = 5, [4, 0, 2], 3
    states, windows = normal(slots, VALUE_HEADS, DIM, DIM, dtype=torch.float32), normal(slots, 3 + new, CHANNELS)
    weight = normal(4, CHANNELS, dtype=torch.float32)
    rate, bias = -torch.rand(VALUE_HEADS, device=DEVICE), normal(VALUE_HEADS, dtype=torch.float32)
    made = []
    for ops, more in ((recurrent, {}), (twins, {"wide": WIDE})):
        torch.manual_seed(7)
        pool, window, own = states.clone(), windows.clone(), ring(slots, 2 * new)
        rungs, kept = (
            torch.zeros(1, *pool.shape[1:], device=DEVICE),
            torch.zeros(1, 3, CHANNELS, device=DEVICE).bfloat16(),
        )
        for committed, pending in ((100, [0, 0, 0]), (100, [2, 1, 3])):
            mixed = normal(3 * new, CHANNELS + INNER + 2 * VALUE_HEADS)
            x, _, b, a = mixed.split((CHANNELS, INNER, VALUE_HEADS, VALUE_HEADS), -1)
            out = torch.full((3 * new, VALUE_HEADS, DIM), float("nan"), device=DEVICE)
            now = lanes(rows, committed, pending, 0 if pending[0] else -1)
            ops.conv_step(x, b, a, weight, rate, bias, window, kept, now, own, fold_new=False, **more)
            ops.delta_step(pool, rungs, now, own, out, fold_new=False, **more)
        made.append((out, pool, rungs, window, kept))
    for name, found, expected in zip(("out", "states", "rung", "windows", "rung_window"), *made, strict=True):
        yield f"delta_{name}", error(found, expected)


def _chunked(shape: Shape) -> Iterator[tuple[str, float]]:
    """Two sequences, three rungs, one of them off the grid."""
    rows = chunks([1, 200], [3, 0], [(1, 64), (1, 100), (1, 150)])
    mixed = normal(201, CHANNELS + INNER + 2 * VALUE_HEADS)
    x, z, b, a = mixed.split((CHANNELS, INNER, VALUE_HEADS, VALUE_HEADS), -1)
    taps, scale = normal(4, CHANNELS, dtype=torch.float32), normal(DIM, dtype=torch.float32)
    rate, bias = -torch.rand(VALUE_HEADS, device=DEVICE), normal(VALUE_HEADS, dtype=torch.float32)
    states, windows = normal(4, VALUE_HEADS, DIM, DIM, dtype=torch.float32), normal(4, 3, CHANNELS)
    made, ready = [], []
    for ops, more in ((chunked, {}), (twins, {"wide": WIDE})):
        pool, window, rungs, kept = (y.clone() for y in (states, windows, states[:3], windows[:3]))
        ready.append(ops.prepare(x, b, a, taps, rate, bias, window, kept, rows, KEY_HEADS, DIM, **more))
        ops.keep_windows(x, window, rows)
        out = ops.fold(ready[0], z, scale, 1e-6, pool, rungs, rows, **more)
        made.append((out, pool, rungs, window, kept))
    for name in ("qkv", "decay", "beta"):
        yield f"chunked_{name}", error(*(getattr(y, name) for y in ready))
    names = ("out", "states", "rungs", "windows", "rung_windows")
    for name, found, expected in zip(names, *made, strict=True):
        yield f"chunked_{name}", error(found, expected)


def _attention(shape: Shape) -> Iterator[tuple[str, float]]:
    rows, width = 5, (2 * HEADS + 2 * shape.kv_heads) * HEAD_DIM
    fused, first = normal(rows, width), (HEADS + shape.kv_heads) * HEAD_DIM
    qk, v, gate = fused[:, :first], fused[:, first : -HEADS * HEAD_DIM], fused[:, -HEADS * HEAD_DIM :]
    norms = [normal(HEAD_DIM, dtype=torch.float32) for _ in "qk"]
    angle = normal(rows, ROTARY // 2, dtype=torch.float32)
    lengths = torch.tensor([1, 4096, 5001, 17, 0], dtype=torch.int32, device=DEVICE)
    page, offset, table = whole(3, 1, 4, 2, 5), whole(0, 3, 15, 8, 1), torch.randperm(5 * 313, device=DEVICE).int()
    made = []
    for ops, more in ((attention, {}), (twins, {"wide": WIDE})):
        pages = arena(5 * 313 + 1, shape)
        q = ops.qkv_step(qk, v, *norms, angle.cos(), angle.sin(), *pages, page, offset, 1e-6, **more)
        made.append((q, *(y[page, offset] for y in pages)))
    for name, found, expected in zip("qkv", *made, strict=True):
        yield f"qkv_{name}", error(found, expected)
    table = table.view(5, 313)
    for row, length in enumerate(lengths.tolist()):
        for y in pages:
            used = table[row, : -(-length // BLOCK)].long()
            filled = torch.full(
                (used.numel() * BLOCK, shape.kv_heads, HEAD_DIM), float("nan"), device=DEVICE
            ).bfloat16()
            filled[:length] = normal(length, shape.kv_heads, HEAD_DIM)
            y[used] = filled.view(-1, BLOCK, shape.kv_heads, HEAD_DIM)
    for splits in (1, 16):
        found = attention.paged_decode(q, *pages, table, lengths, gate, splits=splits)
        yield f"decode_{splits}", error(found, twins.paged_decode(q, *pages, table, lengths, gate, wide=WIDE))
    made = []
    for ops in (attention, twins):
        rows_out = [torch.zeros(5001, shape.kv_heads, HEAD_DIM, device=DEVICE).bfloat16() for _ in "kv"]
        where = torch.arange(313, device=DEVICE)
        ops.gather_kv(*pages, table[2].long(), where * BLOCK, (5001 - where * BLOCK).clamp_max(BLOCK), *rows_out)
        made.append(torch.stack(rows_out))
    yield "gather", error(*made)


def _norms(shape: Shape) -> Iterator[tuple[str, float]]:
    x, residual, weight = normal(5, shape.hidden), normal(5, shape.hidden), normal(shape.hidden, dtype=torch.float32)
    other = residual.clone()
    found = norm.add_rms_norm(x, residual, weight, 1e-6)
    yield "add_norm", error(found, twins.add_rms_norm(x, other, weight, 1e-6, WIDE))
    y, z = normal(5, VALUE_HEADS, DIM, dtype=torch.float32), normal(5, 2 * INNER)[:, INNER:]
    plain = normal(DIM, dtype=torch.float32)
    yield "gated_norm", error(norm.gated_rms_norm(y, z, plain, 1e-6), twins.gated_rms_norm(y, z, plain, 1e-6, WIDE))
    y = y.flatten(1).bfloat16()
    yield "sigmoid_gate", error(norm.sigmoid_gate(y, z), twins.sigmoid_gate(y, z, WIDE))


def _linear(shape: Shape) -> Iterator[tuple[str, float]]:
    width, depth = shape.projections["delta_in"]
    weight = weights(width, depth)
    for rows in (1, 8, 64):
        x = normal(rows, depth)
        yield f"linear_{rows}", error(linear.linear(x, weight), twins.linear(x, weight, WIDE))
        if rows <= linear.MOST_GATED:
            yield f"gated_{rows}", error(linear.gated(x, weight), twins.gated(x, weight, WIDE))
        if rows > 1:
            found = linear.linear(x, weight[:999], parts=2).sum(0)
            yield f"linear_parts_{rows}", error(found, twins.linear(x, weight[:999], WIDE))


def _sampling(shape: Shape) -> Iterator[tuple[str, float]]:
    """The share of rows whose token differs from the sorting twin's."""
    choices = [
        (0.0, 0, 1.0, 0.0),
        (1.0, 0, 1.0, 0.0),
        (0.7, 20, 0.8, 0.0),
        (1.0, 0, 0.95, 0.0),
        (1.0, 50, 1.0, 0.02),
    ] * 4
    heat, k, p, least = (torch.tensor(y, device=DEVICE) for y in zip(*choices, strict=True))
    seeds = torch.arange(20, device=DEVICE) * 2**33 - 5
    settings = Settings(heat.float(), k.int(), p.float(), least.float(), seeds, torch.full_like(seeds, 3))
    for dtype in (torch.bfloat16, torch.float32):
        logits = normal(20, VOCAB, dtype=dtype, scale=3)
        found, expected = sampling.sample(logits, settings), twins.sample(logits, settings)
        yield f"sample_{str(dtype)[6:]}", float((found != expected).float().mean())
    yield "greedy", float((sampling.greedy(logits) != logits.argmax(-1)).float().mean())


def _experts(shape: Shape) -> Iterator[tuple[str, float]]:
    gate_up, down = weights(EXPERTS, 2 * WIDTH, shape.hidden), weights(EXPERTS, shape.hidden, WIDTH)
    shared = weights(2 * WIDTH, shape.hidden), weights(shape.hidden, WIDTH)
    scale = normal(shape.hidden, dtype=torch.float32)
    for rows in (1, 8, 64):
        logits, x, residual = normal(rows, EXPERTS + 1), normal(rows, shape.hidden), normal(rows, shape.hidden)
        chosen, share = experts.route(logits, TOP, True)
        expected = twins.route(logits, TOP, True)
        yield f"route_{rows}", error(share, expected[1]) + float((chosen != expected[0]).float().mean())
        other, where = residual.clone(), (gate_up, down, *shared)
        found = experts.mixture(x, chosen, share, *where, residual, scale, 1e-6)
        again = other.clone()
        many = grouped.mixture_of_many(x, chosen, share, *where, again, scale, 1e-6)
        expected = twins.mixture(x, chosen, share, *where, other, scale, 1e-6, WIDE)
        yield f"mixture_{rows}", error(found, expected)
        yield f"mixture_of_many_{rows}", error(many, expected)
