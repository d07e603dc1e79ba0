"""Reading config.json: both forms of the rope fields, the vision wrapper, and refusals that name the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.model.config import HybridConfig

DENSE: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5e6, "partial_rotary_factor": 0.5},
    "eos_token_id": [7, 9],
    "dtype": "float32",
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8,
    "original_max_position_embeddings": 32,
    "low_freq_factor": 1,
    "high_freq_factor": 4,
}


def test_rope_is_read_from_either_place() -> None:
    new = HybridConfig.from_dict(DENSE)
    flat = {k: v for k, v in DENSE.items() if k != "rope_parameters"}
    old = HybridConfig.from_dict({**flat, "rope_theta": 5e6, "partial_rotary_factor": 0.5, "rope_scaling": None})
    assert new == old
    assert (new.rope_theta, new.rotary_dim) == (5e6, 16)
    assert new.eos_token_ids == (7, 9)


def test_the_text_part_of_a_wrapper_is_the_text_model() -> None:
    wrapper = {"model_type": "qwen3_5", "text_config": DENSE, "vision_config": {"depth": 27}}
    assert HybridConfig.from_dict(wrapper) == HybridConfig.from_dict(DENSE)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu': only 'silu'"),
        ({"attention_bias": True}, "attention_bias"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method 'awq'; served are bfloat16"),
        (
            {"rope_parameters": {"rope_type": "longrope"}},
            "'longrope': served are 'default', 'mrope', 'yarn' and 'llama3'",
        ),
        ({"rope_parameters": {"rope_type": "llama3"}}, "'llama3' and needs factor as a positive number, not None"),
        (
            {"rope_parameters": {**LLAMA3, "high_freq_factor": 1}},
            "high_freq_factor above low_freq_factor = 1.0, not 1.0",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'yarn' and needs factor as a positive number, not None"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": -1}}, "needs factor as a positive number, not -1"),
        ({"rope_parameters": {"partial_rotary_factor": 0.1}}, "partial_rotary_factor"),
        ({"dtype": "float8"}, "dtype 'float8'"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps"),
        ({"eos_token_id": "</s>"}, "eos_token_id"),
    ],
)
def test_an_unsupported_field_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        HybridConfig.from_dict({**DENSE, **change})


def test_a_file_that_is_no_config_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        HybridConfig.from_file(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(ConfigError, match="JSON object"):
        HybridConfig.from_file(tmp_path)
    (tmp_path / "config.json").write_text("{" * 10)
    with pytest.raises(ConfigError, match="not JSON"):
        HybridConfig.from_file(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**DENSE, "padding": "x" * (1 << 20)}))
    with pytest.raises(ConfigError, match="longer than"):
        HybridConfig.from_file(tmp_path)
