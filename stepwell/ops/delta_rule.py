"""The gated delta rule in float32: S ← e^g S;  S ← S + k ⊗ β(v − Sᵀk);  o = Sᵀq / √d.

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


@dataclass(frozen=True, slots=True, eq=False)
class DeltaInputs:
    """Inputs of n tokens: q and k [n, key_heads, key_dim], v [n, value_heads, value_dim], and float32 g (log of the
    decay, ≤ 0) and beta [n, value_heads]."""

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
    flat.mul_(x.g.exp().view(-1, 1, 1))
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
    v, g, beta = (_by_key_head(y, key_heads) for y in (v, g.unsqueeze(-1), beta.unsqueeze(-1)))
    decay = g.squeeze(-1).cumsum(-1)
    # −∞ above the diagonal before the exponential: no overflow there, and an exact zero after it
    between = (decay.unsqueeze(-1) + _future(q.device)).sub_(decay.unsqueeze(-2)).exp_()
    inside = between * (q @ k.mT)
    system = between.mul_(k @ k.mT).mul_(beta)
    grown = decay.exp().unsqueeze(-1)
    sides = v.new_empty(*v.shape[:-2], value_dim + k.shape[-1], CHUNK).mT
    torch.mul(v, beta, out=sides[..., :value_dim])
    torch.mul(k, grown * beta, out=sides[..., value_dim:])
    # Forward substitution, not a product of powers of the system: powers of nearly equal keys overflow float32
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True).flatten(0, 2)
    values, reads = solved[..., :value_dim], solved[..., value_dim:]
    writes = (k * (decay[..., -1:] - decay).exp_().unsqueeze(-1)).flatten(0, 2).mT
    kept, queries = grown[..., -1:, :].flatten(0, 2), (q * grown).flatten(0, 2)

    after = state.new_empty(chunks * heads, *state.shape[1:])
    fresh, out = (state.new_empty(chunks * heads, CHUNK, value_dim) for _ in range(2))
    at, now = 0, state
    for count in waves:
        rows = slice(at, at + count * heads)
        now = now[: count * heads]
        torch.baddbmm(values[rows], reads[rows], now, alpha=-1, out=fresh[rows])
        torch.bmm(queries[rows], now, out=out[rows])
        now = torch.baddbmm(now * kept[rows], writes[rows], fresh[rows], out=after[rows])
        at += count * heads
    return out.add_(inside.flatten(0, 2) @ fresh), after


def _unit_rows(x: Tensor) -> Tensor:
    """[c, 64, key_heads, dim] → unit rows, float32 [c, key_heads, 1, 64, dim]."""
    rows = x.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return rows.mul_(inverse_length(rows, _EPS)).unsqueeze(2)


def _by_key_head(x: Tensor, key_heads: int) -> Tensor:
    """[c, 64, value_heads, …] → float32 [c, key_heads, value heads of each, 64, …]."""
    return x.float().unflatten(2, (key_heads, -1)).permute(0, 2, 3, 1, 4)  # type: ignore[no-untyped-call,no-any-return]


def _future(device: torch.device) -> Tensor:
    return torch.full((CHUNK, CHUNK), float("-inf"), device=device).triu_(1)
