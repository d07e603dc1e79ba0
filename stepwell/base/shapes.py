"""What a model costs: bytes of KV and of state, parameters, FLOPs. Read from a config.json; no weights, no torch.

Sources of the field names: the published config.json of the models in `stepwell/base/architectures/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from stepwell.base.architectures import ARCHITECTURES, WRAPPERS, Architecture
from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry

Config = Mapping[str, Any]

LAYER_TYPES = ("linear_attention", "full_attention")
GDN_CHUNK = 64
"""Tokens in one chunk of the gated delta rule: the grid on which a resume is exact."""

_LARGEST_SIZE = 1 << 24
_MOST_LAYERS = 4096
_MOST_HEADS = 1 << 14
_MOST_EXPERTS = 1 << 16
_MOST_PARAMETERS = 10**14


@dataclass(frozen=True, slots=True)
class Widths:
    """Bytes of one element of the KV, of the convolution state and of the recurrent state."""

    kv: int = 2
    conv: int = 2
    state: int = 4


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of latent attention. One row of `width` numbers is kept of a token, for all heads alike.

    rank    numbers from which each head makes a key and a value of its own
    shared  further numbers of a key, which all heads have in common
    own     numbers of the key that a head makes; its queries have `own` + `shared`
    value   numbers of the value that it makes
    """

    rank: int
    shared: int
    own: int
    value: int

    @property
    def width(self) -> int:
        return self.rank + self.shared


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder: the whole of it, or what one of several tensor-parallel ranks holds (`shard`), which differs in its heads
    and in the widths of its MLPs. Those of the recurrence (`conv_kernel` to `value_dim`) mean nothing where no layer is recurrent.

    layer_types    one of "linear_attention", "full_attention" per layer
    expert_layers  True where the layer's MLP is a mixture of experts
    draft_layers   attention layers that draft (multi-token prediction), beside those of `layer_types`: 0 or 1
    latent         attention keeps latents: `kv_heads` is 1, `head_dim` the width of one, of which the first `value_width` stand for values
    """

    model_type: str
    vocab: int
    hidden: int
    layer_types: tuple[str, ...]
    expert_layers: tuple[bool, ...]
    heads: int
    kv_heads: int
    head_dim: int
    conv_kernel: int
    key_heads: int
    key_dim: int
    value_heads: int
    value_dim: int
    mlp_width: int
    experts: int
    experts_per_token: int
    expert_width: int
    shared_width: int
    tied: bool
    max_positions: int
    draft_layers: int = 0
    latent: Latent | None = None

    @classmethod
    def from_config(cls, config: Config) -> ModelShape:
        """Read a config.json, of the text model or its vision wrapper. Raises ConfigError naming the field at fault."""
        text = text_config(config)
        own = ARCHITECTURES[str(text["model_type"])]
        types = _layer_types(text, own)
        heads, latent = _size(text, "num_attention_heads", most=_MOST_HEADS), _latent(text, own)
        shape = cls(
            model_type=str(text["model_type"]),
            vocab=_size(text, "vocab_size"),
            hidden=_size(text, "hidden_size"),
            layer_types=types,
            expert_layers=_expert_layers(text, own, len(types)),
            heads=heads,
            kv_heads=1 if latent else _kv_heads(text, own, heads),
            head_dim=latent.width if latent else _head_dim(text, own, heads),
            conv_kernel=_recurrent_size(text, own, "linear_conv_kernel_dim", 4),
            key_heads=_recurrent_size(text, own, "linear_num_key_heads", 16, _MOST_HEADS),
            key_dim=_recurrent_size(text, own, "linear_key_head_dim", 128),
            value_heads=_recurrent_size(text, own, "linear_num_value_heads", 32, _MOST_HEADS),
            value_dim=_recurrent_size(text, own, "linear_value_head_dim", 128),
            mlp_width=_size(text, "intermediate_size", 0, least=0),
            experts=_size(text, "num_experts", 0, least=0, most=_MOST_EXPERTS),
            experts_per_token=_size(text, "num_experts_per_tok", 0, least=0),
            expert_width=_size(text, "moe_intermediate_size", 0, least=0),
            shared_width=_size(text, "shared_expert_intermediate_size", 0, least=0) if own.shared_expert else 0,
            tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
            max_positions=_size(text, "max_position_embeddings", 32768),
            latent=latent,
        )
        _check(shape)
        return shape

    @property
    def architecture(self) -> Architecture:
        """What the model computes."""
        return ARCHITECTURES[self.model_type]

    @property
    def layers(self) -> int:
        return len(self.layer_types)

    @property
    def attention_layers(self) -> int:
        return self.layer_types.count("full_attention")

    @property
    def linear_layers(self) -> int:
        return self.layer_types.count("linear_attention")

    @property
    def conv_channels(self) -> int:
        """Channels of one layer's convolution: queries, keys and values side by side."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def decays(self) -> int:
        """How many decays a value head has: one, or one for each channel of a key."""
        return 1 if self.architecture.recurrence.low_rank is None else self.key_dim

    @property
    def kv_rows(self) -> int:
        """Rows that are kept of a token by each KV head of a layer: a key and a value, or one that is both."""
        return 1 if self.latent else 2

    @property
    def value_width(self) -> int:
        """Numbers of a value as it is kept: of a row that is both, the first ones."""
        return self.latent.rank if self.latent else self.head_dim

    def drafting(self) -> ModelShape:
        """With the layer that drafts: its KV in each page, and in each image the hidden row from which it goes on."""
        return replace(self, draft_layers=1)

    def shard(self, ranks: int) -> ModelShape:
        """The shape that one of `ranks` tensor-parallel ranks holds; KV heads are repeated where there are too few.

        Raises ConfigError, naming the size, where ranks would not be alike.
        """
        if ranks > 1 and self.architecture.qk_norm_whole:
            raise ConfigError(
                f"--tensor-parallel-size {ranks}: a {self.model_type} norms over all heads at once, on one device: give 1"
            )
        for name, count in (
            ("num_attention_heads", self.heads),
            ("linear_num_key_heads", self.key_heads if self.linear_layers else 0),
            ("intermediate_size", self.mlp_width),
            ("moe_intermediate_size", self.expert_width),
            ("shared_expert_intermediate_size", self.shared_width),
        ):
            if ranks < 1 or count % ranks:
                raise ConfigError(f"--tensor-parallel-size {ranks} must divide {name} = {count}")
        if self.kv_heads % ranks and ranks % self.kv_heads:
            raise ConfigError(
                f"--tensor-parallel-size {ranks} must divide num_key_value_heads = {self.kv_heads}, or be its multiple"
            )
        return replace(
            self,
            heads=self.heads // ranks,
            kv_heads=max(1, self.kv_heads // ranks),
            key_heads=self.key_heads // ranks,
            value_heads=self.value_heads // ranks,
            mlp_width=self.mlp_width // ranks,
            expert_width=self.expert_width // ranks,
            shared_width=self.shared_width // ranks,
        )

    def kv_token_bytes(self, width: int = 2) -> int:
        """Bytes of KV of one token over all attention layers."""
        return (self.attention_layers + self.draft_layers) * self.kv_rows * self.kv_heads * self.head_dim * width

    def image_bytes(self, widths: Widths | None = None) -> int:
        """Bytes of one rung's image: recurrent and convolution state of all linear layers, and what drafts go on from."""
        w = widths or Widths()
        recurrent = self.value_heads * self.key_dim * self.value_dim * w.state
        conv = (self.conv_kernel - 1) * self.conv_channels * w.conv
        return self.linear_layers * (recurrent + conv) + self.draft_layers * self.hidden * w.conv

    def ring_bytes(self, depth: int, widths: Widths | None = None) -> int:
        """Bytes of the inputs of `depth` tokens that a live slot may keep beside its state."""
        w = widths or Widths()
        folded = 4 * (2 * self.key_heads * self.key_dim + self.value_heads * (self.value_dim + 1 + self.decays))
        return depth * self.linear_layers * (folded + self.conv_channels * w.conv)

    def geometry(self, block: int = 16, rung_grid: int = GDN_CHUNK, widths: Widths | None = None) -> Geometry:
        """How tokens and images map to pages."""
        w = widths or Widths()
        if not self.attention_layers:
            raise ConfigError("layer_types has no full_attention layer: a model needs at least one to have KV pages")
        return Geometry(block, rung_grid, block * self.kv_token_bytes(w.kv), self.image_bytes(w))

    def parameters(self, active: bool = False) -> int:
        """Parameters of one rank's matrices with both embeddings; `active`: only those that one token meets."""
        head = self.vocab * self.hidden
        total = head if self.tied else 2 * head
        for kind, expert in zip(self.layer_types, self.expert_layers, strict=True):
            total += self._mixer_parameters(kind) + self._mlp_parameters(expert, active)
        return total

    def prefill_flops(self, start: int, tokens: int) -> float:
        """FLOPs to compute `tokens` tokens after `start` that are there already, one row of logits included."""
        embeddings = self.vocab * self.hidden * (1 if self.tied else 2)
        matrices = 2.0 * (self.parameters(active=True) - embeddings) * tokens
        pairs = tokens * start + tokens * (tokens + 1) / 2
        attention = 2.0 * self.attention_layers * self.heads * (self.head_dim + self.value_width) * pairs
        return matrices + attention + self._recurrent_flops() * tokens + 2.0 * self.vocab * self.hidden

    def _mixer_parameters(self, kind: str) -> int:
        if kind == "full_attention" and (latent := self.latent):
            by_head = self.hidden * (latent.own + latent.shared + latent.value) + latent.rank * (
                latent.own + latent.value
            )
            return self.heads * by_head + self.hidden * latent.width
        if kind == "full_attention":
            by_heads = 3 if self.architecture.gated else 2  # queries, output, and gates
            return self.hidden * self.head_dim * (by_heads * self.heads + 2 * self.kv_heads)
        inner, convolved = self.value_heads * self.value_dim, self.conv_channels * self.conv_kernel
        if self.architecture.recurrence.low_rank is not None:
            decays = self.value_heads * self.key_dim
            into = self.conv_channels + inner + self.value_heads + self.value_dim + self.key_dim
            return self.hidden * into + self.value_dim * inner + self.key_dim * decays + convolved
        return self.hidden * (self.conv_channels + 2 * inner + 2 * self.value_heads) + convolved

    def _mlp_parameters(self, expert: bool, active: bool) -> int:
        if not expert:
            return 3 * self.hidden * self.mlp_width
        count = self.experts_per_token if active else self.experts
        routed = self.experts + (self.architecture.shared_expert and self.architecture.mixture.gated)
        return 3 * self.hidden * (count * self.expert_width + self.shared_width) + self.hidden * routed

    def _recurrent_flops(self) -> float:
        """Per token, in chunks of 64: three products with the state, and the products inside a chunk (half masked)."""
        state = 6.0 * self.key_dim * self.value_dim
        inside = 2.0 * GDN_CHUNK * (self.key_dim + self.value_dim)
        return self.linear_layers * self.value_heads * (state + inside)


def text_config(config: Config) -> Config:
    """The text part of a config.json, its `model_type` checked. Raises ConfigError naming what is supported."""
    kind = config.get("model_type")
    if kind in WRAPPERS:
        inner = config.get("text_config")
        if not isinstance(inner, Mapping):
            raise ConfigError(f"config.json of model_type {kind!r} needs a text_config object")
        return {"model_type": WRAPPERS[kind], **inner}
    if kind not in ARCHITECTURES:
        raise ConfigError(
            f"config.json has model_type {kind!r}: supported are {', '.join((*ARCHITECTURES, *WRAPPERS))}"
        )
    return ARCHITECTURES[str(kind)].reads(config)


def _size(config: Config, name: str, default: int | None = None, least: int = 1, most: int = _LARGEST_SIZE) -> int:
    value = config.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"config.json needs {name} as a whole number of at least {least}, not {value!r:.40}")
    if value > most:
        raise ConfigError(
            f"config.json has {name} = {value!r:.40}: no model has more than {most:,}; mend it, or fetch it again"
        )
    return value


def _recurrent_size(config: Config, own: Architecture, name: str, usual: int, most: int = _LARGEST_SIZE) -> int:
    return _size(config, name, None if own.recurrence.sizes_given else usual, most=most)


def _kv_heads(config: Config, own: Architecture, heads: int) -> int:
    """A Llama or OLMo whose config.json leaves them out, or null, has as many as heads, in Transformers as well."""
    if own.kv_heads_as_heads and config.get("num_key_value_heads") is None:
        return heads
    return _size(config, "num_key_value_heads", most=_MOST_HEADS)


def _head_dim(config: Config, own: Architecture, heads: int) -> int:
    default = own.head_dim or _size(config, "hidden_size") // heads
    return default if config.get("head_dim") is None else _size(config, "head_dim")


def _latent(config: Config, own: Architecture) -> Latent | None:
    if not own.latent:
        return None
    return Latent(
        *(_size(config, name) for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    )


def _layer_types(config: Config, own: Architecture) -> tuple[str, ...]:
    layers = _size(config, "num_hidden_layers", most=_MOST_LAYERS)
    types = config.get("layer_types")
    if types is None and not own.recurrent:
        return ("full_attention",) * layers
    if types is None:
        every = _size(config, "full_attention_interval", 4)
        return tuple(LAYER_TYPES[(i + 1) % every == 0] for i in range(layers))
    if not isinstance(types, list | tuple) or len(types) != layers:
        raise ConfigError(f"config.json needs one layer_types entry for each of its {layers} layers")
    for kind in types:
        if kind not in (served := LAYER_TYPES if own.recurrent else LAYER_TYPES[1:]):
            raise ConfigError(f"layer_types of a {own.model_type} has {kind!r}: supported: {' and '.join(served)}")
    return tuple(types)


def _expert_layers(config: Config, own: Architecture, layers: int) -> tuple[bool, ...]:
    if own.experts != "listed":
        return (own.experts == "all",) * layers
    dense = config.get("mlp_only_layers") or ()
    step = _size(config, "decoder_sparse_step", 1)
    some = _size(config, "num_experts", 0, least=0) > 0
    return tuple(some and i not in dense and (i + 1) % step == 0 for i in range(layers))


def _check(shape: ModelShape) -> None:
    """Relations between fields that the kernels rely on."""
    for big, small, names in (
        (shape.heads, shape.kv_heads, "num_attention_heads and num_key_value_heads"),
        (shape.value_heads, shape.key_heads, "linear_num_value_heads and linear_num_key_heads"),
    ):
        if big % small:
            raise ConfigError(
                f"config.json: the first of {names} must be a multiple of the second, not {big} and {small}"
            )
    if any(shape.expert_layers):
        if not 0 < shape.experts_per_token <= shape.experts:
            raise ConfigError(f"num_experts_per_tok must lie in 1 … num_experts = {shape.experts}")
        if not shape.expert_width:
            raise ConfigError("a mixture of experts needs moe_intermediate_size")
        if shape.architecture.shared_expert and not shape.shared_width:
            raise ConfigError(f"the experts of a {shape.model_type} need shared_expert_intermediate_size")
    if not all(shape.expert_layers) and not shape.mlp_width:
        raise ConfigError("a model with dense MLPs needs intermediate_size")
    if (parameters := shape.parameters()) > _MOST_PARAMETERS:
        raise ConfigError(
            f"config.json describes {parameters:.1e} parameters, more than any model has: mend its sizes, or fetch it again"
        )
