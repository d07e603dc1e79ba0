"""The architectures that are served, a file each. One that needs no operation of its own is added by such a file and a line here.

ARCHITECTURES[model_type]    what config.json's `model_type` means
WRAPPERS[model_type]         the text model inside a vision model
"""

from stepwell.base.architectures.architecture import Architecture
from stepwell.base.architectures.kimi_linear import KIMI_LINEAR
from stepwell.base.architectures.llama import LLAMA
from stepwell.base.architectures.olmo_hybrid import OLMO_HYBRID
from stepwell.base.architectures.qwen3 import QWEN3, QWEN3_MOE
from stepwell.base.architectures.qwen3_5 import QWEN3_5, QWEN3_5_MOE
from stepwell.base.architectures.qwen3_next import QWEN3_NEXT

_ALL = (QWEN3_NEXT, QWEN3_5, QWEN3_5_MOE, QWEN3, QWEN3_MOE, LLAMA, OLMO_HYBRID, KIMI_LINEAR)
ARCHITECTURES = {one.model_type: one for one in _ALL}
WRAPPERS = {one.wrapper: one.model_type for one in _ALL if one.wrapper is not None}

__all__ = ["ARCHITECTURES", "WRAPPERS", "Architecture"]
