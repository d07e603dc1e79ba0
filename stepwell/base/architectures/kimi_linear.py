"""Kimi Linear: three layers of Kimi Delta Attention to one of latent attention without positions, then experts chosen by sigmoids.

The delta rule is that of the others, but every channel of a key decays by itself (Kimi Linear technical report, 2025, arXiv:2510.26692).
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from stepwell.base.architectures.architecture import Architecture, Mixture, Recurrence
from stepwell.base.errors import ConfigError

_MOST = 1 << 24
_LINEAR = "linear_attn_config"
_NEWER = "use_full_rank_gate", "gate_lower_bound"
_RENAMED = {
    "num_experts_per_token": "num_experts_per_tok",
    "model_max_length": "max_position_embeddings",
    "moe_renormalize": "norm_topk_prob",
}


def _reads(config: Mapping[str, Any]) -> Mapping[str, Any]:
    own = config.get(_LINEAR)
    if not isinstance(own, Mapping):
        raise ConfigError(f"config.json of a kimi_linear needs {_LINEAR} as an object, not {own!r}")
    for name in _NEWER:
        if own.get(name):
            raise ConfigError(
                f"config.json has {name} = {own[name]!r} in {_LINEAR}: only models without it are supported"
            )
    heads, dim = own.get("num_heads"), own.get("head_dim")
    found = {
        "layer_types": _layer_types(_count(config, "num_hidden_layers"), own),
        "mlp_only_layers": range(_count(config, "first_k_dense_replace")),
        "shared_expert_intermediate_size": _count(config, "moe_intermediate_size")
        * _count(config, "num_shared_experts"),
        "linear_num_key_heads": heads,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": dim,
        "linear_value_head_dim": dim,
        "linear_conv_kernel_dim": own.get("short_conv_kernel_size"),
        **{ours: config[name] for name, ours in _RENAMED.items() if name in config},
    }
    # with `mla_use_nope` nothing is rotated, whatever the base
    return {name: value for name, value in {**config, **found}.items() if name not in ("rope_theta", "rope_scaling")}


def _count(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MOST:
        raise ConfigError(f"config.json needs {name} as a whole number up to {_MOST:,}, not {value!r}")
    return value


def _layer_types(layers: int, own: Mapping[str, Any]) -> list[str]:
    """Both lists count layers from 1."""
    full, linear = own.get("full_attn_layers"), own.get("kda_layers")
    if (
        not isinstance(full, list)
        or not isinstance(linear, list)
        or Counter([*map(repr, full), *map(repr, linear)])
        != Counter(map(repr, range(1, 1 + min(layers, len(full) + len(linear) + 1))))
    ):
        raise ConfigError(
            f"config.json needs each of its {layers} layers, from 1 on, in one of kda_layers = {linear} and full_attn_layers = {full}"
        )
    return ["full_attention" if i in full else "linear_attention" for i in range(1, 1 + layers)]


KIMI_LINEAR = Architecture(
    "kimi_linear",
    reads=_reads,
    recurrent=True,
    recurrence=Recurrence(
        prefix="self_attn.",
        wide=("q_proj", "k_proj", "v_proj", "g_a_proj"),
        narrow=("b_proj", "f_a_proj"),
        low_rank=("g_b_proj", "f_b_proj"),
        convs=("q_conv1d", "k_conv1d", "v_conv1d"),
        norm="o_norm",
        out="o_proj",
        gate="sigmoid",
        sizes_given=True,
    ),
    rotary_optional=True,
    latent=True,
    qk_norm=False,
    experts="listed",
    shared_expert=True,
    mixture=Mixture("block_sparse_moe.", ("w1", "w3", "w2"), "shared_experts", gated=False, biased=True),
    fixed=(
        ("mla_use_nope", True),
        ("q_lora_rank", None),
        ("moe_router_activation_func", "sigmoid"),
        ("num_expert_group", 1),
        ("topk_group", 1),
        ("moe_layer_freq", 1),
        ("num_nextn_predict_layers", 0),
        ("mla_use_output_gate", False),
    ),
)
