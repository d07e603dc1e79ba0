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


@dataclass(frozen=True, slots=True, eq=False)
class Latent:
    """What attention through a latent has beside queries: one row of `rank` + `shared` numbers a token, from which keys and values follow.

    norm     of the first `rank` numbers, before they are kept
    keys     [heads, own, rank], from these to the part of a key that each head makes
    values   [heads, value, rank], from these to its value
    """

    norm: Norm
    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    """Full attention. `index` counts the layers of the same kind.

    gated    there is an output gate
    into     hidden → heads · d queries, kv_heads · d keys, kv_heads · d values and, if `gated`, heads · d gates
    qk_norm  [heads + kv_heads, d]: the query norm once for each head, then the key norm; None: neither is normed
    whole    queries are normed over all heads at once, and so are keys; else each head by itself, over d
    latent   None: keys and values are kept as they are. Else `into` leads to heads · (own + shared) queries and one row of
             d = rank + shared numbers, which is kept in their place
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
    latent: Latent | None = None

    def __call__(self, forward: Forward, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        return forward.attention(self, x, residual, then)


@dataclass(frozen=True, slots=True)
class LowRank:
    """The second halves of two products: to value_heads · value_dim gates, and to value_heads · key_dim a."""

    gates: Linear
    decays: Linear


@dataclass(frozen=True, slots=True, eq=False)
class DeltaNet:
    """Gated delta rule behind a short convolution. `index` counts the layers of the same kind.

    into      hidden → channels (queries, keys, values), value_heads · value_dim gates, value_heads b, value_heads a
    conv      float32 [kernel, channels]
    rate      float32 [value_heads], −exp(A_log)
    dt_bias   float32 [value_heads], or of each channel of their keys, [value_heads · key_dim]
    norm      of each value head, over value_dim; plain, not zero-centred
    beta      what β is at most
    low_rank  None: gates and a come out of `into`, and a head decays as a whole. Else `into` has value_dim numbers in place of the gates,
              and key_dim in place of a; these lead on to the gates, and to an a for each channel of a head's keys, which decays by itself
    sigmoid   gates pass through a sigmoid, else through SiLU
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
    low_rank: LowRank | None = None
    sigmoid: bool = False

    def __call__(self, forward: Forward, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        return forward.delta_net(self, x, residual, then)


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """gate_up: hidden → width gates, width values; down: width → hidden."""

    gate_up: Linear
    down: Linear

    def __call__(self, forward: Forward, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        return forward.mlp(self, x, residual, then)


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """A mixture of `top` experts and, if there is one, a shared expert.

    router  hidden → the experts' logits, then the shared expert's gate, if it is `gated`
    bias    None: chances are a softmax of the logits. Else float32 [experts]: chances are sigmoids, experts are chosen by chance and bias,
            and weighted by chance alone
    scale   by which the experts' weights are multiplied
    """

    top: int
    normed: bool
    router: Linear
    gate_up: LinearStack
    down: LinearStack
    shared: DenseMlp | None
    gated: bool = True
    bias: Tensor | None = None
    scale: float = 1.0

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
