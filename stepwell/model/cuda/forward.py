"""One pass on CUDA: the operations of layers, by kernels. Decodes are the first rows, prompts the rest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.model.backend import Output
from stepwell.model.batch import Memory, States
from stepwell.model.cuda.matrices import KernelLinear, KernelStack
from stepwell.model.cuda.plans import Decodes, Drawing, Paged, Prompts
from stepwell.model.cuda.prompts import PromptKernels
from stepwell.model.layers import Attention, DeltaNet, DenseMlp, Experts, Norm
from stepwell.model.torch_plans import Carrying
from stepwell.ops.linear import Linear
from stepwell.ops.pending import Lanes, Ring
from stepwell.ops.ranks import ALONE, Ranks
from stepwell.ops.scaled import Matrix
from stepwell.ops.triton import attention, chunked, experts, grouped, linear, norm, recurrent, sampling

_FEW = 128
"""Most rows of a mixture that is bound by reading weights."""


@dataclass(frozen=True, slots=True, eq=False)
class CudaForward:
    """A planned pass.

    tokens, page, offset   int64 [rows]
    cos, sin               float32 [rows, rotary / 2]
    asked_rows             int64; None: all rows, in order
    drawing                how its tokens are drawn
    carrying               the rows that drafts go on from; None: nothing drafts
    splits                 parts of the context in attention over pages; 0: as many as are fastest
    ranks                  those that hold the rest of each layer
    replay                 what computes and draws all of the pass at once; None: the operations do
    ring                   scratch between convolution and delta rule, shared by all layers
    """

    memory: Memory
    checkpoints: States
    tokens: Tensor
    page: Tensor
    offset: Tensor
    cos: Tensor
    sin: Tensor
    asked_rows: Tensor | None
    ring: Ring
    decodes: Decodes | None
    prompts: Prompts | None
    kernels: PromptKernels
    drawing: Drawing
    carrying: Carrying | None = None
    splits: int = 0
    ranks: Ranks = ALONE
    replay: Callable[[], Output] | None = None

    @property
    def sampled(self) -> int:
        return self.drawing.sampled

    @property
    def plain(self) -> bool:
        return self.drawing.plain

    def run(self, body: Callable[[], Output]) -> Output:
        return body() if self.replay is None else self.replay()

    def embed(self, table: Tensor) -> Tensor:
        return F.embedding(self.tokens, table)

    def norm(self, residual: Tensor, norm_of: Norm) -> Tensor:
        return norm.add_rms_norm(None, residual, norm_of.weight, norm_of.eps)

    def asked(self, x: Tensor) -> Tensor:
        return x if self.asked_rows is None else x.index_select(0, self.asked_rows)

    def draw(self, logits: Tensor) -> Tensor:
        settings = self.drawing.settings
        tokens = sampling.greedy(logits) if settings is None else sampling.sample(logits, settings)
        # a row that broke drew no token: whatever is computed after it is dropped, but has to be a word of the vocabulary
        self.memory.draws.index_copy_(0, self.drawing.slots, tokens.clamp_min(0))
        return tokens

    def attention(self, layer: Attention, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        q, gate = self._store(layer, x)
        k_pages, v_pages = self.memory.keys[layer.index], self.memory.values[layer.index]
        _, v_scale = self._scales(layer)
        y, first = torch.empty_like(gate, memory_format=torch.contiguous_format), 0
        if (d := self.decodes) is not None:
            first = d.rows
            attention.paged_decode(
                q[:first], k_pages, v_pages, d.table, d.lengths, gate[:first],
                splits=d.splits, counts=d.counts, out=y[:first], v_scale=v_scale,
            )  # fmt: skip
        if self.prompts is not None:
            attended = self._attend(q[first:], k_pages, v_pages, self.prompts)
            scale = None if v_scale is None else v_scale.repeat_interleave(layer.heads // layer.kv_heads)
            norm.sigmoid_gate(attended.flatten(1), gate[first:], y[first:], scale)
        return self._close(layer.out, y, residual, then)

    def _store(self, layer: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values; returns queries [rows, heads, head_dim] and gates [rows, heads · head_dim]."""
        inner, kv = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
        qk, v, gate = layer.into(x).split_with_sizes((inner + kv, kv, inner), -1)
        k_pages, v_pages = self.memory.keys[layer.index], self.memory.values[layer.index]
        assert layer.gated and layer.qk_norm is not None, "others are unfit for the kernels"
        q_norm, k_norm = layer.qk_norm.weight[0], layer.qk_norm.weight[layer.heads]
        q = attention.qkv_step(
            qk, v, q_norm, k_norm, self.cos, self.sin, k_pages, v_pages, self.page, self.offset, layer.qk_norm.eps,
            *self._scales(layer),
        )  # fmt: skip
        return q, gate

    def _scales(self, layer: Attention) -> tuple[Tensor | None, Tensor | None]:
        """Of keys and values, float32 [kv_heads]; None where they are stored as they are."""
        scales = self.memory.scales
        return (None, None) if scales is None else (scales.keys[layer.index], scales.values[layer.index])

    def before(self, x: Tensor) -> Tensor:
        c = self.carrying
        assert c is not None
        return torch.cat((self.memory.live.hidden[0].index_select(0, c.slots), x)).index_select(0, c.before)

    def keep(self, layer: Attention, x: Tensor) -> None:
        self._store(layer, x)

    def carry(self, x: Tensor) -> None:
        c = self.carrying
        assert c is not None
        if c.kept.numel():
            self.memory.live.hidden[0].index_copy_(0, c.kept, x.index_select(0, c.rows))
        if c.cut_rows.numel():
            self.checkpoints.hidden[0].copy_(x.index_select(0, c.cut_rows))

    def delta_net(self, layer: DeltaNet, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        heads, inner = layer.value_heads, layer.value_heads * layer.value_dim
        qkv, z, b, a = layer.into(x).split_with_sizes((layer.conv.shape[1], inner, heads, heads), -1)
        y, first = torch.empty_like(z, memory_format=torch.contiguous_format), 0
        if self.decodes is not None:
            first = self.decodes.rows
            stepped = self._step(layer, qkv[:first], b[:first], a[:first], self.decodes)
            norm.gated_rms_norm(stepped, z[:first], layer.norm.weight, layer.norm.eps, y[:first])
        if self.prompts is not None:
            self._fold(layer, qkv[first:], z[first:], b[first:], a[first:], self.prompts, y[first:])
        return self._close(layer.out, y, residual, then)

    def mlp(self, layer: DenseMlp, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        if x.shape[0] <= linear.MOST_GATED:
            return self._close(layer.down, linear.gated(x, _kernel(layer.gate_up).matrix), residual, then)
        return self._close(layer.down, grouped.silu_gate(layer.gate_up(x)), residual, then)

    def experts(self, layer: Experts, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        chosen, weights = experts.route(_kernel(layer.router).parts(x), layer.top, layer.normed)
        gate_up, down = _stack(layer.gate_up), _stack(layer.down)
        assert layer.shared is not None, "others are unfit for the kernels"
        shared_up, shared_down = _kernel(layer.shared.gate_up).matrix, _kernel(layer.shared.down).matrix
        few = x.shape[0] <= _FEW and chosen.numel() <= experts.MOST_PAIRS
        mixture = experts.mixture if few else grouped.mixture_of_many
        matrices = gate_up, down, shared_up, shared_down
        if self.ranks is ALONE:
            return mixture(x, chosen, weights, *matrices, residual, then.weight, then.eps)
        part = torch.zeros_like(residual)
        mixture(x, chosen, weights, *matrices, part, then.weight, then.eps)
        return norm.add_rms_norm(self.ranks.sum(part), residual, then.weight, then.eps)

    def _close(self, out: Linear, y: Tensor, residual: Tensor, then: Norm) -> Tensor:
        """What ranks compute is summed before it is added to the residual."""
        made = _kernel(out).parts(y) if self.ranks is ALONE else self.ranks.sum(out(y))
        return norm.add_rms_norm(made, residual, then.weight, then.eps)

    def _step(self, layer: DeltaNet, qkv: Tensor, b: Tensor, a: Tensor, decodes: Decodes) -> Tensor:
        conv, pool, rings = (*self._live(layer), self.memory.rings)
        ring, at_once, lanes = rings[layer.index] if rings else self.ring, not rings, decodes.lanes
        # rungs are copied from the live states afterwards, or looked at ahead
        recurrent.conv_step(
            qkv, b, a, layer.conv, layer.rate, layer.dt_bias, conv, conv, lanes, ring, fold_new=at_once
        )  # fmt: skip
        out = torch.empty(decodes.rows, layer.value_heads, layer.value_dim, dtype=torch.float32, device=qkv.device)
        recurrent.delta_step(pool, pool, lanes, ring, out, fold_new=at_once)
        return out

    def _live(self, layer: DeltaNet) -> tuple[Tensor, Tensor]:
        return self.memory.live.conv[layer.index], self.memory.live.recurrent[layer.index]

    def _fold_pending(self, layer: DeltaNet, qkv: Tensor, b: Tensor, a: Tensor, before: Lanes) -> None:
        """A step of no new tokens."""
        (conv, pool), ring = self._live(layer), self.memory.rings[layer.index]
        recurrent.conv_step(
            qkv[:0], b[:0], a[:0], layer.conv, layer.rate, layer.dt_bias, conv, conv, before, ring, fold_new=False
        )  # fmt: skip
        none = torch.empty(0, layer.value_heads, layer.value_dim, dtype=torch.float32, device=qkv.device)
        recurrent.delta_step(pool, pool, before, ring, none, fold_new=False)

    def _attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor, p: Prompts) -> Tensor:
        keys = p.keys
        if isinstance(keys, Paged):
            y = self.kernels.attend_pages(q, k_pages, v_pages, keys, self.splits)
            return y.masked_fill_(keys.padding[:, None, None], 0)
        k, v = (q.new_empty(sum(keys.lengths), *k_pages.shape[2:]) for _ in "kv")
        attention.gather_kv(k_pages, v_pages, keys.pages, keys.page_first, keys.page_count, k, v)
        return self.kernels.attend(q, k, v, keys)

    def _fold(self, layer: DeltaNet, qkv: Tensor, z: Tensor, b: Tensor, a: Tensor, p: Prompts, out: Tensor) -> None:
        (conv, pool), c = self._live(layer), p.chunks
        if p.before is not None:
            self._fold_pending(layer, qkv, b, a, p.before)
        windows, rungs = self.checkpoints.conv[layer.index], self.checkpoints.recurrent[layer.index]
        mixed = chunked.prepare(
            qkv, b, a, layer.conv, layer.rate, layer.dt_bias, conv, windows, c, layer.key_heads, layer.key_dim
        )
        chunked.keep_windows(qkv, conv, c)
        chunked.fold(mixed, z, layer.norm.weight, layer.norm.eps, pool, rungs, c, out)


def _kernel(matrix: Linear) -> KernelLinear:
    assert isinstance(matrix, KernelLinear), "layers hold the matrices that this backend made"
    return matrix


def _stack(matrices: object) -> Matrix:
    assert isinstance(matrices, KernelStack), "layers hold the matrices that this backend made"
    return matrices.weight
