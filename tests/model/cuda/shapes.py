"""A small model that the kernels are written for, and rigs that run it on kernels and on plain torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

SHAPE: dict[str, Any] = {
    "model_type": "qwen3_5_text",
    "vocab_size": 50,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "layer_types": ["linear_attention", "full_attention"],
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "intermediate_size": 48,
    "dtype": "float32",
}
EXPERTS = {
    "model_type": "qwen3_5_moe_text",
    "num_experts": 6,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
TOKENS = np.random.default_rng(0).integers(0, 50, 200).astype(np.int32)


def written(directory: Path, **more: Any) -> Path:
    (directory / "config.json").write_text(json.dumps({**SHAPE, **more}))
    return directory
