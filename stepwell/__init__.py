"""A serving engine for hybrid language models whose prompt cache reaches from device memory through host memory to disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepwell.sched.request import SamplingParams

if TYPE_CHECKING:
    from stepwell.engine.llm import LLM, Completion

__all__ = ["LLM", "Completion", "SamplingParams"]


def __getattr__(name: str) -> Any:
    """`LLM` and `Completion` bring tokenizers with them: they are imported when they are first asked for."""
    if name in ("LLM", "Completion"):
        from stepwell.engine import llm

        return getattr(llm, name)
    raise AttributeError(f"module 'stepwell' has no attribute {name!r}")
