"""Sizes of the released models, from their published dimensions."""

from __future__ import annotations

from typing import Any

import pytest

from stepwell.base.errors import ConfigError
from stepwell.base.shapes import ModelShape, Widths

NEXT_80B: dict[str, Any] = {
    "model_type": "qwen3_next",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "intermediate_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "max_position_embeddings": 262144,
    "tie_word_embeddings": False,
}
MOE_35B = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        **NEXT_80B,
        "model_type": "qwen3_5_moe_text",
        "vocab_size": 248320,
        "num_hidden_layers": 40,
        "num_experts": 256,
        "num_experts_per_tok": 8,
    },
}
MOE_397B = {
    "model_type": "qwen3_5_moe",
    "text_config": {
        **MOE_35B["text_config"],  # type: ignore[dict-item]
        "hidden_size": 4096,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "linear_num_value_heads": 64,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
    },
}


@pytest.mark.parametrize(
    ("config", "ranks", "kv", "image"),
    [(NEXT_80B, 1, 24_576, 39.5), (MOE_35B, 1, 20_480, 32.9), (MOE_397B, 4, 15_360, 24.4)],
)
def test_released_models_have_the_documented_sizes(config: Any, ranks: int, kv: int, image: float) -> None:
    shape = ModelShape.from_config(config).shard(ranks)
    assert shape.kv_token_bytes() == kv
    assert shape.kv_token_bytes(width=1) * 2 == kv
    assert round(shape.image_bytes(Widths(state=2)) / 1e6, 1) == image


def test_a_float32_image_of_qwen3_next() -> None:
    shape = ModelShape.from_config(NEXT_80B)
    # 36 layers of 2 MiB of state and of 3 convolution inputs in bfloat16
    assert shape.image_bytes() == 36 * (2 * 2**20 + 3 * 8192 * 2)


def test_geometry_of_qwen3_next() -> None:
    geometry = ModelShape.from_config(NEXT_80B).geometry(block=16)
    assert geometry.page_bytes == 16 * 24_576
    assert geometry.image_pages == 197
    assert geometry.rung_grid == 64


def test_parameters_match_the_names_of_the_models() -> None:
    shape = ModelShape.from_config(NEXT_80B)
    assert 79e9 < shape.parameters() < 81e9
    assert 2.9e9 < shape.parameters(active=True) < 4e9
    assert 390e9 < ModelShape.from_config(MOE_397B).parameters() < 400e9


def test_prefill_flops_add_up_over_a_split() -> None:
    shape = ModelShape.from_config(NEXT_80B)
    logits = 2 * shape.vocab * shape.hidden
    whole = shape.prefill_flops(0, 8192)
    parts = shape.prefill_flops(0, 5000) + shape.prefill_flops(5000, 3192)
    assert whole == pytest.approx(parts - logits, rel=1e-9)
    assert shape.prefill_flops(100_000, 1) > shape.prefill_flops(1000, 1) > 2 * 2.5e9


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "supported are qwen3_next.* llama"),
        ({"layer_types": ["sliding_attention"] * 48}, "sliding_attention"),
        ({"layer_types": ["full_attention"]}, "each of its 48 layers"),
        ({"hidden_size": None}, "hidden_size"),
        ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"num_experts_per_tok": 600}, "num_experts_per_tok"),
        ({"intermediate_size": 0, "mlp_only_layers": [0]}, "intermediate_size"),
    ],
)
def test_an_unsupported_config_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ModelShape.from_config({**NEXT_80B, **change})


def test_ranks_must_divide_the_heads() -> None:
    with pytest.raises(ConfigError, match="tensor-parallel-size 3"):
        ModelShape.from_config(NEXT_80B).shard(3)


def test_experts_follow_the_sparse_step_and_the_list_of_dense_layers() -> None:
    shape = ModelShape.from_config({**NEXT_80B, "decoder_sparse_step": 2, "mlp_only_layers": [3]})
    assert shape.expert_layers[:6] == (False, True, False, False, False, True)


@pytest.mark.parametrize("given", [{}, {"num_key_value_heads": None}], ids=["missing", "null"])
def test_a_llama_without_a_count_of_kv_heads_has_one_for_each_head(given: dict[str, Any]) -> None:
    config = {key: value for key, value in NEXT_80B.items() if key != "num_key_value_heads"} | given
    assert ModelShape.from_config(config | {"model_type": "llama"}).kv_heads == 16
    with pytest.raises(ConfigError, match="num_key_value_heads"):
        ModelShape.from_config(config)
