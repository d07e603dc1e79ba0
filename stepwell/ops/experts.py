"""Gated MLPs, alone and as a mixture of experts."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.ops.linear import Linear, LinearStack


def gated_mlp(x: Tensor, gate_up: Linear, down: Linear) -> Tensor:
    """`down · (silu(gate · x) * up · x)` for rows [n, hidden]; `gate_up` is both matrices stacked, [2 · width, hidden]."""
    return down(gated(gate_up(x)))


def gated(both: Tensor) -> Tensor:
    """`silu(gate) * up` of rows [n, 2 · width] that hold the gate, then up."""
    gate, up = both.chunk(2, -1)
    return F.silu(gate).mul_(up)


def route(logits: Tensor, top: int, normed: bool) -> tuple[Tensor, Tensor]:
    """Weights float32 [n, top] and numbers int64 [n, top] of each row's experts, from the router's [n, experts].

    `normed` makes the weights sum to 1.
    """
    weights, chosen = torch.softmax(logits, -1, dtype=torch.float32).topk(top, -1)
    return (weights / weights.sum(-1, keepdim=True) if normed else weights), chosen


def route_by_bias(logits: Tensor, bias: Tensor, top: int, normed: bool, scale: float) -> tuple[Tensor, Tensor]:
    """The same for experts that are chosen by the sigmoid of their logit and `bias`, float32 [experts], and weighted by the sigmoid alone.

    The weights are multiplied by `scale` (DeepSeek-V3 technical report, 2024, section 2.1.2, without groups of experts).
    """
    chances = logits.float().sigmoid()
    chosen = (chances + bias).topk(top, -1).indices
    weights = chances.gather(-1, chosen)
    return (weights / weights.sum(-1, keepdim=True) if normed else weights) * scale, chosen


def mixture(x: Tensor, weights: Tensor, chosen: Tensor, gate_up: LinearStack, down: LinearStack) -> Tensor:
    """Each row's experts, weighted and summed: [n, hidden]. Weights and numbers as `route` returns them."""
    top, flat = chosen.shape[1], chosen.flatten()
    order = flat.argsort(stable=True)
    counts = torch.zeros(gate_up.count, dtype=torch.int32, device=x.device)
    ends = counts.index_add_(0, flat, torch.ones_like(flat, dtype=torch.int32)).cumsum(0, dtype=torch.int32)
    parts = down(gated(gate_up(x.index_select(0, order // top), ends)), ends)
    parts = parts * weights.flatten().index_select(0, order).to(x.dtype).unsqueeze(1)
    # back to the rows' own order first: a sum per row in a fixed order is the same in every batch
    back = torch.empty_like(parts).index_copy_(0, order, parts)
    return back.view(x.shape[0], top, -1).sum(1)
