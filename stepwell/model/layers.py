"""The layers of a hybrid decoder as records: sizes and weights, ready to multiply. How they are computed is the backend's matter.

Projections that read the same input are one matrix, fused when they are loaded. Norm weights are float32 and hold the 1 +
of the zero-centred form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from stepwell.model.backend import Forward
from stepwell.ops.linear import Linear, LinearStack


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """A root-mean-square norm; `weight` is float32."""

    weight: Tensor
    eps: float


class Half(Protocol):
    """Half a layer: mixes the tokens of a sequence, or works on each by itself.

    `x` [rows, hidden] is the normed residual. The result is added to `residual` in place; returns that, normed by `then` for the half
    that follows.
    """

    def __call__(self, forward: Forward, x: Tensor, residual: Tensor, then: Norm) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Attention:
    """Full attention. `index` counts the layers of the same kind.

    gated    there is an output gate
    into     hidden → heads · d queries, kv_heads · d keys, kv_heads · d values and, if `gated`, heads · d gates
    qk_norm  [heads + kv_heads, d]: the query norm once for each head, then the key norm; None: neither is normed
    whole    queries are normed over all heads at once, and so are keys; else each head by itself, over d
    """

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    gated: bool
    into: Linear
    qk_norm: Norm | None
    whole: bool
    out: Linear

    def __call__(self, forward: Forward, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        return forward.attention(self, x, residual, then)


@dataclass(frozen=True, slots=True, eq=False)
class DeltaNet:
    """Gated delta rule behind a short convolution. `index` counts the layers of the same kind.

    into      hidden → channels (queries, keys, values), value_heads · value_dim gates, value_heads b, value_heads a
    conv      float32 [kernel, channels]
    rate      float32 [value_heads], −exp(A_log)
    dt_bias   float32 [value_heads]
    norm      of each value head, over value_dim; plain, not zero-centred
    beta      what β is at most
    """

    index: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    into: Linear
    conv: Tensor
    rate: Tensor
    dt_bias: Tensor
    norm: Norm
    beta: float
    out: Linear

    def __call__(self, forward: Forward, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        return forward.delta_net(self, x, residual, then)


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """gate_up: hidden → width gates, width values; down: width → hidden."""

    gate_up: Linear
    down: Linear

    def __call__(self, forward: Forward, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        return forward.mlp(self, x, residual, then)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of `top` experts and, if there is one, a shared expert behind its own gate.

    router  hidden → the experts' logits, then the shared expert's gate
    """

    top: int
    normed: bool
    router: Linear
    gate_up: LinearStack
    down: LinearStack
    shared: DenseMlp | None

    def __call__(self, forward: Forward, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        return forward.experts(self, x, residual, then)


@dataclass(frozen=True, slots=True)
class NormedAfter:
    """A half that reads the residual as it is; what it computes is normed before it is added. By what the half before has normed `x` does
    not matter."""

    half: Half
    norm: Norm

    def __call__(self, forward: Forward, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        residual.add_(self.half(forward, residual, torch.zeros_like(residual), self.norm))
        return forward.norm(residual, then)
