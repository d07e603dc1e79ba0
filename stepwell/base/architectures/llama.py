"""Llama 2, 3.0 to 3.3 and models of its form, such as SmolLM2: full attention in every layer, nothing normed but the residual."""

from stepwell.base.architectures.architecture import Architecture

LLAMA = Architecture("llama", kv_heads_as_heads=True, qk_norm=False, fixed=(("mlp_bias", False),))
