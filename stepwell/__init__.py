"""A serving engine for hybrid language models whose prompt cache reaches from device memory through host memory to disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stepwell.engine.llm import LLM, Completion
    from stepwell.sched.request import SamplingParams

__all__ = ["LLM", "Completion", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """Names are imported when they are first asked for: `LLM` and `Completion` bring tokenizers with them, all of them NumPy."""
    if name in ("LLM", "Completion"):
        from stepwell.engine import llm

        return getattr(llm, name)
    if name == "SamplingParams":
        from stepwell.sched.request import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'stepwell' has no attribute {name!r}")
