"""OLMo Hybrid: three layers of the gated delta rule, normed before, to one of full attention, normed after; without rotary positions."""

from stepwell.base.architectures.architecture import Architecture, Recurrence

OLMO_HYBRID = Architecture(
    "olmo_hybrid",
    recurrent=True,
    recurrence=Recurrence(
        wide=("q_proj", "k_proj", "v_proj", "g_proj"),
        narrow=("b_proj", "a_proj"),
        convs=("q_conv1d", "k_conv1d", "v_conv1d"),
        norm="o_norm",
        out="o_proj",
        norms=("attention_layer_norm", "feedforward_layer_norm"),
        largest_beta=2.0,
        eps=1e-5,
        sizes_given=True,
    ),
    kv_heads_as_heads=True,
    qk_norm_whole=True,
    rotary_optional=True,
    norms=("post_attention_layernorm", "post_feedforward_layernorm"),
    norm_after=True,
    fixed=(("linear_allow_neg_eigval", True),),
)
