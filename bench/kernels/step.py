"""One whole decode step of either shape, made of the kernels alone, in one CUDA graph: what an engine's decode comes down to.

Ten layers of weights and states stand for all of a model's, in turn: more than any cache holds, and less than its memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

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
    ROTARY,
    TOP,
    VALUE_HEADS,
    VOCAB,
    WIDTH,
    Shape,
    lanes,
    normal,
    ring,
    weights,
    whole,
)  # fmt: skip
from kernels.timing import time_us
from stepwell.ops.scaled import Matrix, Scaled
from stepwell.ops.triton import attention, experts, grouped, linear, norm, recurrent, sampling

LAYERS = {"M": 40, "D": 32, "M-FP8": 40}
EPS = 1e-6
Half = Callable[[Tensor, Tensor], Tensor]
"""Half a layer: normed rows and the residual → normed rows for the next half."""


def product(x: Tensor, weight: Matrix, *, tail: Tensor | None = None, cut: bool = False) -> Tensor:
    """`cut`: what follows sums parts."""
    parts = linear.parts_for(*weight.shape, x.shape[0], isinstance(weight, Scaled)) if cut else 1
    return linear.linear(x, weight, tail=tail, parts=parts)


@dataclass(frozen=True, slots=True)
class Step:
    """All halves in order, and what they work on."""

    halves: list[Half]
    x: Tensor
    residual: Tensor
    head: Tensor

    def __call__(self) -> Tensor:
        x = self.x
        for half in self.halves:
            x = half(x, self.residual)
        return sampling.greedy(product(x, self.head))


def build(shape: Shape, batch: int, context: int) -> Step:
    mixers: list[Half] = [_delta_net(shape, batch) for _ in range(8)]
    attentions: list[Half] = [_attention(shape, batch, context) for _ in range(2)]
    mlps: list[Half] = [_dense(shape) if shape.mlp else _experts(shape) for _ in range(10)]
    halves: list[Half] = []
    for i in range(LAYERS[shape.name]):
        halves += [attentions[i // 4 % 2] if i % 4 == 3 else mixers[i % 8], mlps[i % 10]]
    return Step(halves, normal(batch, shape.hidden), normal(batch, shape.hidden), weights(VOCAB, shape.hidden))


def step_ms(shape: Shape, batch: int, context: int = 4096) -> float:
    return time_us([build(shape, batch, context)]) / 1e3


def _scale(shape: Shape) -> Tensor:
    return torch.ones(shape.hidden, device=DEVICE)


def _delta_net(shape: Shape, batch: int) -> Half:
    into, tail, out = shape.projection("delta_in"), shape.tail("delta_in"), shape.projection("delta_out")
    pool = normal(batch + 1, VALUE_HEADS, DIM, DIM, dtype=torch.float32)
    window, rungs, own = normal(batch + 1, 3, CHANNELS), pool[batch:], ring(batch + 1, 1)
    taps, rate = normal(4, CHANNELS, dtype=torch.float32), -torch.rand(VALUE_HEADS, device=DEVICE)
    rows, scale, made = lanes(list(range(batch)), 100, [0] * batch), torch.ones(DIM, device=DEVICE), _scale(shape)

    def half(x: Tensor, residual: Tensor) -> Tensor:
        qkv, z, b, a = product(x, into, tail=tail).split((CHANNELS, INNER, VALUE_HEADS, VALUE_HEADS), -1)
        recurrent.conv_step(qkv, b, a, taps, rate, rate, window, window[batch:], rows, own, fold_new=True)
        y = torch.empty(batch, VALUE_HEADS, DIM, device=DEVICE)
        recurrent.delta_step(pool, rungs, rows, own, y, fold_new=True)
        y = product(norm.gated_rms_norm(y, z, scale, EPS), out, cut=True)
        return norm.add_rms_norm(y, residual, made, EPS)

    return half


def _attention(shape: Shape, batch: int, context: int) -> Half:
    into, out = shape.projection("attention_in"), shape.projection("attention_out")
    width, kv, inner = context // BLOCK, shape.kv_heads * HEAD_DIM, HEADS * HEAD_DIM
    memory = torch.empty(batch * width + 1, 2, BLOCK, shape.kv_heads, HEAD_DIM, dtype=torch.bfloat16, device=DEVICE)
    k, v = memory.normal_().unbind(1)
    table = torch.randperm(batch * width, device=DEVICE).int().view(batch, width)
    lengths = torch.full((batch,), context, dtype=torch.int32, device=DEVICE)
    page, offset, scale = whole(*[batch * width] * batch), whole(*[0] * batch), torch.ones(HEAD_DIM, device=DEVICE)
    angle, made = normal(batch, ROTARY // 2, dtype=torch.float32), _scale(shape)
    cos, sin, splits = angle.cos(), angle.sin(), attention.splits_for(batch, shape.kv_heads)

    def half(x: Tensor, residual: Tensor) -> Tensor:
        qk, values, gate = product(x, into).split((inner + kv, kv, inner), -1)
        q = attention.qkv_step(qk, values, scale, scale, cos, sin, k, v, page, offset, EPS)
        y = attention.paged_decode(q, k, v, table, lengths, gate, splits=splits)
        return norm.add_rms_norm(product(y, out, cut=True), residual, made, EPS)

    return half


def _dense(shape: Shape) -> Half:
    into, out = shape.projection("mlp_in"), shape.projection("mlp_out")
    made = _scale(shape)

    def half(x: Tensor, residual: Tensor) -> Tensor:
        h = linear.gated(x, into) if x.shape[0] <= linear.MOST_GATED else grouped.silu_gate(product(x, into))
        y = product(h, out, cut=True)
        return norm.add_rms_norm(y, residual, made, EPS)

    return half


def _experts(shape: Shape) -> Half:
    gate_up, down = shape.matrix(EXPERTS, 2 * WIDTH, shape.hidden), shape.matrix(EXPERTS, shape.hidden, WIDTH)
    shared = shape.matrix(2 * WIDTH, shape.hidden), shape.matrix(shape.hidden, WIDTH)
    router = shape.projection("router")
    made = _scale(shape)

    def half(x: Tensor, residual: Tensor) -> Tensor:
        chosen, share = experts.route(product(x, router, cut=True), TOP, True)
        return experts.mixture(x, chosen, share, gate_up, down, *shared, residual, made, EPS)

    return half
