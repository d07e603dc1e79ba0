"""Causal attention over paged KV. Planned once a step, run once a layer.

    k_pages, v_pages   [pages, block, kv_heads, head_dim]: one layer's view into the arena, strided over the pages

Query heads come in groups that share a KV head: query head h reads KV head h // (heads / kv_heads). Pages hold whatever was
there before beyond a sequence's end, NaN included: nothing here reads it into a sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from stepwell.base.geometry import Ints

_TILE = 256
"""Query rows that share one mask on the CPU; larger tiles compute more of what the mask hides."""
_SLACK = 8
"""Pages by which sequences of one decode group may always differ."""


@dataclass(frozen=True, slots=True)
class PrefillAttention:
    """Attention of one sequence's new tokens over all its tokens so far.

    pages [p] covers tokens 0 … `end`; the queries are the last `count` of them. `mask` serves CPU tiles: float32
    [tile, …], 0 where a query sees a key and −∞ where it does not, sliced for each tile; None on a GPU.
    """

    pages: Tensor
    end: int
    count: int
    mask: Tensor | None

    @classmethod
    def plan(cls, pages: Ints, start: int, count: int, device: torch.device) -> PrefillAttention:
        """`pages` is the sequence's block table; queries stand at positions start … start + count − 1."""
        ids = torch.from_numpy(pages.astype(np.int64)).to(device)
        end = start + count
        if device.type != "cpu":
            return cls(ids, end, count, None)
        rows = min(_TILE, count)
        mask = torch.full((rows, end + rows), float("-inf")).triu_(end + 1)
        return cls(ids, end, count, mask)

    def __call__(self, q: Tensor, k_pages: Tensor, v_pages: Tensor) -> Tensor:
        """q [count, heads, head_dim] → the same shape."""
        count, heads, dim = q.shape
        kv_heads = k_pages.shape[2]
        k, v = (_gather(pages, self.pages, q)[: self.end].transpose(0, 1) for pages in (k_pages, v_pages))
        if self.mask is None:
            see = causal_lower_right(count, self.end)
            q4, k4, v4 = q.transpose(0, 1).unsqueeze(0), k.unsqueeze(0), v.unsqueeze(0)
            return F.scaled_dot_product_attention(q4, k4, v4, attn_mask=see, enable_gqa=True)[0].transpose(0, 1)
        groups = q.view(count, kv_heads, heads // kv_heads, dim).permute(1, 2, 0, 3)
        # a stride of 0 over the group's heads: no copy of the keys for each of them
        k, v = (y.unsqueeze(1).expand(-1, heads // kv_heads, -1, -1) for y in (k, v))
        out = torch.empty_like(q)
        rows, start = self.mask.shape[0], self.end - count
        for a in range(0, count, rows):
            b = min(count, a + rows)
            seen = start + b
            # row i of the mask hides columns > end + i; query a + i must not see keys > start + a + i
            mask = self.mask[: b - a, count - a : count - a + seen].to(q.dtype)
            part = F.scaled_dot_product_attention(groups[:, :, a:b], k[:, :, :seen], v[:, :, :seen], attn_mask=mask)
            out[a:b] = part.permute(2, 0, 1, 3).reshape(b - a, heads, dim)
        return out


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """Sequences of similar length, padded to one number of pages.

    rows    which of the step's decodes; None: all, in order
    pages   int64 [sequences · width], padded with pages of the same sequence
    length  tokens to keep of the padded width (the longest sequence's)
    hidden  int64 flat token indices beyond a sequence's end; None where all lengths are equal
    mask    float32 [sequences, 1, 1, length], −∞ at the hidden ones
    """

    rows: Tensor | None
    pages: Tensor
    length: int
    hidden: Tensor | None
    mask: Tensor | None

    def attend(self, q: Tensor, k_pages: Tensor, v_pages: Tensor) -> Tensor:
        sequences, heads, dim = q.shape
        kv_heads = k_pages.shape[2]
        k, v = (_gather(pages, self.pages, q) for pages in (k_pages, v_pages))
        if self.hidden is not None:
            # masked is not enough: 0 · NaN is NaN
            k.index_fill_(0, self.hidden, 0)
            v.index_fill_(0, self.hidden, 0)
        k, v = (y.view(sequences, -1, kv_heads, dim)[:, : self.length].transpose(1, 2) for y in (k, v))
        # the heads of a group become rows: each KV head is read once
        groups = q.view(sequences, kv_heads, heads // kv_heads, dim)
        mask = None if self.mask is None else self.mask.to(q.dtype)
        return F.scaled_dot_product_attention(groups, k, v, attn_mask=mask).reshape(sequences, heads, dim)


@dataclass(frozen=True, slots=True)
class DecodeAttention:
    """Attention of one new token for each of several sequences."""

    groups: tuple[DecodeGroup, ...]

    @classmethod
    def plan(cls, tables: Sequence[Ints], lengths: Sequence[int], block: int, device: torch.device) -> DecodeAttention:
        """`tables[i]` is the block table and `lengths[i]` the number of tokens of sequence i, the new one included."""
        parts = _similar(lengths, block)
        whole = len(parts) == 1
        return cls(tuple(_plan_group(part, tables, lengths, block, device, whole) for part in parts))

    def __call__(self, q: Tensor, k_pages: Tensor, v_pages: Tensor) -> Tensor:
        """q [sequences, heads, head_dim] → the same shape."""
        first = self.groups[0]
        if first.rows is None:
            return first.attend(q, k_pages, v_pages)
        out = torch.empty_like(q)
        for group in self.groups:
            assert group.rows is not None
            out.index_copy_(0, group.rows, group.attend(q.index_select(0, group.rows), k_pages, v_pages))
        return out


def write_kv(k: Tensor, v: Tensor, k_pages: Tensor, v_pages: Tensor, page: Tensor, offset: Tensor) -> None:
    """Store keys and values [n, kv_heads, head_dim] of n tokens at `offset` (int64 [n]) of their `page` (int64 [n])."""
    k_pages[page, offset] = k.to(k_pages.dtype)
    v_pages[page, offset] = v.to(v_pages.dtype)


def _gather(pages: Tensor, ids: Tensor, like: Tensor) -> Tensor:
    """Pages in order as [tokens, kv_heads, head_dim], a copy in the type of `like`."""
    return pages.index_select(0, ids).flatten(0, 1).to(like.dtype)


def _similar(lengths: Sequence[int], block: int) -> list[list[int]]:
    """Indices in groups whose longest has at most twice the pages of its shortest, give or take a few."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    groups: list[list[int]] = []
    for i in order:
        shortest = lengths[groups[-1][0]] if groups else 0
        if not groups or lengths[i] > 2 * shortest + _SLACK * block:
            groups.append([])
        groups[-1].append(i)
    return groups


def _plan_group(
    part: Sequence[int], tables: Sequence[Ints], lengths: Sequence[int], block: int, device: torch.device, whole: bool
) -> DecodeGroup:
    part = sorted(part)
    sizes = np.array([lengths[i] for i in part])
    length = int(sizes.max())
    width = -(-length // block)
    pages = np.empty((len(part), width), np.int64)
    for row, i in enumerate(part):
        used = -(-lengths[i] // block)
        pages[row, :used] = tables[i][:used]
        pages[row, used:] = tables[i][0]
    rows = None if whole else torch.tensor(part, device=device)
    ids = torch.from_numpy(pages.reshape(-1)).to(device)
    if int(sizes.min()) == length:
        return DecodeGroup(rows, ids, length, None, None)
    beyond = np.arange(width * block) >= sizes[:, None]
    mask = np.where(beyond[:, :length], np.float32("-inf"), np.float32(0))[:, None, None, :]
    hidden = torch.from_numpy(np.flatnonzero(beyond)).to(device)
    return DecodeGroup(rows, ids, length, hidden, torch.from_numpy(mask).to(device))
