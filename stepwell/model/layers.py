"""The layers of a hybrid decoder: gated attention, gated delta net, MLPs. Each holds its weights, ready to multiply.

Projections that read the same input are one matrix, fused when they are loaded. Norm weights are float32 and hold the 1 +
of the zero-centred form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.model.batch import Batch, Decodes, Memory, Prefill, States, joined
from stepwell.ops.delta_rule import DeltaInputs
from stepwell.ops.experts import gated_mlp, mixture, route
from stepwell.ops.kernels import Kernels
from stepwell.ops.norm import gated_rms_norm, inverse_rms
from stepwell.ops.rotary import Angles, rotate


class Mixer(Protocol):
    """Mixes tokens of a sequence: x [n, hidden] → [n, hidden]. `index` counts the layers of the same kind."""

    def __call__(self, x: Tensor, batch: Batch, memory: Memory, angles: Angles, kernels: Kernels) -> Tensor: ...


class Mlp(Protocol):
    """Works on each token by itself: x [n, hidden] → [n, hidden]."""

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True, slots=True)
class Attention:
    """Full attention with an output gate.

    into   [heads · d + 2 · kv_heads · d + heads · d, hidden]: queries, keys, values, gate
    norm   float32 [heads + kv_heads, d]: the query norm once per head, then the key norm
    """

    index: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    into: Tensor
    norm: Tensor
    out: Tensor

    def __call__(self, x: Tensor, batch: Batch, memory: Memory, angles: Angles, kernels: Kernels) -> Tensor:
        count, dim = x.shape[0], self.head_dim
        inner, kv = self.heads * dim, self.kv_heads * dim
        qk, v, gate = F.linear(x, self.into).split_with_sizes((inner + kv, kv, inner), -1)
        both = qk.view(count, -1, dim).float()
        both = torch.mul(both, inverse_rms(both, self.eps)).mul_(self.norm)
        q, k = rotate(both, angles).to(x.dtype).split_with_sizes((self.heads, self.kv_heads), 1)
        k_pages, v_pages = memory.keys[self.index], memory.values[self.index]
        v = v.view(count, self.kv_heads, dim)
        if batch.written is not None:
            k, v = k.index_select(0, batch.written), v.index_select(0, batch.written)
        kernels.write_kv(k, v, k_pages, v_pages, batch.page, batch.offset)
        parts = []
        if batch.decodes is not None:
            parts.append(batch.decodes.attend(q[: batch.decodes.count], k_pages, v_pages))
        parts.extend(p.attend(q[p.rows], k_pages, v_pages) for p in batch.prefills)
        return F.linear(joined(parts).reshape(count, inner) * gate.sigmoid(), self.out)


@dataclass(frozen=True, slots=True)
class DeltaNet:
    """Gated delta rule behind a short convolution.

    into      [channels + value_heads · value_dim + 2 · value_heads, hidden]: queries, keys, values, gate, b, a
    conv      float32 [kernel, channels]
    rate      float32 [value_heads], −exp(A_log)
    dt_bias   float32 [value_heads]
    norm      float32 [value_dim]
    """

    index: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    eps: float
    into: Tensor
    conv: Tensor
    rate: Tensor
    dt_bias: Tensor
    norm: Tensor
    out: Tensor

    def __call__(self, x: Tensor, batch: Batch, memory: Memory, angles: Angles, kernels: Kernels) -> Tensor:
        inner, heads = self.value_heads * self.value_dim, self.value_heads
        mixed = F.linear(x, self.into)
        qkv, z, b, a = mixed.split_with_sizes((self.conv.shape[1], inner, heads, heads), -1)
        beta = b.float().sigmoid()
        g = F.softplus(a.float() + self.dt_bias).mul_(self.rate)
        conv, recurrent = memory.live.conv[self.index], memory.live.recurrent[self.index]
        parts = []
        if batch.decodes is not None:
            n = batch.decodes.count
            parts.append(self._decode(qkv[:n], g[:n], beta[:n], batch.decodes, conv, recurrent, kernels))
        for p in batch.prefills:
            r = p.rows
            parts.append(self._prefill(qkv[r], g[r], beta[r], p, conv, recurrent, kernels))
        y = gated_rms_norm(joined(parts), z.view(-1, heads, self.value_dim), self.norm, self.eps)
        return F.linear(y.flatten(1), self.out)

    def _inputs(self, qkv: Tensor, g: Tensor, beta: Tensor) -> DeltaInputs:
        keys = self.key_heads * self.key_dim
        q, k, v = qkv.split_with_sizes((keys, keys, self.value_heads * self.value_dim), -1)
        q, k = (y.view(-1, self.key_heads, self.key_dim) for y in (q, k))
        return DeltaInputs(q, k, v.view(-1, self.value_heads, self.value_dim), g, beta)

    def _decode(
        self, qkv: Tensor, g: Tensor, beta: Tensor, d: Decodes, conv: Tensor, recurrent: Tensor, kernels: Kernels
    ) -> Tensor:
        """One token each; the live states move on in place where they lie side by side in float32, else by copies."""
        window = conv[d.slots]
        mixed = kernels.conv_update(qkv, self.conv, window)
        state = recurrent[d.slots].float()
        out = kernels.delta_update(self._inputs(mixed, g, beta), state)
        if not isinstance(d.slots, slice):
            conv[d.slots] = window
        if not isinstance(d.slots, slice) or state.dtype != recurrent.dtype:
            recurrent[d.slots] = state.to(recurrent.dtype)
        return out

    def _prefill(
        self, qkv: Tensor, g: Tensor, beta: Tensor, p: Prefill, conv: Tensor, recurrent: Tensor, kernels: Kernels
    ) -> Tensor:
        mixed, window, windows = kernels.conv(qkv, self.conv, conv[p.slot], p.cuts)
        inputs = self._inputs(mixed, g, beta)
        out, state, states = kernels.delta_rule(inputs, recurrent[p.slot], p.start, p.cuts)
        for image, w, s in zip(p.images, windows, states, strict=True):
            self._keep(image, w, s)
        conv[p.slot] = window
        recurrent[p.slot] = state
        return out

    def _keep(self, image: States, window: Tensor, state: Tensor) -> None:
        image.conv[self.index] = window
        image.recurrent[self.index] = state


@dataclass(frozen=True, slots=True)
class DenseMlp:
    """gate_up [2 · width, hidden], down [hidden, width]."""

    gate_up: Tensor
    down: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return gated_mlp(x, self.gate_up, self.down)


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of `top` experts and one shared expert behind its own gate.

    router [experts, hidden]; gate_up [experts, 2 · width, hidden]; down [experts, hidden, width]; shared_gate [1, hidden]
    """

    top: int
    normed: bool
    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared: DenseMlp
    shared_gate: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        weights, chosen = route(x, self.router, self.top, self.normed)
        shared = self.shared(x).mul_(F.linear(x, self.shared_gate).sigmoid_())
        return mixture(x, weights, chosen, self.gate_up, self.down).add_(shared)
