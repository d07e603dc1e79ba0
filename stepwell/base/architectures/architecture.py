"""What tells one decoder architecture from another, as plain values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

ExpertLayers: TypeAlias = Literal["none", "all", "listed"]


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder of layers in two residual halves: attention or a recurrence, then an MLP or a mixture of experts.

    model_type     as config.json names it
    wrapper        `model_type` of a vision model that holds this one as its `text_config`
    recurrent      layers are recurrent but for one in `full_attention_interval`, unless `layer_types` says otherwise; else all attend
    by_key_head    the recurrence's projections are stored key head by key head, in two matrices instead of four
    head_dim       where config.json does not say; None: hidden_size / num_attention_heads
    rotary_share   share of each head that is rotated, where config.json does not say
    gated          attention has an output gate, stored with the queries
    qk_norm        queries and keys are normed, head by head
    centred        weights of norms are stored about zero: 1 is added
    experts        which layers have experts: "listed" as `decoder_sparse_step` and `mlp_only_layers` say
    shared_expert  a mixture has one more expert that serves every token, behind its own gate
    norm_topk      whether the weights of a token's experts add up to 1, where config.json does not say
    fixed          further fields that have one served value each, which is also their default
    """

    model_type: str
    wrapper: str | None = None
    recurrent: bool = False
    by_key_head: bool = False
    head_dim: int | None = None
    rotary_share: float = 1.0
    gated: bool = False
    qk_norm: bool = True
    centred: bool = False
    experts: ExpertLayers = "none"
    shared_expert: bool = False
    norm_topk: bool = True
    fixed: tuple[tuple[str, object], ...] = ()
