"""What tells one decoder architecture from another, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

ExpertLayers: TypeAlias = Literal["none", "all", "listed"]
Norms: TypeAlias = tuple[str, str]
"""Names of a layer's norms: of the half that mixes tokens, and of its MLP."""
_NORMS = "input_layernorm", "post_attention_layernorm"


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How the tensors of a layer of the gated delta rule are stored, and what differs in its arithmetic.

    prefix        of the tensors' names, in their layer
    by_key_head   projections are stored key head by key head
    wide          projections to queries, keys, values and gates, in the order in which their rows are stacked
    narrow        those to b and a, one number for each value head
    low_rank      gates and a are products of two matrices: these are the second ones. `wide` and `narrow` have the first ones, to as many
                  numbers as a head has channels; a is then a number for each channel of a key, and so is the decay that follows from it
    convs         the convolution's channels, in the order of the projections'
    norm, out     the norm of what comes out of the state, and the projection behind it
    gate          what the gates behind that norm pass through
    norms         of these layers
    largest_beta  β lies between 0 and this; above 1 the state's sign may turn
    eps           of that norm, where it is not the model's
    sizes_given   config.json must name the sizes; else those of the released Qwen models are the defaults
    """

    prefix: str = "linear_attn."
    by_key_head: bool = False
    wide: tuple[str, ...] = ("in_proj_qkv", "in_proj_z")
    narrow: tuple[str, ...] = ("in_proj_b", "in_proj_a")
    low_rank: tuple[str, str] | None = None
    convs: tuple[str, ...] = ("conv1d",)
    norm: str = "norm"
    out: str = "out_proj"
    gate: Literal["silu", "sigmoid"] = "silu"
    norms: Norms = _NORMS
    largest_beta: float = 1.0
    eps: float | None = None
    sizes_given: bool = False


@dataclass(frozen=True, slots=True)
class Mixture:
    """How the tensors of a mixture of experts are stored, and how experts are chosen.

    prefix     of the tensors' names, in their layer
    matrices   an expert's: gate, up and down
    shared     the expert that serves every token
    gated      that expert has a gate of its own
    biased     an expert's chance is the sigmoid of its logit. Experts are chosen by it and a bias of their own, and weighted without the
               bias; else chances are a softmax
    """

    prefix: str = "mlp."
    matrices: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    shared: str = "shared_expert"
    gated: bool = True
    biased: bool = False


def _as_it_is(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return config


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder of layers in two residual halves: attention or a recurrence, then an MLP or a mixture of experts.

    model_type     as config.json names it
    reads          config.json with the fields that Qwen's have, from one that names them otherwise. Raises ConfigError
    wrapper        `model_type` of a vision model that holds this one as its `text_config`
    recurrent      layers are recurrent but for one in `full_attention_interval`, unless `layer_types` says otherwise; else all attend
    recurrence     how these layers are stored
    kv_heads_as_heads  a config.json without `num_key_value_heads` means as many as heads
    head_dim       where config.json does not say; None: hidden_size / num_attention_heads
    rotary_share   share of each head that is rotated, where config.json does not say
    rotary_optional  a config.json without `rope_theta` means that nothing is rotated
    latent         keys and values of a token are made from one row of few numbers, which is what is kept (multi-head latent attention)
    gated          attention has an output gate, stored with the queries
    qk_norm        queries and keys are normed, head by head
    qk_norm_whole  each of the two over all heads at once
    norms          of attention layers
    norm_after     in attention layers, norms are for what the halves compute, and not for what they read
    centred        weights of norms are stored about zero: 1 is added
    experts        which layers have experts: "listed" as `decoder_sparse_step` and `mlp_only_layers` say
    shared_expert  a mixture has one more expert, which serves every token
    mixture        how its experts are stored and chosen
    norm_topk      whether the weights of a token's experts add up to 1, where config.json does not say
    fixed          further fields that have one served value each, which is also their default
    """

    model_type: str
    wrapper: str | None = None
    reads: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _as_it_is
    recurrent: bool = False
    recurrence: Recurrence = Recurrence()
    kv_heads_as_heads: bool = False
    head_dim: int | None = None
    rotary_share: float = 1.0
    rotary_optional: bool = False
    latent: bool = False
    gated: bool = False
    qk_norm: bool = True
    qk_norm_whole: bool = False
    norms: Norms = _NORMS
    norm_after: bool = False
    centred: bool = False
    experts: ExpertLayers = "none"
    shared_expert: bool = False
    mixture: Mixture = Mixture()
    norm_topk: bool = True
    fixed: tuple[tuple[str, object], ...] = ()
