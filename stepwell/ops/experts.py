"""Gated MLPs, alone and as a mixture of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def gated_mlp(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """`down · (silu(gate · x) * up · x)` for rows [n, hidden]; `gate_up` is both matrices stacked, [2 · width, hidden]."""
    gate, up = F.linear(x, gate_up).chunk(2, -1)
    return F.linear(F.silu(gate).mul_(up), down)


def route(x: Tensor, router: Tensor, top: int, normed: bool) -> tuple[Tensor, Tensor]:
    """Weights float32 [n, top] and numbers int64 [n, top] of each row's experts; `normed` makes the weights sum to 1."""
    chances = torch.softmax(F.linear(x, router), -1, dtype=torch.float32)
    weights, chosen = chances.topk(top, -1)
    return (weights / weights.sum(-1, keepdim=True) if normed else weights), chosen


def mixture(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """Each row's experts, weighted and summed.

    gate_up [experts, 2 · width, hidden] and down [experts, hidden, width]; weights and chosen as `route` returns them.
    """
    experts, top = gate_up.shape[0], chosen.shape[1]
    flat = chosen.flatten()
    order = flat.argsort(stable=True)
    rows = order // top
    counts = torch.bincount(flat, minlength=experts).tolist()
    sorted_x = x.index_select(0, rows)
    parts = torch.empty_like(sorted_x)
    at = 0
    for expert, count in enumerate(counts):
        if count:
            parts[at : at + count] = gated_mlp(sorted_x[at : at + count], gate_up[expert], down[expert])
            at += count
    parts.mul_(weights.flatten().index_select(0, order).to(x.dtype).unsqueeze(1))
    # back to the rows' own order first: a sum per row in a fixed order is the same in every batch
    back = torch.empty_like(parts).index_copy_(0, order, parts)
    return back.view(x.shape[0], top, -1).sum(1)
