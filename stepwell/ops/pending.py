"""Decoding with live slots that keep inputs, not states, in plain torch: the reference of `ops/triton/recurrent.py`.

A slot holds the state of its `committed` tokens and, in a ring, the inputs of tokens that are computed but not folded into it
("pending"). A step folds those that were accepted, stores a checkpoint where one is due, writes the state back, and goes on over the
new tokens:

    position   … committed − 1 │ committed … committed + pending − 1 │ new tokens
                in the state     in the ring, folded now               computed now, left in the ring

The state is read once and written once however many tokens were drafted, and every token is folded alone by the same operations: the
state does not depend on how tokens were grouped into steps. With `fold_new` the new tokens are folded at once and nothing stays pending.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.ops.delta_rule import unit


@dataclass(frozen=True, slots=True, eq=False)
class Ring:
    """Inputs of the delta rule by slot, float32; the token at position p is in row p mod R. R ≥ pending + new tokens.

    q, k      [slots, R, key_heads, key_dim], unit length
    v         [slots, R, value_heads, value_dim]
    g, beta   [slots, R, value_heads]; g is the logarithm of the decay, and where each channel of a key decays by itself [slots, R,
              value_heads, key_dim]
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    @classmethod
    def empty(
        cls,
        slots: int,
        rows: int,
        key_heads: int,
        key_dim: int,
        value_heads: int,
        value_dim: int,
        device: torch.device,
        decays: int = 1,
    ) -> Ring:
        """An uninitialised ring: `rows` tokens for each of `slots` slots, with so many `decays` of a value head."""

        def new(*shape: int) -> Tensor:
            return torch.empty(slots, rows, *shape, dtype=torch.float32, device=device)

        g = (value_heads,) if decays == 1 else (value_heads, decays)
        return cls(
            new(key_heads, key_dim), new(key_heads, key_dim), new(value_heads, value_dim), new(*g), new(value_heads)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Which slot each row of the batch works on, int64 [rows].

    committed    tokens that the slot's state has folded
    pending      accepted tokens in the ring, folded by this step
    rung         column of the rung buffers that receives a checkpoint; −1: none
    rung_after   tokens folded by this step before the checkpoint is taken, ≥ 1; counted from `committed`
    """

    slots: Tensor
    committed: Tensor
    pending: Tensor
    rung: Tensor
    rung_after: Tensor


def conv_step(
    x: Tensor,
    g: Tensor,
    beta: Tensor,
    weight: Tensor,
    window: Tensor,
    rungs: Tensor,
    lanes: Lanes,
    marked: Tensor,
    ring: Ring,
    *,
    fold_new: bool,
) -> None:
    """Convolution, SiLU and unit length of queries and keys of the new tokens; the results go into the ring, with their gates.

    x         [rows · T, channels]: query, key and value channels before the convolution
    g, beta   float32 [rows · T, value_heads], g as the ring's
    weight    float32 [kernel, channels], oldest tap first
    window    [slots, kernel − 1 + W, channels]: the inputs before `committed`, then those of pending tokens; W ≥ T, or any with `fold_new`.
              Moves on by `pending` (and T) tokens
    rungs     [columns, kernel − 1, channels]: receives the window at each checkpoint
    marked    int64: the rows that leave one
    """
    rows, depth, back = lanes.slots.shape[0], ring.k.shape[1], weight.shape[0] - 1
    x = x.view(rows, -1, x.shape[1])
    count = x.shape[1]
    here = lanes.pending.unsqueeze(1) + torch.arange(back, device=x.device)
    inputs = torch.cat((window[lanes.slots.unsqueeze(1), here], x), 1)
    wide = inputs.float()
    mixed = wide[:, :count] * weight[0]
    for i in range(1, back + 1):
        mixed.addcmul_(wide[:, i : i + count], weight[i])
    key_width = ring.k.shape[2] * ring.k.shape[3]
    sizes = (key_width, key_width, mixed.shape[2] - 2 * key_width)
    q, k, v = F.silu(mixed, inplace=True).split_with_sizes(sizes, -1)
    slots, place = lanes.slots.unsqueeze(1), _places(lanes, torch.arange(count, device=x.device), depth)
    ring.q[slots, place] = unit(q.reshape(rows, count, *ring.q.shape[2:]))
    ring.k[slots, place] = unit(k.reshape(rows, count, *ring.k.shape[2:]))
    ring.v[slots, place] = v.reshape(rows, count, *ring.v.shape[2:])
    ring.g[slots, place], ring.beta[slots, place] = (y.view(rows, count, *y.shape[1:]) for y in (g, beta))
    _leave_windows(window, inputs, rungs, lanes, marked)
    kept = inputs[:, -back:] if fold_new else inputs
    window[slots, torch.arange(kept.shape[1], device=x.device)] = kept


def delta_step(
    pool: Tensor, rungs: Tensor, lanes: Lanes, marked: Tensor, ring: Ring, out: Tensor, *, fold_new: bool
) -> None:
    """The gated delta rule over states by slot: S ← e^g S;  S ← S + k ⊗ β(v − Sᵀk);  o = Sᵀq / √d.

    pool     [slots, value_heads, key_dim, value_dim], one layer's. Folds `pending` tokens, and the new ones too with `fold_new`
    rungs    [columns, value_heads, key_dim, value_dim]: receives the state at each checkpoint
    marked   int64: the rows that leave one
    out      float32 [rows · T, value_heads, value_dim]; T may be 0
    """
    depth, rows = ring.k.shape[1], lanes.slots.shape[0]
    count = out.shape[0] // rows
    state = pool.index_select(0, lanes.slots).float()
    held = state.index_select(0, marked)
    last, after = lanes.pending.index_select(0, marked), lanes.rung_after.index_select(0, marked)
    outputs = out.view(rows, count, *out.shape[1:])
    # lanes are aligned at their first new token: what a lane has not pending changes nothing
    for t in range(count - depth, count):
        new = _fold_token(state, lanes, t, ring)
        due = (last + (t + 1) == after) & (last + t >= 0)
        held = torch.where(due.view(-1, 1, 1, 1), state.index_select(0, marked), held)
        if t >= 0:
            outputs[:, t] = new
        if t == (count - 1 if fold_new else -1):
            pool.index_copy_(0, lanes.slots, state.to(pool.dtype))
    rungs.index_copy_(0, lanes.rung.index_select(0, marked), held.to(rungs.dtype))


def fold_pending(pool: Tensor, window: Tensor, lanes: Lanes, ring: Ring, back: int) -> Tensor:
    """Fold all that is pending in the lanes' slots into `pool`; returns their windows then, [rows, back, channels]."""
    none = lanes.slots.new_empty(0)
    nothing = pool.new_empty(0, *pool.shape[1:])
    delta_step(pool, nothing, lanes, none, ring, ring.v.new_empty(0, *pool.shape[1:2], pool.shape[3]), fold_new=False)
    here = lanes.pending.unsqueeze(1) + torch.arange(back, device=window.device)
    return window[lanes.slots.unsqueeze(1), here]


def _fold_token(state: Tensor, lanes: Lanes, t: int, ring: Ring) -> Tensor:
    """Fold the token `t` after each lane's pending ones, where there is one, into `state` in place; returns what it reads."""
    place = (lanes.slots, _places(lanes, torch.tensor([t], device=state.device), ring.k.shape[1])[:, 0])
    there = (lanes.pending + t >= 0).view(-1, 1, 1)
    share = state.shape[1] // ring.k.shape[2]
    q, k = (torch.where(there, y[place], 0.0).repeat_interleave(share, 1) for y in (ring.q, ring.k))
    v = torch.where(there, ring.v[place], 0.0)
    g, beta = (torch.where(there, y[place].view(*state.shape[:2], -1), 0.0) for y in (ring.g, ring.beta))
    state.mul_(g.exp().unsqueeze(-1))
    delta = (v - (state * k.unsqueeze(-1)).sum(2)).mul_(beta)
    state.addcmul_(k.unsqueeze(-1), delta.unsqueeze(2))
    return (state * q.unsqueeze(-1)).sum(2).mul_(k.shape[-1] ** -0.5)


def _places(lanes: Lanes, after: Tensor, depth: int) -> Tensor:
    """Rows of the ring, [rows, n], of the tokens `after` [n] behind each lane's pending ones."""
    return (lanes.committed + lanes.pending).unsqueeze(1).add(after).remainder(depth)


def _leave_windows(window: Tensor, inputs: Tensor, rungs: Tensor, lanes: Lanes, marked: Tensor) -> None:
    """Store the window at each checkpoint: from what the slot holds up to the new tokens' own inputs, from these behind it."""
    slots, pending, after, column = (
        y.index_select(0, marked) for y in (lanes.slots, lanes.pending, lanes.rung_after, lanes.rung)
    )
    at = after.unsqueeze(1) + torch.arange(rungs.shape[1], device=window.device)
    behind = at - pending.unsqueeze(1)
    old = window[slots.unsqueeze(1), at.clamp(max=window.shape[1] - 1)]
    new = inputs[marked.unsqueeze(1), behind.clamp(0, inputs.shape[1] - 1)]
    rungs.index_copy_(0, column, torch.where((behind < 0).unsqueeze(-1), old, new).to(rungs.dtype))
