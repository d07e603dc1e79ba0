"""The gated delta rule in float32: S ← e^g S;  S ← S + k ⊗ β(v − Sᵀk);  o = Sᵀq / √d.

g is a number for each value head (Gated DeltaNet), or a vector for each: then row c of S, which belongs to channel c of its keys,
decays by e^g[c] (Kimi Delta Attention, Kimi Linear technical report, 2025).

Queries and keys are normalised to unit length. Value heads come in groups that share a key head: value head h uses key
head h // (value_heads / key_heads). A state is [value_heads, key_dim, value_dim].

Yang et al., "Gated Delta Networks", 2024, section 3: a chunk's tokens are folded into products of matrices, where one
triangular system undoes the chain of corrections inside the chunk. What happens inside chunks is computed for all of them at once;
from chunk to chunk the states of all sequences move on together, wave by wave (`ops/chunks.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from stepwell.ops.chunks import CHUNK, Chunks
from stepwell.ops.norm import inverse_length

_EPS = 1e-6
_BLOCK = 16
"""Rows of a chunk whose decays by channel are worked out pair by pair."""


@dataclass(frozen=True, slots=True, eq=False)
class DeltaInputs:
    """Inputs of n tokens: q and k [n, key_heads, key_dim], v [n, value_heads, value_dim], and float32 beta [n, value_heads] and g (log of
    the decay, ≤ 0) of that shape, or [n, value_heads, key_dim]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


def delta_rule(x: DeltaInputs, states: Tensor, chunks: Chunks, rungs: Tensor) -> tuple[Tensor, Tensor]:
    """Fold several sequences.

    x        their tokens, one sequence behind the other
    states   [sequences, value_heads, key_dim, value_dim] before the first token of each, not written to
    chunks   how the tokens are divided
    rungs    [cuts, value_heads, key_dim, value_dim]: receives the state at each cut of `chunks`

    Returns outputs float32 [n, value_heads, value_dim], and the states after the last tokens, float32 like `states`.
    A cut on the grid changes no result; one off the grid ends a chunk early.
    """
    heads, sizes = x.v.shape[1], states.shape[1:]
    q, k, v, g, beta = (chunks.pad(y) for y in (x.q, x.k, x.v, x.g, x.beta))
    out = v.new_empty(v.shape, dtype=torch.float32)
    now = chunks.sort(states.float())
    final = torch.empty_like(now)
    for group in chunks.groups:
        part = group.part
        o, after = _fold(q[part], k[part], v[part], g[part], beta[part], now.flatten(0, 1), group.waves)
        out[part] = o.view(-1, heads, *o.shape[1:]).transpose(1, 2)
        after = after.view(-1, *sizes)
        if group.ended is not None:
            final.index_copy_(0, group.ended.sequences, after.index_select(0, group.ended.chunks))
        if group.cut is not None:
            rungs.index_copy_(0, group.cut.sequences, after.index_select(0, group.cut.chunks).to(rungs.dtype))
        now = after[-group.waves[-1] :]
    return chunks.unpad(out.flatten(0, 1), x.v.shape[0]), chunks.unsort(final)


def delta_update(x: DeltaInputs, state: Tensor) -> Tensor:
    """One token for each of n sequences; float32 `state` [n, value_heads, key_dim, value_dim] moves on in place.

    Returns outputs float32 [n, value_heads, value_dim].
    """
    count, heads, value_dim = x.v.shape
    key_dim = x.q.shape[-1]
    per_key = heads // x.k.shape[1]
    both = unit(torch.stack((x.q, x.k)).float()).unsqueeze(3)
    q, k = both.expand(-1, -1, -1, per_key, -1).reshape(2, count * heads, 1, key_dim).unbind(0)
    flat = state.view(count * heads, key_dim, value_dim)
    flat.mul_(x.g.exp().view(count * heads, -1, 1))
    delta = torch.baddbmm(x.v.float().reshape(-1, 1, value_dim), k, flat, alpha=-1).mul_(x.beta.reshape(-1, 1, 1))
    flat.baddbmm_(k.transpose(1, 2), delta)
    out = torch.baddbmm(delta, q, flat, beta=0, alpha=key_dim**-0.5)
    return out.view(count, heads, value_dim)


def unit(x: Tensor) -> Tensor:
    """float32 vectors of the last dimension, at unit length."""
    return x * inverse_length(x, _EPS)


def _fold(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor, waves: tuple[int, ...]
) -> tuple[Tensor, Tensor]:
    """Fold chunks [c, 64, heads, dim] that lie wave by wave. `state` [sequences · heads, key_dim, value_dim]; wave i has `waves[i]` chunks,
    each for the sequence at the same place.

    Returns outputs [c · heads, 64, value_dim] and the states after the chunks [c · heads, key_dim, value_dim].
    Inside, heads are [key_heads, value heads of each], so that what belongs to a key head is computed once.
    """
    chunks, key_heads, heads, value_dim = q.shape[0], k.shape[2], v.shape[2], v.shape[-1]
    q, k = _unit_rows(q).mul_(q.shape[-1] ** -0.5), _unit_rows(k)
    v, g, beta = (_by_key_head(y, key_heads) for y in (v, g.view(*beta.shape, -1), beta.unsqueeze(-1)))
    decay = g.cumsum(-2)
    inside, system = _decayed(q, k, decay) if decay.shape[-1] == 1 else _decayed_by_channel(q, k, decay)
    system.mul_(beta)
    grown = decay.exp()
    sides = v.new_empty(*v.shape[:-1], value_dim + k.shape[-1])
    torch.mul(v, beta, out=sides[..., :value_dim])
    torch.mul(k, grown * beta, out=sides[..., value_dim:])
    # Forward substitution, not a product of powers of the system: powers of nearly equal keys overflow float32. Transposed and from the
    # right, since the library works on columns: it takes rows as they lie then, and hands them back so
    solved = torch.linalg.solve_triangular(system.mT, sides.mT, upper=True, left=False, unitriangular=True).mT
    solved = solved.flatten(0, 2)
    values, reads = solved[..., :value_dim], solved[..., value_dim:]
    writes = (k * (decay[..., -1:, :] - decay).exp_()).flatten(0, 2).mT
    kept, queries = grown[..., -1:, :].flatten(0, 2).mT, (q * grown).flatten(0, 2)

    after = state.new_empty(chunks * heads, *state.shape[1:])
    fresh, out = (state.new_empty(chunks * heads, CHUNK, value_dim) for _ in range(2))
    now, sizes = state, [count * heads for count in waves]
    parts = (y.split(sizes) for y in (values, reads, queries, kept, writes, fresh, out, after))
    for value, read, query, keep, write, new, told, then in zip(*parts, strict=True):
        now = now[: len(then)]
        torch.baddbmm(value, read, now, alpha=-1, out=new)
        torch.bmm(query, now, out=told)
        now = torch.mul(now, keep, out=then).baddbmm_(write, new)
    return out.add_(inside.flatten(0, 2) @ fresh), after


def _unit_rows(x: Tensor) -> Tensor:
    """[c, 64, key_heads, dim] → unit rows, float32 [c, key_heads, 1, 64, dim]."""
    rows = x.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return rows.mul_(inverse_length(rows, _EPS)).unsqueeze(2)


def _by_key_head(x: Tensor, key_heads: int) -> Tensor:
    """[c, 64, value_heads, …] → float32 [c, key_heads, value heads of each, 64, …]."""
    return x.float().unflatten(2, (key_heads, -1)).permute(0, 2, 3, 1, 4)  # type: ignore[no-untyped-call,no-any-return]


def _decayed(q: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """Products of each row of q, and of k, with each row of k up to its own, [c, key_heads, value heads of each, 64, 64], as far as they
    have not decayed; `decay` [c, key_heads, value heads of each, 64, 1] adds up from the chunk's start. Behind the diagonal q's are 0."""
    # −∞ above the diagonal before the exponential: no overflow there, and an exact zero after it
    between = (decay + _future(CHUNK, q.device)).sub_(decay.mT).exp_()
    inside = between * (q @ k.mT)
    return inside, between.mul_(k @ k.mT)


def _decayed_by_channel(q: Tensor, k: Tensor, decay: Tensor) -> tuple[Tensor, Tensor]:
    """The same with a `decay` of each channel, […, 64, key_dim].

    e^(Gᵢ − Gⱼ) is no product of a factor for i and one for j that both stay within float32. Block by block it is: for j before the block it
    is e^(Gᵢ − Gₛ) · e^(Gₛ − Gⱼ) with the block's first row s, neither above 1. Within a block it is worked out for each pair.
    """
    both = torch.stack((q, k))
    out = decay.new_zeros(2, *decay.shape[:-1], CHUNK)
    future = _future(_BLOCK, q.device).unsqueeze(-1)
    for first in range(0, CHUNK, _BLOCK):
        rows, before = slice(first, first + _BLOCK), slice(0, first)
        own, here, keys = both[..., rows, :], decay[..., rows, :], k[..., rows, :]
        between = (here.unsqueeze(-2) + future).sub_(here.unsqueeze(-3)).exp_().mul_(keys.unsqueeze(-3))
        # [rows, keys, channels] times q and k of each row, as two columns
        out[..., rows, rows] = (between @ own.expand(2, *here.shape).permute(1, 2, 3, 4, 5, 0)).permute(
            5, 0, 1, 2, 3, 4
        )
        if first:
            far = k[..., before, :] * (here[..., :1, :] - decay[..., before, :]).exp_()
            out[..., rows, before] = (own * (here - here[..., :1, :]).exp_()) @ far.mT
    inside, system = out.unbind()
    return inside, system


def _future(size: int, device: torch.device) -> Tensor:
    return torch.full((size, size), float("-inf"), device=device).triu_(1)
