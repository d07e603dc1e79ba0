"""Attention and delta rule of prompts, by the fastest that is installed. What is missing is replaced, and said at the start."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from stepwell.model.cuda.plans import Prompts, Wave
from stepwell.ops.chunks import Chunks
from stepwell.ops.delta_rule import DeltaInputs, delta_rule

Attend = Callable[[Tensor, Tensor, Tensor, Prompts], Tensor]
"""q [rows, heads, head_dim] over gathered keys and values [tokens, kv_heads, head_dim] → the shape of q."""
Fold = Callable[["Fresh", Tensor, Wave], tuple[Tensor, Tensor]]
"""Segments folded from their states [segments, …]: outputs [rows, value_heads, value_dim] and states, float32."""

_SHORT = 64


@dataclass(frozen=True, slots=True, eq=False)
class Fresh:
    """Inputs of the delta rule before they have unit length: q, k [rows, key_heads, key_dim], v [rows, value_heads, value_dim],
    float32 g and beta [rows, value_heads]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


@dataclass(frozen=True, slots=True)
class PromptKernels:
    """`names` says what they are, for people."""

    attend: Attend
    fold: Fold
    names: tuple[str, ...]


def choose(device: torch.device) -> PromptKernels:
    """The fastest of what is installed for `device`."""
    cuda = device.type == "cuda" and torch.version.hip is None
    hopper = cuda and torch.cuda.get_device_capability(device)[0] == 9
    attend, attention = (_fa3(), f"FlashAttention-3 {_version('tokenspeed-fa3')}") if hopper and _has("flash_attn_interface") else (
        _sdpa, "torch's; FlashAttention-3 is missing or does not fit (tokenspeed-fa3)")  # fmt: skip
    fold, rule = (_fla(), f"fla-core {_version('fla-core')}") if cuda and _has("fla") else (
        _chunked, "plain torch, slow; fla-core is missing")  # fmt: skip
    return PromptKernels(attend, fold, (f"prompts' attention: {attention}", f"prompts' delta rule: {rule}"))


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


def _sdpa(q: Tensor, k: Tensor, v: Tensor, prompts: Prompts) -> Tensor:
    """One sequence after the other."""
    out, at, key = torch.empty_like(q), 0, 0
    for count, length in zip(prompts.counts, prompts.lengths, strict=True):
        rows, keys = slice(at, at + count), slice(key, key + length)
        q4, k4, v4 = (y.transpose(0, 1).unsqueeze(0) for y in (q[rows], k[keys], v[keys]))
        see = causal_lower_right(count, length)
        out[rows] = F.scaled_dot_product_attention(q4, k4, v4, attn_mask=see, enable_gqa=True)[0].transpose(0, 1)
        at, key = at + count, key + length
    return out


def _fla() -> Fold:
    library: Any = importlib.import_module("fla.ops.gated_delta_rule")

    def fold(x: Fresh, states: Tensor, wave: Wave) -> tuple[Tensor, Tensor]:
        several = states.shape[0] > 1
        # a short tail is no chunk: its end lies off the grid, and token by token it needs one kernel
        short = x.v.shape[0] < _SHORT and not several
        rule = library.fused_recurrent_gated_delta_rule if short else library.chunk_gated_delta_rule
        more = {} if short else {"cu_seqlens": wave.ends, "cu_seqlens_cpu": wave.host_ends} if several else {}
        out, after = rule(
            *(y.unsqueeze(0) for y in (x.q, x.k, x.v)), g=x.g.unsqueeze(0), beta=x.beta.unsqueeze(0), initial_state=states,
            output_final_state=True, use_qk_l2norm_in_kernel=True, **more,
        )  # fmt: skip
        return out[0], after

    return fold


def _chunked(x: Fresh, states: Tensor, wave: Wave) -> tuple[Tensor, Tensor]:
    ends = wave.host_ends.tolist()
    counts = [end - begin for begin, end in pairwise(ends)]
    chunks = Chunks.plan(list(wave.starts), counts, [], x.v.shape[1], x.v.device)
    return delta_rule(DeltaInputs(x.q, x.k, x.v, x.g, x.beta), states, chunks, states[:0])
