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

from stepwell.model.cuda.plans import Gathered, Paged

Attend = Callable[[Tensor, Tensor, Tensor, Gathered], Tensor]
"""q [rows, heads, head_dim] over gathered keys and values [tokens, kv_heads, head_dim] → the shape of q."""
AttendPages = Callable[[Tensor, Tensor, Tensor, Paged, int], Tensor]
"""The same over pages [pages, block, kv_heads, head_dim], in at most so many parts of the context; 0: as many as are fastest."""


@dataclass(frozen=True, slots=True)
class PromptKernels:
    """`names` says what they are, for people; `captures`: attention over pages can be captured in a graph."""

    attend: Attend
    attend_pages: AttendPages
    captures: bool
    names: tuple[str, ...]


def choose(device: torch.device) -> PromptKernels:
    """The fastest of what is installed for `device`."""
    cuda = device.type == "cuda" and torch.version.hip is None
    hopper = cuda and torch.cuda.get_device_capability(device)[0] == 9
    if hopper and _has("flash_attn_interface"):
        names = (f"prompts' attention: FlashAttention-3 {_version('tokenspeed-fa3')}",)
        return PromptKernels(*_fa3(), True, names)
    name = "prompts' attention: torch's; FlashAttention-3 is missing or does not fit (tokenspeed-fa3)"
    return PromptKernels(_sdpa(), _sdpa_pages, not cuda, (name,))


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _fa3() -> tuple[Attend, AttendPages]:
    library: Any = importlib.import_module("flash_attn_interface")

    def attend(q: Tensor, k: Tensor, v: Tensor, g: Gathered) -> Tensor:
        out: Tensor = library.flash_attn_varlen_func(
            q, k, v, g.queries, g.keys, max(g.counts), max(g.lengths), causal=True
        )
        return out

    def attend_pages(q: Tensor, k: Tensor, v: Tensor, p: Paged, splits: int) -> Tensor:
        out: Tensor = library.flash_attn_with_kvcache(
            q, k, v, cache_seqlens=p.length, page_table=p.table, cu_seqlens_q=p.queries, max_seqlen_q=q.shape[0], causal=True,
            num_splits=splits,
        )  # fmt: skip
        return out

    return attend, attend_pages


def _sdpa() -> Attend:
    """One sequence after the other."""
    # comes with torch's compiler, which takes seconds to import: only where this mask is needed, and before the first request
    from torch.nn.attention.bias import causal_lower_right

    def attend(q: Tensor, k: Tensor, v: Tensor, g: Gathered) -> Tensor:
        out, at, key = torch.empty_like(q), 0, 0
        for count, length in zip(g.counts, g.lengths, strict=True):
            rows, keys = slice(at, at + count), slice(key, key + length)
            q4, k4, v4 = (y.transpose(0, 1).unsqueeze(0) for y in (q[rows], k[keys], v[keys]))
            see = causal_lower_right(count, length)
            out[rows] = F.scaled_dot_product_attention(q4, k4, v4, attn_mask=see, enable_gqa=True)[0].transpose(0, 1)
            at, key = at + count, key + length
        return out

    return attend


def _sdpa_pages(q: Tensor, k_pages: Tensor, v_pages: Tensor, p: Paged, splits: int) -> Tensor:
    """Over all pages of the tables, those behind a sequence's end masked out: for tests, on a CPU."""
    del splits
    out, ends = torch.zeros_like(q), p.queries.tolist()
    for table, length, begin, end in zip(p.table.long(), p.length, ends, ends[1:], strict=False):
        k, v = (y.index_select(0, table).flatten(0, 1) for y in (k_pages, v_pages))
        token = torch.arange(k.shape[0], device=q.device)
        seen = token <= torch.arange(begin - end, 0, device=q.device)[:, None] + length
        k, v = (torch.where((token < length)[:, None, None], y, 0) for y in (k, v))
        q4, k4, v4 = (y.transpose(0, 1).unsqueeze(0) for y in (q[begin:end], k, v))
        attended = F.scaled_dot_product_attention(q4, k4, v4, attn_mask=seen, enable_gqa=True)
        out[begin:end] = attended[0].transpose(0, 1)
    return out
