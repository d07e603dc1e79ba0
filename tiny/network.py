"""The network as it is trained: Qwen3.5's layers and names, and its layer for multi-token prediction.

Every parameter has the name of the published checkpoints, so that the state dict is the checkpoint. Norms are zero-centred but for the
gated one. Checked against Transformers' `Qwen3_5ForCausalLM` by `tests/tiny/test_network.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiny.delta import gated_delta_rule

_FULL_EVERY = 4


@dataclass(frozen=True, slots=True)
class Sizes:
    """Widths of the model. 8.0 million parameters at the defaults, the draft layer's 0.9 million among them."""

    vocab: int = 4096
    hidden: int = 256
    layers: int = 8
    width: int = 640
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    key_heads: int = 2
    value_heads: int = 4
    linear_dim: int = 64
    kernel: int = 4
    rotary: int = 16
    theta: float = 1e6
    eps: float = 1e-6

    @property
    def keys(self) -> int:
        return self.key_heads * self.linear_dim

    @property
    def values(self) -> int:
        return self.value_heads * self.linear_dim

    def full(self, layer: int) -> bool:
        """Whether a layer is one of attention."""
        return (layer + 1) % _FULL_EVERY == 0

    def config(self, positions: int, ends: tuple[int, ...], pad: int) -> dict[str, Any]:
        """What config.json says."""
        return {
            "architectures": ["Qwen3_5ForCausalLM"],
            "attention_bias": False,
            "attention_dropout": 0.0,
            "dtype": "bfloat16",
            "eos_token_id": ends[0] if len(ends) == 1 else list(ends),
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "hidden_size": self.hidden,
            "intermediate_size": self.width,
            "layer_types": ["full_attention" if self.full(i) else "linear_attention" for i in range(self.layers)],
            "linear_conv_kernel_dim": self.kernel,
            "linear_key_head_dim": self.linear_dim,
            "linear_num_key_heads": self.key_heads,
            "linear_num_value_heads": self.value_heads,
            "linear_value_head_dim": self.linear_dim,
            "max_position_embeddings": positions,
            "model_type": "qwen3_5_text",
            "mtp_num_hidden_layers": 1,
            "num_attention_heads": self.heads,
            "num_hidden_layers": self.layers,
            "num_key_value_heads": self.kv_heads,
            "pad_token_id": pad,
            "rms_norm_eps": self.eps,
            "rope_parameters": {
                "partial_rotary_factor": self.rotary / self.head_dim,
                "rope_theta": self.theta,
                "rope_type": "default",
            },
            "tie_word_embeddings": True,
            "use_cache": True,
            "vocab_size": self.vocab,
        }


class Norm(nn.Module):
    """Root-mean-square norm with weights about zero."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.zeros(size))

    def forward(self, x: Tensor) -> Tensor:
        full = x.float()
        normed = full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + self.eps) * (1 + self.weight)
        return normed.type_as(x)


class GatedNorm(nn.Module):
    """Root-mean-square norm of each head, then times silu of a gate."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor, gate: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)) * F.silu(gate.float())


def linear(into: int, out: int) -> nn.Linear:
    return nn.Linear(into, out, bias=False)


class Mlp(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = linear(s.hidden, s.width), linear(s.hidden, s.width)
        self.down_proj = linear(s.width, s.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Attention(nn.Module):
    """Full attention behind an output gate, with rotary positions in the first dimensions of each head."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.sizes = s
        inner, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.q_proj = linear(s.hidden, 2 * inner)
        self.k_proj, self.v_proj = linear(s.hidden, kv), linear(s.hidden, kv)
        self.o_proj = linear(inner, s.hidden)
        self.q_norm, self.k_norm = Norm(s.head_dim, s.eps), Norm(s.head_dim, s.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        s, (batch, tokens, _) = self.sizes, x.shape
        query, gate = self.q_proj(x).view(batch, tokens, s.heads, 2 * s.head_dim).chunk(2, -1)
        query = rotated(self.q_norm(query).transpose(1, 2), cos, sin)
        key = rotated(self.k_norm(self.k_proj(x).view(batch, tokens, s.kv_heads, s.head_dim)).transpose(1, 2), cos, sin)
        value = self.v_proj(x).view(batch, tokens, s.kv_heads, s.head_dim).transpose(1, 2)
        key, value = (y.repeat_interleave(s.heads // s.kv_heads, 1) for y in (key, value))
        out = F.scaled_dot_product_attention(query, key, value.type_as(query), mask, is_causal=mask is None)
        out = out.transpose(1, 2).reshape(batch, tokens, -1)
        return self.o_proj(out * torch.sigmoid(gate.reshape(batch, tokens, -1)))


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`cos` and `sin` [tokens, rotary]; dimensions beyond stay as they are."""
    turned, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    first, second = turned.chunk(2, -1)
    return torch.cat((turned * cos + torch.cat((-second, first), -1) * sin, rest), -1).type_as(x)


class DeltaNet(nn.Module):
    """The gated delta rule behind a short convolution."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.sizes = s
        self.wiped: int | None = None  # token at which the state is forgotten; see `tiny.judge`
        channels = 2 * s.keys + s.values
        self.in_proj_qkv, self.in_proj_z = linear(s.hidden, channels), linear(s.hidden, s.values)
        self.in_proj_b, self.in_proj_a = linear(s.hidden, s.value_heads), linear(s.hidden, s.value_heads)
        self.conv1d = nn.Conv1d(channels, channels, s.kernel, groups=channels, padding=s.kernel - 1, bias=False)
        self.A_log = nn.Parameter(torch.empty(s.value_heads).uniform_(1, 16).log())
        step = torch.exp(torch.empty(s.value_heads).uniform_(math.log(1e-3), math.log(1e-1)))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = GatedNorm(s.linear_dim, s.eps)
        self.out_proj = linear(s.values, s.hidden)

    def forward(self, x: Tensor) -> Tensor:
        s, (batch, tokens, _) = self.sizes, x.shape
        mixed = self.in_proj_qkv(x)
        pieces = (mixed,) if self.wiped is None else (mixed[:, : self.wiped], mixed[:, self.wiped :])
        mixed = torch.cat([self._convolved(piece) for piece in pieces], 1)
        q, k, v = (
            y.view(batch, tokens, -1, s.linear_dim).transpose(1, 2) for y in mixed.split((s.keys, s.keys, s.values), -1)
        )
        q, k = (y.repeat_interleave(s.value_heads // s.key_heads, 1) for y in (q, k))
        beta = self.in_proj_b(x).float().sigmoid().transpose(1, 2)
        g = (-self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)).transpose(1, 2)
        if self.wiped is not None:
            g = torch.cat(
                (g[..., : self.wiped], g[..., self.wiped : self.wiped + 1] - 60, g[..., self.wiped + 1 :]), -1
            )
        with torch.autocast(x.device.type, enabled=False):
            out = gated_delta_rule(q, k, v, g, beta)
        gate = self.in_proj_z(x).view(batch, tokens, s.value_heads, s.linear_dim)
        return self.out_proj(self.norm(out.transpose(1, 2), gate).type_as(x).reshape(batch, tokens, -1))

    def _convolved(self, x: Tensor) -> Tensor:
        """Taps as shifted products: faster than a convolution of groups, and the same."""
        taps = self.conv1d.weight.squeeze(1)
        kernel, tokens = taps.shape[1], x.shape[1]
        padded = F.pad(x, (0, 0, kernel - 1, 0))
        return F.silu(sum(padded[:, i : i + tokens] * taps[:, i].type_as(x) for i in range(kernel)))


class Block(nn.Module):
    """One layer. `full` is whether it attends; the layer that drafts does."""

    def __init__(self, s: Sizes, full: bool) -> None:
        super().__init__()
        if full:
            self.self_attn = Attention(s)
        else:
            self.linear_attn = DeltaNet(s)
        self.full = full
        self.mlp = Mlp(s)
        self.input_layernorm, self.post_attention_layernorm = Norm(s.hidden, s.eps), Norm(s.hidden, s.eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, mask: Tensor | None) -> Tensor:
        normed = self.input_layernorm(x)
        x = x + (self.self_attn(normed, cos, sin, mask) if self.full else self.linear_attn(normed))
        return x + self.mlp(self.post_attention_layernorm(x))


class Body(nn.Module):
    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(s.vocab, s.hidden)
        self.layers = nn.ModuleList(Block(s, s.full(i)) for i in range(s.layers))
        self.norm = Norm(s.hidden, s.eps)


class Drafter(nn.Module):
    """Joins the embedding of token j with the hidden row of token j − 1, and predicts token j + 1."""

    def __init__(self, s: Sizes) -> None:
        super().__init__()
        self.fc = linear(2 * s.hidden, s.hidden)
        self.pre_fc_norm_embedding, self.pre_fc_norm_hidden = Norm(s.hidden, s.eps), Norm(s.hidden, s.eps)
        self.layers = nn.ModuleList([Block(s, full=True)])
        self.norm = Norm(s.hidden, s.eps)

    def forward(self, embedded: Tensor, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        before = F.pad(hidden, (0, 0, 1, -1))
        joined = self.fc(torch.cat((self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(before)), -1))
        return self.norm(self.layers[0](joined, cos, sin, None))


class Network(nn.Module):
    """The decoder and its drafter. The head is the embedding."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.model = Body(sizes)
        self.mtp = Drafter(sizes)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02 if "embed" in name else parameter.shape[1] ** -0.5)
                if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                    parameter.data.mul_((2 * sizes.layers) ** -0.5)
        frequencies = sizes.theta ** (-torch.arange(0, sizes.rotary, 2) / sizes.rotary)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def angles(self, tokens: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines [tokens, rotary] of positions from 0 on."""
        turned = torch.outer(torch.arange(tokens, device=self.frequencies.device).float(), self.frequencies)
        turned = torch.cat((turned, turned), -1)
        return turned.cos(), turned.sin()

    def hidden(self, ids: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Rows behind the final norm and behind the drafter's, [batch, tokens, hidden] each.

        ids   [batch, tokens], tokens a multiple of 64
        mask  bool [batch, 1, tokens, tokens], true where a token may look; None: at itself and all before
        """
        cos, sin = self.angles(ids.shape[1])
        embedded = x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin, mask)
        x = self.model.norm(x)
        return x, self.mtp(embedded, x, cos, sin)

    def logits(self, hidden: Tensor) -> Tensor:
        return F.linear(hidden, self.model.embed_tokens.weight)
