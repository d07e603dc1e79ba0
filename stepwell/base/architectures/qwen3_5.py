"""Qwen3.5 and Qwen3.6: the layers of Qwen3-Next with the recurrence's projections apart, as text models or in a vision model."""

from dataclasses import replace

from stepwell.base.architectures.architecture import Architecture

QWEN3_5 = Architecture(
    "qwen3_5_text",
    wrapper="qwen3_5",
    recurrent=True,
    head_dim=256,
    rotary_share=0.25,
    gated=True,
    centred=True,
    fixed=(("attn_output_gate", True),),
)
QWEN3_5_MOE = replace(
    QWEN3_5, model_type="qwen3_5_moe_text", wrapper="qwen3_5_moe", experts="all", shared_expert=True,
    fixed=(*QWEN3_5.fixed, ("norm_topk_prob", True)),
)  # fmt: skip
