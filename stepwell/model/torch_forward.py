"""One pass in plain torch: the operations of layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.model.backend import Output
from stepwell.model.batch import Draws, Memory, States
from stepwell.model.layers import Attention, DeltaNet, DenseMlp, Experts, Latent, Norm
from stepwell.model.torch_plans import Carrying, Folds, Held, InPlace, Steps
from stepwell.ops.attention import PagedAttention, write_kv, write_rows
from stepwell.ops.conv import causal_conv, conv_update
from stepwell.ops.delta_rule import DeltaInputs, delta_rule, delta_update
from stepwell.ops.experts import gated_mlp, mixture, route, route_by_bias
from stepwell.ops.norm import gated_rms_norm, inverse_rms, rms_norm
from stepwell.ops.pending import conv_step, delta_step, fold_pending
from stepwell.ops.ranks import Ranks
from stepwell.ops.rotary import Angles, rotate
from stepwell.ops.sampling import Draw, sample


@dataclass(frozen=True, slots=True, eq=False)
class TorchForward:
    """A planned pass. What ranks compute of half a layer is summed before it is added to the residual."""

    ranks: Ranks
    memory: Memory
    checkpoints: States
    tokens: Tensor
    angles: Angles
    place: Tensor
    attend: PagedAttention
    steps: Steps | None
    carrying: Carrying | None
    folds: Folds | None
    asked_rows: Tensor
    draws: Draws
    draw_slots: Tensor
    plain: bool

    @property
    def sampled(self) -> int:
        return len(self.draws)

    def run(self, body: Callable[[], Output]) -> Output:
        return body()

    def embed(self, table: Tensor) -> Tensor:
        return F.embedding(self.tokens, table)

    def norm(self, residual: Tensor, norm: Norm) -> Tensor:
        return rms_norm(residual, norm.weight, norm.eps)

    def asked(self, x: Tensor) -> Tensor:
        return x.index_select(0, self.asked_rows)

    def draw(self, logits: Tensor) -> Tensor:
        tokens = sample(logits.float(), _wanted(self.draws))
        # a row that broke drew no token: whatever is computed after it is dropped, but has to be a word of the vocabulary
        self.memory.draws.index_copy_(0, self.draw_slots, tokens.clamp_min(0))
        return tokens

    def attention(self, layer: Attention, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        if layer.latent is not None:
            return self._close(layer.out(self._through(layer, layer.latent, x)), residual, then)
        q, gate = self._store(layer, x)
        y = self.attend(q, self.memory.keys[layer.index], self.memory.values[layer.index])
        if (scales := self.memory.scales) is not None:
            y = y * _by_query_head(scales.values[layer.index], layer).to(y.dtype)
        y = y.flatten(1)
        return self._close(layer.out(y * gate.sigmoid() if layer.gated else y), residual, then)

    def _through(self, layer: Attention, latent: Latent, x: Tensor) -> Tensor:
        """Attention through latents, [rows, heads · value]: queries and outputs are turned to the latent's side, which is linear, so that
        no head's keys and values are ever made."""
        (_, own, rank), keys = latent.keys.shape, self.memory.keys[layer.index]
        each = own + layer.head_dim - rank
        q, row = layer.into(x).split_with_sizes((layer.heads * each, layer.head_dim), -1)
        made, shared = row.split_with_sizes((rank, layer.head_dim - rank), -1)
        kept = torch.cat((rms_norm(made, latent.norm.weight, latent.norm.eps), shared), -1)
        write_rows(kept.unsqueeze(1), keys, self.place)
        q, beside = q.view(-1, layer.heads, each).split_with_sizes((own, each - own), -1)
        turned = torch.einsum("nho,hor->nhr", q, latent.keys)
        # attention divides by the root of the latent's width, where a head's query has only `each` numbers
        queries = torch.cat((turned, beside), -1).mul_((layer.head_dim / each) ** 0.5)
        y = self.attend(queries, keys, self.memory.values[layer.index])
        return torch.einsum("nhr,hvr->nhv", y, latent.values).flatten(1)

    def before(self, x: Tensor) -> Tensor:
        assert self.carrying is not None
        of_slots = self.memory.live.hidden[0].index_select(0, self.carrying.slots)
        return torch.cat((of_slots, x)).index_select(0, self.carrying.before)

    def carry(self, x: Tensor) -> None:
        c = self.carrying
        assert c is not None
        self.memory.live.hidden[0].index_copy_(0, c.kept, x.index_select(0, c.rows))
        self.checkpoints.hidden[0].copy_(x.index_select(0, c.cut_rows))

    def keep(self, layer: Attention, x: Tensor) -> None:
        self._store(layer, x)

    def _store(self, layer: Attention, x: Tensor) -> tuple[Tensor, Tensor]:
        """Store keys and values; returns queries [rows, heads, head_dim] and gates [rows, heads · head_dim], empty if there are none."""
        rows, dim = x.shape[0], layer.head_dim
        inner, kv = layer.heads * dim, layer.kv_heads * dim
        qk, v, gate = layer.into(x).split_with_sizes((inner + kv, kv, inner if layer.gated else 0), -1)
        qk = qk.view(rows, -1, dim)
        normed = (
            qk.float() if layer.qk_norm is None else _normed(qk, layer.qk_norm, layer.heads if layer.whole else None)
        )
        both = rotate(normed, self.angles).to(x.dtype)
        q, k = both.split_with_sizes((layer.heads, layer.kv_heads), 1)
        v = v.view(rows, -1, dim)
        if (scales := self.memory.scales) is not None:
            of_keys, of_values = (part[layer.index] for part in (scales.keys, scales.values))
            q = q * _by_query_head(of_keys, layer).to(q.dtype)
            k, v = k / of_keys[:, None].to(k.dtype), v / of_values[:, None].to(v.dtype)
        k_pages, v_pages = self.memory.keys[layer.index], self.memory.values[layer.index]
        write_kv(k, v, k_pages, v_pages, self.place)
        return q, gate

    def delta_net(self, layer: DeltaNet, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        heads, low = layer.value_heads, layer.low_rank
        widths = (heads * layer.value_dim, heads, heads) if low is None else (layer.value_dim, heads, layer.key_dim)
        qkv, z, b, a = layer.into(x).split_with_sizes((layer.conv.shape[1], *widths), -1)
        if low is not None:
            z, a = low.gates(z), low.decays(a)
        beta = b.float().sigmoid()
        if layer.beta != 1.0:
            beta = beta * layer.beta
        g = F.softplus(a.float() + layer.dt_bias)
        g = g.mul_(layer.rate) if low is None else g.view(-1, heads, layer.key_dim).mul_(layer.rate.unsqueeze(-1))
        y, through = self._mixed(layer, qkv, g, beta), torch.sigmoid if layer.sigmoid else F.silu
        y = gated_rms_norm(y, z.view(-1, heads, layer.value_dim), layer.norm.weight, layer.norm.eps, through)
        return self._close(layer.out(y.flatten(1)), residual, then)

    def mlp(self, layer: DenseMlp, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        return self._close(gated_mlp(x, layer.gate_up, layer.down), residual, then)

    def experts(self, layer: Experts, x: Tensor, residual: Tensor, then: Norm) -> Tensor:
        logits, shared = layer.router(x), layer.shared
        if layer.bias is None:
            weights, chosen = route(logits[:, :-1] if layer.gated else logits, layer.top, layer.normed)
        else:
            weights, chosen = route_by_bias(logits, layer.bias, layer.top, layer.normed, layer.scale)
        mixed = mixture(x, weights, chosen, layer.gate_up, layer.down)
        if shared is not None:
            y = gated_mlp(x, shared.gate_up, shared.down)
            mixed.add_(y.mul_(logits[:, -1:].sigmoid()) if layer.gated else y)
        return self._close(mixed, residual, then)

    def _close(self, y: Tensor, residual: Tensor, then: Norm) -> Tensor:
        return self.norm(residual.add_(self.ranks.sum(y)), then)

    def _mixed(self, layer: DeltaNet, qkv: Tensor, g: Tensor, beta: Tensor) -> Tensor:
        """float32 [rows, value_heads, value_dim]: decodes, then prompts."""
        if self.steps is None:
            assert self.folds is not None, "a pass has rows"
            return self._fold(layer, qkv, g, beta, self.folds)
        if self.folds is None:
            return self._step(layer, qkv, g, beta, self.steps.slots)
        first = self.steps.count
        stepped = self._step(layer, qkv[:first], g[:first], beta[:first], self.steps.slots)
        return torch.cat((stepped, self._fold(layer, qkv[first:], g[first:], beta[first:], self.folds)))

    def _step(self, layer: DeltaNet, qkv: Tensor, g: Tensor, beta: Tensor, slots: Held | InPlace | Tensor) -> Tensor:
        """One token each; live states move on."""
        if isinstance(slots, Held):
            return self._hold(layer, qkv, g, beta, slots)
        if isinstance(slots, InPlace):
            mixed = conv_update(qkv, layer.conv, slots.windows[layer.index])
            return delta_update(_inputs(layer, mixed, g, beta), slots.states[layer.index])
        conv, recurrent = self.memory.live.conv[layer.index], self.memory.live.recurrent[layer.index]
        window, state = conv[slots], recurrent[slots].float()
        out = delta_update(_inputs(layer, conv_update(qkv, layer.conv, window), g, beta), state)
        conv[slots] = window
        recurrent[slots] = state.to(recurrent.dtype)
        return out

    def _hold(self, layer: DeltaNet, qkv: Tensor, g: Tensor, beta: Tensor, held: Held) -> Tensor:
        """Fold what is pending, look at the new tokens and keep their inputs."""
        index, live, ring, lanes = layer.index, self.memory.live, self.memory.rings[layer.index], held.lanes
        qkv, g, beta = (held.pad(y) for y in (qkv, g, beta))
        # rungs are taken afterwards, by looking ahead
        rungs, none = (live.conv[index, :0], live.recurrent[index, :0]), lanes.slots[:0]
        conv_step(qkv, g, beta, layer.conv, live.conv[index], rungs[0], lanes, none, ring, fold_new=False)
        out = g.new_empty(qkv.shape[0], layer.value_heads, layer.value_dim)
        delta_step(live.recurrent[index], rungs[1], lanes, none, ring, out, fold_new=False)
        return out if held.places is None else out.index_select(0, held.places)

    def _fold(self, layer: DeltaNet, qkv: Tensor, g: Tensor, beta: Tensor, folds: Folds) -> Tensor:
        index, back, live = layer.index, layer.conv.shape[0] - 1, self.memory.live
        conv, recurrent = live.conv[index], live.recurrent[index]
        left_windows, left_states = self.checkpoints.conv[index], self.checkpoints.recurrent[index]
        if folds.before is None:
            windows = conv.index_select(0, folds.slots)
        else:
            windows = fold_pending(recurrent, conv, folds.before, self.memory.rings[index], back)
        mixed, windows, at_cuts = causal_conv(qkv, layer.conv, windows, folds.conv)
        states = recurrent.index_select(0, folds.slots)
        out, states = delta_rule(_inputs(layer, mixed, g, beta), states, folds.chunks, left_states)
        conv[:, :back].index_copy_(0, folds.slots, windows)
        recurrent.index_copy_(0, folds.slots, states.to(recurrent.dtype))
        left_windows.copy_(at_cuts)
        return out


def _wanted(draws: Draws) -> list[Draw]:
    if draws.greedy:
        return []
    columns = (draws.temperature, draws.top_k, draws.top_p, draws.seed, draws.index, draws.min_p)
    return [Draw(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]


def _by_query_head(scales: Tensor, layer: Attention) -> Tensor:
    """Scales of KV heads for the query heads that read them, [heads, 1]."""
    return scales.repeat_interleave(layer.heads // layer.kv_heads).unsqueeze(-1)


def _normed(x: Tensor, norm: Norm, queries: int | None) -> Tensor:
    """float32. Each head by itself; or, with the number of query heads, these at once, and key heads at once."""
    y = x.float()
    if queries is None:
        return torch.mul(y, inverse_rms(y, norm.eps)).mul_(norm.weight)
    parts = [part * inverse_rms(part.flatten(1), norm.eps).unsqueeze(-1) for part in y.tensor_split((queries,), 1)]
    return torch.cat(parts, 1).mul_(norm.weight)


def _inputs(layer: DeltaNet, qkv: Tensor, g: Tensor, beta: Tensor) -> DeltaInputs:
    keys = layer.key_heads * layer.key_dim
    q, k, v = qkv.split_with_sizes((keys, keys, layer.value_heads * layer.value_dim), -1)
    q, k = (y.view(-1, layer.key_heads, layer.key_dim) for y in (q, k))
    return DeltaInputs(q, k, v.view(-1, layer.value_heads, layer.value_dim), g, beta)
