"""Folders that `stepwell serve --load-format dummy` starts: configs of the real shapes, a tokenizer of full size, no weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers

VOCAB = 248_320
END = "<|endoftext|>"
_EXPERTS = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
}
_COMMON = {
    "vocab_size": VOCAB, "num_attention_heads": 16, "head_dim": 256, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
    "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
    "rms_norm_eps": 1e-6, "max_position_embeddings": 262_144, "dtype": "bfloat16", "eos_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000_000, "partial_rotary_factor": 0.25},
}  # fmt: skip
#: How official packs store weights in FP8.
OFFICIAL_FP8: dict[str, Any] = {
    "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
}  # fmt: skip
#: M has the shape of Qwen3.5-35B-A3B's text decoder, D that of Qwen3.5-4B's; M-FP8 is M with weights in FP8. N is Qwen3-Next-80B-A3B, which
#: needs two of the largest GPUs in bfloat16.
CONFIGS: dict[str, dict[str, Any]] = {
    "M": {
        **_COMMON,
        "model_type": "qwen3_5_moe_text",
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_key_value_heads": 2,
        "tie_word_embeddings": False,
        **_EXPERTS,
    },
    "D": {
        **_COMMON,
        "model_type": "qwen3_5_text",
        "architectures": ["Qwen3_5ForCausalLM"],
        "hidden_size": 2560,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
        "intermediate_size": 9216,
        "tie_word_embeddings": True,
    },
}
CONFIGS["N"] = {
    **CONFIGS["M"],
    "model_type": "qwen3_next",
    "architectures": ["Qwen3NextForCausalLM"],
    "num_hidden_layers": 48,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "norm_topk_prob": True,
    "rope_theta": 10_000_000,
    "partial_rotary_factor": 0.25,
}
CONFIGS["M-FP8"] = {**CONFIGS["M"], "quantization_config": OFFICIAL_FP8}  # fmt: skip


def write_model(name: str, folder: Path) -> Path:
    """The folder of a shape, made where it is missing; every id of its vocabulary is a word."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIGS[name], indent=1))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    if not (folder / "tokenizer.json").exists():
        words = {END: 0, **{f"w{i}": i for i in range(1, VOCAB)}}
        tokenizer = Tokenizer(models.WordLevel(words, unk_token=END))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        tokenizer.save(str(folder / "tokenizer.json"))
    told = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "unk_token": END,
            "chat_template": "{{ messages[0]['content'] }}"}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(told))
    return folder
