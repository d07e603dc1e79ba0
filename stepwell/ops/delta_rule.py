"""The gated delta rule in float32: S ← e^g S;  S ← S + k ⊗ β(v − Sᵀk);  o = Sᵀq / √d.

Queries and keys are normalised to unit length. Value heads come in groups that share a key head: value head h uses key
head h // (value_heads / key_heads). A state is [value_heads, key_dim, value_dim].

Yang et al., "Gated Delta Networks", 2024, section 3: a chunk's tokens are folded into products of matrices, where one
triangular system undoes the chain of corrections inside the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
_EPS = 1e-6
# Chunks × heads worked on at once: enough to keep the cores busy while the intermediates stay in cache (on a GPU: in memory).
_AT_ONCE_CPU = 128
_AT_ONCE_GPU = 8192


@dataclass(frozen=True, slots=True)
class DeltaInputs:
    """Inputs of n tokens: q and k [n, key_heads, key_dim], v [n, value_heads, value_dim], and float32 g (log of the
    decay, ≤ 0) and beta [n, value_heads]."""

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor


def delta_rule(x: DeltaInputs, state: Tensor, start: int, cuts: Sequence[int]) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Fold one sequence.

    state    [value_heads, key_dim, value_dim], not written to
    start    position of the first token: chunks lie on multiples of 64 of the position, so that a split on that grid
             changes no chunk
    cuts     ascending token counts in 1 … n

    Returns outputs float32 [n, value_heads, value_dim], the state after the last token, and the state after each cut,
    all float32. A cut on the grid changes no result; one off the grid ends a chunk early.
    """
    count = x.q.shape[0]
    ends = chunk_ends(start, count, cuts)
    q, k, v, g, beta = _in_chunks(x, ends)
    heads = v.shape[2]
    group = max(1, (_AT_ONCE_GPU if v.is_cuda else _AT_ONCE_CPU) // heads)
    out = v.new_empty(v.shape, dtype=torch.float32)
    wanted = {end: i for i, end in enumerate(ends)}
    at_cut: dict[int, Tensor] = {}
    state = state.float()
    for a in range(0, len(ends), group):
        part = slice(a, a + group)
        o, states = _fold(q[part], k[part], v[part], g[part], beta[part], state)
        out[part] = o.transpose(1, 2)
        state = states[-1]
        at_cut.update((cut, states[wanted[cut] - a + 1]) for cut in cuts if a <= wanted[cut] < a + group)
    flat = out.view(-1, heads, out.shape[-1])
    return _out_of_chunks(flat, ends, count), state, [at_cut[cut] for cut in cuts]


def delta_update(x: DeltaInputs, state: Tensor) -> Tensor:
    """One token for each of n sequences; float32 `state` [n, value_heads, key_dim, value_dim] moves on in place.

    Returns outputs float32 [n, value_heads, value_dim].
    """
    count, heads, value_dim = x.v.shape
    key_dim = x.q.shape[-1]
    per_key = heads // x.k.shape[1]
    q, k = _unit(x.q.float()), _unit(x.k.float())
    if per_key > 1:
        q, k = (y.repeat_interleave(per_key, 1) for y in (q, k))
    flat = state.view(count * heads, key_dim, value_dim)
    flat.mul_(x.g.exp().view(-1, 1, 1))
    k = k.reshape(-1, 1, key_dim)
    delta = torch.baddbmm(x.v.float().reshape(-1, 1, value_dim), k, flat, alpha=-1).mul_(x.beta.reshape(-1, 1, 1))
    flat.baddbmm_(k.transpose(1, 2), delta)
    out = torch.bmm(q.reshape(-1, 1, key_dim), flat).mul_(key_dim**-0.5)
    return out.view(count, heads, value_dim)


def chunk_ends(start: int, count: int, cuts: Sequence[int]) -> list[int]:
    """Token counts at which chunks end: where the position is a multiple of 64, at each cut, and at the end.

    >>> chunk_ends(100, 100, [60])
    [28, 60, 92, 100]
    """
    grid = range(CHUNK - start % CHUNK, count, CHUNK)
    return sorted({*grid, *cuts, count})


def _inverse_length(x: Tensor) -> Tensor:
    size: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return size.mul_(size).add_(_EPS).rsqrt_()


def _unit(x: Tensor) -> Tensor:
    return x * _inverse_length(x)


def _whole(ends: Sequence[int]) -> bool:
    """Whether every chunk but the last is full: then rows need no rearranging."""
    return all(end == CHUNK * i for i, end in enumerate(ends[:-1], 1))


def _rows(ends: Sequence[int], device: torch.device) -> Tensor:
    """For each token its row among the padded chunks, int64 [n]."""
    starts = [0, *ends[:-1]]
    shift = torch.tensor([i * CHUNK - s for i, s in enumerate(starts)])
    sizes = torch.tensor([e - s for s, e in zip(starts, ends, strict=True)])
    return (torch.arange(ends[-1]) + shift.repeat_interleave(sizes)).to(device)


def _in_chunks(x: DeltaInputs, ends: Sequence[int]) -> tuple[Tensor, ...]:
    """Each input as [chunks, 64, …]. Padding is zero: with k, β and g zero, a token changes nothing."""
    count, chunks = x.q.shape[0], len(ends)
    fields = (x.q, x.k, x.v, x.g, x.beta)
    if count == chunks * CHUNK:
        padded = fields
    elif _whole(ends):
        extra = chunks * CHUNK - count
        padded = tuple(F.pad(y, (0, 0) * (y.ndim - 1) + (0, extra)) for y in fields)  # type: ignore[assignment]
    else:
        rows = _rows(ends, x.q.device)
        padded = tuple(y.new_zeros(chunks * CHUNK, *y.shape[1:]).index_copy_(0, rows, y) for y in fields)  # type: ignore[assignment]
    return tuple(y.reshape(chunks, CHUNK, *y.shape[1:]) for y in padded)


def _out_of_chunks(flat: Tensor, ends: Sequence[int], count: int) -> Tensor:
    if _whole(ends):
        return flat[:count]
    return flat.index_select(0, _rows(ends, flat.device))


def _fold(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Fold chunks [c, 64, heads, dim] in order; returns outputs [c, heads, 64, value_dim] and states [c + 1, …].

    Inside, heads are [key_heads, value heads of each], so that what belongs to a key head is computed once.
    """
    chunks, key_heads, value_dim = q.shape[0], k.shape[2], v.shape[-1]
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
    solved = torch.linalg.solve_triangular(system, sides, upper=False, unitriangular=True).flatten(1, 2)
    writes = (k * (decay[..., -1:] - decay).exp_().unsqueeze(-1)).mT.flatten(1, 2).unbind()
    kept = grown[..., -1:, :].flatten(1, 2).unbind()
    values, reads = solved[..., :value_dim].unbind(), solved[..., value_dim:].unbind()

    states = state.new_empty(chunks + 1, *state.shape)
    states[0] = state
    fresh = state.new_empty(chunks, state.shape[0], CHUNK, value_dim)
    now, new = states.unbind(), fresh.unbind()
    for i in range(chunks):
        torch.baddbmm(values[i], reads[i], now[i], alpha=-1, out=new[i])
        torch.baddbmm(now[i] * kept[i], writes[i], new[i], out=now[i + 1])
    out = (q * grown).flatten(1, 2) @ states[:-1]
    return out.add_(inside.flatten(1, 2) @ fresh), states


def _unit_rows(x: Tensor) -> Tensor:
    """[c, 64, key_heads, dim] → unit rows, float32 [c, key_heads, 1, 64, dim]."""
    rows = x.transpose(1, 2).to(torch.float32, memory_format=torch.contiguous_format, copy=True)
    return rows.mul_(_inverse_length(rows)).unsqueeze(2)


def _by_key_head(x: Tensor, key_heads: int) -> Tensor:
    """[c, 64, value_heads, …] → float32 [c, key_heads, value heads of each, 64, …]."""
    return x.float().unflatten(2, (key_heads, -1)).permute(0, 2, 3, 1, 4)  # type: ignore[no-untyped-call,no-any-return]


def _future(device: torch.device) -> Tensor:
    return torch.full((CHUNK, CHUNK), float("-inf"), device=device).triu_(1)
