"""Qwen3, dense and with experts: full attention with normed queries and keys in every layer."""

from dataclasses import replace

from stepwell.base.architectures.architecture import Architecture

QWEN3 = Architecture("qwen3", head_dim=128, fixed=(("use_sliding_window", False),))
QWEN3_MOE = replace(QWEN3, model_type="qwen3_moe", experts="listed", norm_topk=False)
