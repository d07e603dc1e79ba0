"""Attention of prompts, by the fastest that is installed. What is missing is replaced, and said at the start."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.model.cuda.plans import Prompts

Attend = Callable[[Tensor, Tensor, Tensor, Prompts], Tensor]
"""q [rows, heads, head_dim] over gathered keys and values [tokens, kv_heads, head_dim] → the shape of q."""


@dataclass(frozen=True, slots=True)
class PromptKernels:
    """`names` says what they are, for people."""

    attend: Attend
    names: tuple[str, ...]


def choose(device: torch.device) -> PromptKernels:
    """The fastest of what is installed for `device`."""
    cuda = device.type == "cuda" and torch.version.hip is None
    hopper = cuda and torch.cuda.get_device_capability(device)[0] == 9
    attend, attention = (_fa3(), f"FlashAttention-3 {_version('tokenspeed-fa3')}") if hopper and _has("flash_attn_interface") else (
        _sdpa(), "torch's; FlashAttention-3 is missing or does not fit (tokenspeed-fa3)")  # fmt: skip
    return PromptKernels(attend, (f"prompts' attention: {attention}",))


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _fa3() -> Attend:
    library: Any = importlib.import_module("flash_attn_interface")

    def attend(q: Tensor, k: Tensor, v: Tensor, prompts: Prompts) -> Tensor:
        out: Tensor = library.flash_attn_varlen_func(
            q, k, v, prompts.queries, prompts.keys, max(prompts.counts), max(prompts.lengths), causal=True
        )
        return out

    return attend


def _sdpa() -> Attend:
    """One sequence after the other."""
    # brings torch's compiler with it, seconds of import that nobody else needs
    bias: Any = importlib.import_module("torch.nn.attention.bias")

    def attend(q: Tensor, k: Tensor, v: Tensor, prompts: Prompts) -> Tensor:
        out, at, key = torch.empty_like(q), 0, 0
        for count, length in zip(prompts.counts, prompts.lengths, strict=True):
            rows, keys = slice(at, at + count), slice(key, key + length)
            q4, k4, v4 = (y.transpose(0, 1).unsqueeze(0) for y in (q[rows], k[keys], v[keys]))
            see = bias.causal_lower_right(count, length)
            out[rows] = F.scaled_dot_product_attention(q4, k4, v4, attn_mask=see, enable_gqa=True)[0].transpose(0, 1)
            at, key = at + count, key + length
        return out

    return attend
