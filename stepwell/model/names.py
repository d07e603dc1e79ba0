"""The published names of every tensor of a text decoder, with shapes: [out, in] for matrices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from stepwell.base.architectures.architecture import Mixture
from stepwell.base.shapes import Latent, ModelShape
from stepwell.model.cuts import Shape

EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"
BIAS = "gate.e_score_correction_bias"
"""Of a mixture's tensors, what is added to the chances of experts where they are chosen."""
DRAFTS = "mtp."
"""Prefix of the layer that drafts (multi-token prediction)."""
DRAFT_LAYER = f"{DRAFTS}layers.0."


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def fused_experts(prefix: str) -> str:
    """Name that tells a layer with all experts in one tensor from one with a tensor for each."""
    return f"{prefix}mlp.experts.gate_up_proj"


def norms(shape: ModelShape, kind: str) -> tuple[str, str]:
    """Names of the norms of a layer of this kind."""
    own = shape.architecture
    return own.norms if kind == "full_attention" else own.recurrence.norms


def layer_prefixes(shape: ModelShape) -> list[str]:
    """What the names of each layer's tensors begin with, that of the layer that drafts included."""
    return [*(layer_prefix(i) for i in range(shape.layers)), *([DRAFT_LAYER] if shape.draft_layers else [])]


def in_order(expected: Iterable[str], tied: bool) -> list[str]:
    """The tensors that loading takes, about in the order in which it does: `expected` is that of layers."""
    last = (NORM,) if tied else (NORM, HEAD)
    return [name for name in expected if name not in (NORM, HEAD)] + list(last)


def expected(shape: ModelShape, fused: frozenset[str]) -> dict[str, Shape]:
    """Every tensor that must be there. `fused` are the prefixes of layers whose experts are stored in one tensor."""
    names: dict[str, Shape] = {EMBEDDING: (shape.vocab, shape.hidden), NORM: (shape.hidden,)}
    if not shape.tied:
        names[HEAD] = (shape.vocab, shape.hidden)
    for layer, (kind, expert) in enumerate(zip(shape.layer_types, shape.expert_layers, strict=True)):
        prefix = layer_prefix(layer)
        names.update(_layer(shape, prefix, kind, expert, prefix in fused))
    if shape.draft_layers:
        names[f"{DRAFTS}fc.weight"] = (shape.hidden, 2 * shape.hidden)
        for norm in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            names[f"{DRAFTS}{norm}.weight"] = (shape.hidden,)
        expert = any(shape.expert_layers)
        names.update(_layer(shape, DRAFT_LAYER, "full_attention", expert, DRAFT_LAYER in fused))
    return names


_IN_FP8 = (
    *(f"{name}_proj.weight" for name in ("q", "k", "v", "o", "gate", "up", "down", "out")),
    *(f"in_proj_{name}.weight" for name in ("qkv", "z", "qkvz")),
    *(f"experts.{name}_proj" for name in ("gate_up", "down")),
)


def official_fp8(name: str) -> bool:
    """Whether the official FP8 packs store this tensor in FP8: all large projections, but neither the head nor what is narrow."""
    return name.endswith(_IN_FP8)


def _layer(shape: ModelShape, prefix: str, kind: str, expert: bool, fused: bool) -> Iterator[tuple[str, Shape]]:
    for norm in norms(shape, kind):
        yield f"{prefix}{norm}.weight", (shape.hidden,)
    attention = _attention(shape) if shape.latent is None else _latent(shape, shape.latent)
    mixer = attention if kind == "full_attention" else _linear(shape)
    mlp = _experts(shape, fused) if expert else _mlp("mlp.", shape.hidden, shape.mlp_width)
    for part in (mixer, mlp):
        for name, size in part:
            yield prefix + name, size


def _attention(s: ModelShape) -> Iterator[tuple[str, Shape]]:
    inner, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
    yield "self_attn.q_proj.weight", (2 * inner if s.architecture.gated else inner, s.hidden)
    yield "self_attn.k_proj.weight", (kv, s.hidden)
    yield "self_attn.v_proj.weight", (kv, s.hidden)
    yield "self_attn.o_proj.weight", (s.hidden, inner)
    if s.architecture.qk_norm:
        whole = s.architecture.qk_norm_whole
        yield "self_attn.q_norm.weight", (inner if whole else s.head_dim,)
        yield "self_attn.k_norm.weight", (kv if whole else s.head_dim,)


def _linear(s: ModelShape) -> Iterator[tuple[str, Shape]]:
    own, heads = s.architecture.recurrence, s.value_heads
    inner, keys = heads * s.value_dim, s.key_heads * s.key_dim
    widths = {
        "in_proj_qkvz": s.conv_channels + inner, "in_proj_qkv": s.conv_channels, "in_proj_z": inner,
        "q_proj": keys, "k_proj": keys, "v_proj": inner, "g_proj": inner,
        "in_proj_ba": 2 * heads, "in_proj_b": heads, "in_proj_a": heads, "b_proj": heads, "a_proj": heads,
        "g_a_proj": s.value_dim, "f_a_proj": s.key_dim,
    }  # fmt: skip
    channels = {"conv1d": s.conv_channels, "q_conv1d": keys, "k_conv1d": keys, "v_conv1d": inner}
    for name in (*own.wide, *own.narrow):
        yield f"{own.prefix}{name}.weight", (widths[name], s.hidden)
    for name in own.convs:
        yield f"{own.prefix}{name}.weight", (channels[name], 1, s.conv_kernel)
    if own.low_rank is not None:
        gates, decays = own.low_rank
        yield f"{own.prefix}{gates}.weight", (inner, s.value_dim)
        yield f"{own.prefix}{decays}.weight", (heads * s.key_dim, s.key_dim)
    yield f"{own.prefix}A_log", (heads,) if own.low_rank is None else (1, 1, heads, 1)
    yield f"{own.prefix}dt_bias", (heads * s.decays,)
    yield f"{own.prefix}{own.norm}.weight", (s.value_dim,)
    yield f"{own.prefix}{own.out}.weight", (s.hidden, inner)


def _latent(s: ModelShape, latent: Latent) -> Iterator[tuple[str, Shape]]:
    yield "self_attn.q_proj.weight", (s.heads * (latent.own + latent.shared), s.hidden)
    yield "self_attn.kv_a_proj_with_mqa.weight", (latent.width, s.hidden)
    yield "self_attn.kv_a_layernorm.weight", (latent.rank,)
    yield "self_attn.kv_b_proj.weight", (s.heads * (latent.own + latent.value), latent.rank)
    yield "self_attn.o_proj.weight", (s.hidden, s.heads * latent.value)


GATED = Mixture().matrices


def _mlp(prefix: str, hidden: int, width: int, matrices: tuple[str, str, str] = GATED) -> Iterator[tuple[str, Shape]]:
    gate, up, down = matrices
    yield f"{prefix}{gate}.weight", (width, hidden)
    yield f"{prefix}{up}.weight", (width, hidden)
    yield f"{prefix}{down}.weight", (hidden, width)


def _experts(s: ModelShape, fused: bool) -> Iterator[tuple[str, Shape]]:
    own = s.architecture.mixture
    yield f"{own.prefix}gate.weight", (s.experts, s.hidden)
    if own.biased:
        yield f"{own.prefix}{BIAS}", (s.experts,)
    if s.architecture.shared_expert:
        if own.gated:
            yield f"{own.prefix}{own.shared}_gate.weight", (1, s.hidden)
        yield from _mlp(f"{own.prefix}{own.shared}.", s.hidden, s.shared_width)
    if fused:
        yield f"{own.prefix}experts.gate_up_proj", (s.experts, 2 * s.expert_width, s.hidden)
        yield f"{own.prefix}experts.down_proj", (s.experts, s.hidden, s.expert_width)
        return
    for expert in range(s.experts):
        yield from _mlp(f"{own.prefix}experts.{expert}.", s.hidden, s.expert_width, own.matrices)
