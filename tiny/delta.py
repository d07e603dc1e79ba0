"""The gated delta rule for training: whole sequences at once, in chunks, with gradients by autograd over batched products.

    inside a chunk   (I + N) U = β V,  (I + N) W = β e^G K        N = β (K Kᵀ) ∘ decay, strictly lower
    between chunks   S' = A S + B,  A = e^{G_last} I − K̃ᵀ W,  B = K̃ᵀ U
    outputs          O = Q̃ S + (Q Kᵀ ∘ decay) (U − W S)

Only S' = A S + B runs from chunk to chunk; all else is computed for all chunks at once. Yang et al., "Gated Delta Networks", 2024.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 64
_GROUP = 8


def gated_delta_rule(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Outputs [batch, heads, tokens, value_dim] in float32, from a state of zeros.

    q, k [batch, heads, tokens, key_dim] (made unit length here), v [batch, heads, tokens, value_dim], g (log of the decay) and beta
    [batch, heads, tokens]; tokens a multiple of 64.
    """
    batch, heads, tokens, key_dim = k.shape
    q, k = unit(q.float()) * key_dim**-0.5, unit(k.float())
    q, k, v = (x.float().reshape(batch, heads, tokens // CHUNK, CHUNK, x.shape[-1]) for x in (q, k, v))
    g, beta = (x.float().reshape(batch, heads, tokens // CHUNK, CHUNK) for x in (g, beta))
    grown = g.cumsum(-1)
    later = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    between = (grown.unsqueeze(-1) - grown.unsqueeze(-2)).masked_fill(later, float("-inf")).exp()
    system = ((k * beta.unsqueeze(-1)) @ k.mT * between).tril(-1)
    inverse = inverted(system)
    values = inverse @ (v * beta.unsqueeze(-1))
    reads = inverse @ (k * (beta * grown.exp()).unsqueeze(-1))
    writes = (k * (grown[..., -1:] - grown).exp().unsqueeze(-1)).mT
    kept = torch.diag_embed(grown[..., -1:].exp().expand(*grown.shape[:-1], key_dim)) - writes @ reads
    states = chained(kept, writes @ values)
    inside = (q @ k.mT) * between
    out = (q * grown.exp().unsqueeze(-1)) @ states + inside @ (values - reads @ states)
    return out.reshape(batch, heads, tokens, v.shape[-1])


def unit(x: Tensor) -> Tensor:
    """Vectors of the last dimension, at unit length."""
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def chained(kept: Tensor, added: Tensor) -> Tensor:
    """The state before each chunk, from `kept` [batch, heads, chunks, d, d] and `added` [batch, heads, chunks, d, e].

    Chunks form groups, and each group becomes one step S' = A S + B of the same kind: all groups are gone through side by side, then
    the groups one after the other. 32 chunks take 12 products in a row instead of 31.
    """
    d, chunks = kept.shape[-1], kept.shape[2]
    group = math.gcd(chunks, _GROUP)
    if group in (1, chunks):
        return _in_turn(torch.zeros_like(added[:, :, 0]), kept, added, 2)[0]
    one = torch.eye(d, dtype=kept.dtype, device=kept.device).expand(*kept.shape[:2], chunks // group, d, d)
    both = F.pad(added, (d, 0)).unflatten(2, (-1, group))  # columns of the product of `kept`, then those of the sum
    inside, whole = _in_turn(F.pad(one, (0, added.shape[-1])), kept.unflatten(2, (-1, group)), both, 3)
    (products, sums), (step, term) = (x.split((d, added.shape[-1]), -1) for x in (inside, whole))
    return (products @ chained(step, term).unsqueeze(3) + sums).flatten(2, 3)


def _in_turn(state: Tensor, kept: Tensor, added: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """States before each step along `dim`, and the one behind the last.

    Steps are taken apart all at once: a gradient of one slice would be as large as the whole.
    """
    states = []
    for factor, term in zip(kept.unbind(dim), added.unbind(dim), strict=True):
        states.append(state)
        state = factor @ state + term
    return torch.stack(states, dim), state


def inverted(system: Tensor) -> Tensor:
    """(I + system)⁻¹ of strictly lower triangular matrices [..., 64, 64].

    Block by block, from blocks of one to the whole: [[A, 0], [C, B]]⁻¹ = [[A⁻¹, 0], [−B⁻¹ C A⁻¹, B⁻¹]]. No power of the matrix is
    taken, so nearly equal keys do no harm. That part has no gradient; the last line, a step of Newton's, has it and changes nothing else.
    """
    size = system.shape[-1]
    one = torch.eye(size, device=system.device, dtype=system.dtype)
    with torch.no_grad():
        found = one.expand_as(system)
        rows = torch.arange(size, device=system.device)
        width = 1
        while width < size:
            block = rows // width
            corner = (block.unsqueeze(1) % 2 == 1) & (block.unsqueeze(1) == block.unsqueeze(0) + 1)
            found = found - found @ (system * corner) @ found
            width *= 2
    return found + found @ (one - (one + system) @ found)
