"""What a decoder computes, read from a Hugging Face config.json. `stepwell/base/architectures/` has the models that are served."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stepwell.base.architectures import Architecture
from stepwell.base.errors import ConfigError
from stepwell.base.shapes import Config, ModelShape, text_config
from stepwell.model.ends import Ends
from stepwell.model.files import LONGEST_CONFIG, read_json
from stepwell.model.fp8_format import SERVED, Fp8Format
from stepwell.model.rope import LARGEST_NUMBER, NO_STRETCH, Llama3, Stretch, Yarn
from stepwell.model.rope import SERVED as SERVED_ROPES

# Fields with one supported value. Absent is fine: these values are the defaults.
_FIXED: tuple[tuple[str, object], ...] = (
    ("hidden_act", "silu"),
    ("attention_bias", False),
)

_MODELOPT = "hf_quant_config.json"
"""Where packs in NVFP4 and other forms of that tool say what they are; config.json may not."""
_THETA = 10000.0
_POSITIONS = 32768
"""Where config.json does not say: what both families are configured with by default."""
_MOST_POSITIONS = 1 << 28


@dataclass(frozen=True, slots=True)
class HybridConfig:
    """A decoder's sizes and constants.

    rotary_dim      leading dimensions of each attention head that are rotated (even; 0: none)
    norm_topk       whether the weights of a token's experts are scaled to sum to 1
    expert_scale    by which they are multiplied then
    dtype           what the checkpoint calls its element type ("bfloat16", "float16", "float32")
    ends            tokens that end an answer: what config.json names and, from a directory, what its other files do
    max_positions   the longest sequence that the checkpoint was made for
    stretched       how rotary positions are stretched to longer contexts; None: they are not
    fp8             how matrices are stored that are in FP8; None: none is
    """

    shape: ModelShape
    eps: float
    rope_theta: float
    rotary_dim: int
    norm_topk: bool
    expert_scale: float
    dtype: str
    ends: Ends
    max_positions: int
    stretched: Yarn | Llama3 | None = None
    fp8: Fp8Format | None = None

    @classmethod
    def from_dict(cls, config: Config) -> HybridConfig:
        """Raises ConfigError naming the field at fault and what is supported."""
        text = text_config(config)
        shape = ModelShape.from_config(config)
        own = shape.architecture
        for name, value in (*_FIXED, *own.fixed):
            found = text.get(name, config.get(name, value))
            if found != value:
                raise ConfigError(f"config.json has {name} = {found!r}: only {value!r} is supported")
        theta, share, scaling = _rope(text, own)
        positions = int(_number(text, "max_position_embeddings", _POSITIONS))
        stretched = None if scaling is None else _stretched(scaling, positions)
        rotary = int(shape.head_dim * share)
        if rotary % 2 or not (0 if own.rotary_optional else 1) <= rotary <= shape.head_dim:
            raise ConfigError(
                f"partial_rotary_factor {share} rotates {rotary} of {shape.head_dim} dimensions: choose an even part"
            )
        longest = positions if stretched is None else max(positions, stretched.positions)
        if longest > _MOST_POSITIONS:
            raise ConfigError(f"config.json stretches to {longest:,} positions: at most {_MOST_POSITIONS:,}; mend it")
        return cls(
            shape=shape,
            eps=_number(text, "rms_norm_eps", 1e-6),
            rope_theta=theta,
            rotary_dim=rotary,
            norm_topk=bool(text.get("norm_topk_prob", own.norm_topk)),
            expert_scale=_number(text, "routed_scaling_factor", 1.0) if own.mixture.biased else 1.0,
            dtype=_dtype(text, config),
            ends=Ends.from_config(config),
            max_positions=longest,
            stretched=stretched,
            fp8=Fp8Format.from_config(text.get("quantization_config", config.get("quantization_config"))),
        )

    @classmethod
    def from_file(cls, directory: Path) -> HybridConfig:
        """Read `directory/config.json`, and the ends of answers from the files beside it. Raises ConfigError."""
        if (directory / _MODELOPT).exists():
            raise ConfigError(f"{directory} has {_MODELOPT}: weights quantised by ModelOpt; served are {SERVED}")
        config = cls.from_dict(read_json(directory / "config.json", LONGEST_CONFIG))
        return replace(config, ends=Ends.from_directory(directory))

    def shard(self, ranks: int) -> HybridConfig:
        """That of one of `ranks` tensor-parallel ranks. Raises ConfigError."""
        return self if ranks == 1 else replace(self, shape=self.shape.shard(ranks))

    @property
    def rope_stretch(self) -> Stretch:
        """How rotation is slowed, and queries and keys are scaled."""
        return NO_STRETCH if self.stretched is None else self.stretched.stretch(self.rotary_dim, self.rope_theta)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer."""
        return self.ends.tokens


def _rope(text: Config, own: Architecture) -> tuple[float, float, Config | None]:
    """Base and rotated share, from `rope_parameters` or, in older files, from the top level and `rope_scaling`; and what stretches them."""
    rope = text.get("rope_parameters")
    scaling = rope if rope is not None else text.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise ConfigError(f"config.json needs rope_parameters as an object, not {scaling!r}")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    # "mrope" is the older name of positions in three parts, which are equal for text
    if kind not in ("default", "mrope", "yarn", "llama3"):
        raise ConfigError(f"config.json has rope_type {kind!r}: served are {SERVED_ROPES}")
    merged = {**text, **scaling}
    if own.rotary_optional and merged.get("rope_theta") is None:
        return _THETA, 0.0, None
    share = _number(merged, "partial_rotary_factor", own.rotary_share)
    return _number(merged, "rope_theta", _THETA), share, scaling if kind in ("yarn", "llama3") else None


def _stretched(scaling: Config, positions: int) -> Yarn | Llama3:
    if scaling.get("rope_type", scaling.get("type")) == "llama3":
        return Llama3.from_config(scaling)
    return Yarn.from_config(scaling, positions)


def _number(config: Config, name: str, default: float) -> float:
    value = config.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < LARGEST_NUMBER:
        raise ConfigError(f"config.json needs {name} as a positive number, not {value!r:.40}")
    return float(value)


def _dtype(text: Config, config: Config) -> str:
    found = [c[name] for c in (text, config) for name in ("dtype", "torch_dtype") if c.get(name)]
    name = found[0] if found else "bfloat16"
    if name not in ("bfloat16", "float16", "float32"):
        raise ConfigError(f"config.json has dtype {name!r}: supported are bfloat16, float16 and float32")
    return str(name)
