"""The published form of a small Kimi Linear checkpoint: fields of config.json, and names and shapes of tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

_RANK, _OWN, _SHARED = 32, 24, 8
"""Numbers of a latent, of the part of a key that a head makes of it, and of the part that all heads share."""


@dataclass(frozen=True, slots=True)
class Kimi:
    """Widths. Both kinds of heads have `dim` channels."""

    hidden: int
    heads: int
    linear_heads: int
    dim: int
    kernel: int
    experts: int
    width: int

    def fields(self, full: list[int], linear: list[int]) -> dict[str, Any]:
        """Of config.json; layers are counted from 0 here, and from 1 there."""
        return {
            "first_k_dense_replace": 1,
            "head_dim": self.hidden // self.heads,
            "kv_lora_rank": _RANK,
            "linear_attn_config": {
                "full_attn_layers": [i + 1 for i in full],
                "head_dim": self.dim,
                "kda_layers": [i + 1 for i in linear],
                "num_heads": self.linear_heads,
                "short_conv_kernel_size": self.kernel,
            },
            "mla_use_nope": True,
            "moe_intermediate_size": self.width,
            "moe_layer_freq": 1,
            "moe_renormalize": True,
            "moe_router_activation_func": "sigmoid",
            "num_expert_group": 1,
            "num_experts": self.experts,
            "num_experts_per_token": 2,
            "num_shared_experts": 1,
            "q_lora_rank": None,
            "qk_nope_head_dim": _OWN,
            "qk_rope_head_dim": _SHARED,
            "rms_norm_eps": 1e-3,  # far from what the norm of latents takes, so that one in place of the other shows
            "rope_theta": 10000.0,
            "routed_scaling_factor": 2.446,
            "topk_group": 1,
            "use_grouped_topk": True,
            "v_head_dim": self.dim,
        }

    def attention(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of a layer with latent attention."""
        h = self.hidden
        yield "self_attn.q_proj.weight", (self.heads * (_OWN + _SHARED), h)
        yield "self_attn.kv_a_proj_with_mqa.weight", (_RANK + _SHARED, h)
        yield "self_attn.kv_a_layernorm.weight", (_RANK,)
        yield "self_attn.kv_b_proj.weight", (self.heads * (_OWN + self.dim), _RANK)
        yield "self_attn.o_proj.weight", (h, self.heads * self.dim)

    def delta(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of a layer of the delta rule."""
        h, inner = self.hidden, self.linear_heads * self.dim
        for name in "qkv":
            yield f"self_attn.{name}_proj.weight", (inner, h)
            yield f"self_attn.{name}_conv1d.weight", (inner, 1, self.kernel)
        for name in "fg":
            yield f"self_attn.{name}_a_proj.weight", (self.dim, h)
            yield f"self_attn.{name}_b_proj.weight", (inner, self.dim)
        yield "self_attn.b_proj.weight", (self.linear_heads, h)
        yield "self_attn.A_log", (1, 1, self.linear_heads, 1)
        yield "self_attn.dt_bias", (inner,)
        yield "self_attn.o_norm.weight", (self.dim,)
        yield "self_attn.o_proj.weight", (h, inner)

    def mixture(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Of a layer with experts."""
        h, own = self.hidden, "block_sparse_moe."
        yield f"{own}gate.weight", (self.experts, h)
        yield f"{own}gate.e_score_correction_bias", (self.experts,)
        for expert in range(self.experts):
            for name, shape in (("w1", (self.width, h)), ("w2", (h, self.width)), ("w3", (self.width, h))):
                yield f"{own}experts.{expert}.{name}.weight", shape
        for name, shape in (("gate", (self.width, h)), ("up", (self.width, h)), ("down", (h, self.width))):
            yield f"{own}shared_experts.{name}_proj.weight", shape
