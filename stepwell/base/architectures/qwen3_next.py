"""Qwen3-Next: three layers of the gated delta rule to one of gated attention, dense or with experts."""

from stepwell.base.architectures.architecture import Architecture, Recurrence

QWEN3_NEXT = Architecture(
    "qwen3_next",
    recurrent=True,
    recurrence=Recurrence(by_key_head=True, wide=("in_proj_qkvz",), narrow=("in_proj_ba",)),
    head_dim=256,
    rotary_share=0.25,
    gated=True,
    centred=True,
    experts="listed",
    shared_expert=True,
    fixed=(("attn_output_gate", True),),
)
