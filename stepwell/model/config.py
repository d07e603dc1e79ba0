"""What a decoder computes, read from a Hugging Face config.json.

Supported: qwen3_next, qwen3_5_text and qwen3_5_moe_text, and the text part of the wrappers qwen3_5 and qwen3_5_moe.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from stepwell.base.errors import ConfigError
from stepwell.base.shapes import Config, ModelShape, text_config

_LONGEST = 1 << 20
"""Bytes of config.json that are read; real ones have a few thousand."""
# Fields with one supported value. Absent is fine: these values are the defaults.
_FIXED: tuple[tuple[str, object], ...] = (
    ("hidden_act", "silu"),
    ("attention_bias", False),
    ("attn_output_gate", True),
    ("quantization_config", None),
)

_POSITIONS = 32768
"""Where config.json does not say: what both families are configured with by default."""


@dataclass(frozen=True, slots=True)
class HybridConfig:
    """A decoder's sizes and constants.

    rotary_dim      leading dimensions of each attention head that are rotated (even)
    norm_topk       whether the weights of a token's experts are scaled to sum to 1
    dtype           what the checkpoint calls its element type ("bfloat16", "float16", "float32")
    eos_token_ids   tokens that end an answer: config.json's and, from a directory, generation_config.json's
    max_positions   the longest sequence that the checkpoint was made for
    """

    shape: ModelShape
    eps: float
    rope_theta: float
    rotary_dim: int
    norm_topk: bool
    dtype: str
    eos_token_ids: tuple[int, ...]
    max_positions: int

    @classmethod
    def from_dict(cls, config: Config) -> HybridConfig:
        """Raises ConfigError naming the field at fault and what is supported."""
        text = text_config(config)
        shape = ModelShape.from_config(config)
        for name, value in _FIXED:
            found = text.get(name, config.get(name, value))
            if found != value:
                raise ConfigError(f"config.json has {name} = {found!r}: only {value!r} is supported")
        theta, share = _rope(text)
        rotary = int(shape.head_dim * share)
        if rotary % 2 or not 0 < rotary <= shape.head_dim:
            raise ConfigError(
                f"partial_rotary_factor {share} rotates {rotary} of {shape.head_dim} dimensions: choose an even part"
            )
        return cls(
            shape=shape,
            eps=_number(text, "rms_norm_eps", 1e-6),
            rope_theta=theta,
            rotary_dim=rotary,
            norm_topk=shape.model_type != "qwen3_next" or bool(text.get("norm_topk_prob", True)),
            dtype=_dtype(text, config),
            eos_token_ids=_eos(text.get("eos_token_id", config.get("eos_token_id"))),
            max_positions=int(_number(text, "max_position_embeddings", _POSITIONS)),
        )

    @classmethod
    def from_file(cls, directory: Path) -> HybridConfig:
        """Read `directory/config.json`, and the end tokens of `generation_config.json` where there is one."""
        config = cls.from_dict(read_json(directory / "config.json", _LONGEST))
        path = directory / "generation_config.json"
        if not path.exists():
            return config
        more = _eos(read_json(path, _LONGEST).get("eos_token_id"))
        return replace(config, eos_token_ids=tuple(dict.fromkeys((*config.eos_token_ids, *more))))


def read_json(path: Path, longest: int) -> Config:
    """The object in a JSON file of at most `longest` bytes. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            text = file.read(longest + 1)
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}; give the directory of a Hugging Face checkpoint"
        ) from error
    if len(text) > longest:
        raise ConfigError(f"{path} is longer than {longest} bytes: this is not a checkpoint's file")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{path} must hold a JSON object")
    return value


def _rope(text: Config) -> tuple[float, float]:
    """Base and rotated share, from `rope_parameters` or, in older files, from the top level and `rope_scaling`."""
    rope = text.get("rope_parameters")
    scaling = rope if rope is not None else text.get("rope_scaling") or {}
    if not isinstance(scaling, Mapping):
        raise ConfigError(f"config.json needs rope_parameters as an object, not {scaling!r}")
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    # "mrope" is the older name of positions in three parts, which are equal for text
    if kind not in ("default", "mrope"):
        raise ConfigError(f"config.json has rope_type {kind!r}: only 'default' is supported")
    merged = {**text, **scaling}
    return _number(merged, "rope_theta", 10000.0), _number(merged, "partial_rotary_factor", 0.25)


def _number(config: Config, name: str, default: float) -> float:
    value = config.get(name, default)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"config.json needs {name} as a positive number, not {value!r}")
    return float(value)


def _dtype(text: Config, config: Config) -> str:
    found = [c[name] for c in (text, config) for name in ("dtype", "torch_dtype") if c.get(name)]
    name = found[0] if found else "bfloat16"
    if name not in ("bfloat16", "float16", "float32"):
        raise ConfigError(f"config.json has dtype {name!r}: supported are bfloat16, float16 and float32")
    return str(name)


def _eos(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    ids = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise ConfigError(f"config.json needs eos_token_id as a token or a list of tokens, not {value!r}")
    return tuple(ids)
