"""Each kernel's twin in plain torch: the same arguments and results, one row at a time and meant to be read.

Tests and `bench/gpu_kernels.py` compare kernels with these. Arithmetic runs in the type `wide`, so that a twin in float64
is the judge of a kernel in float32.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from stepwell.ops.attention import places, write_kv
from stepwell.ops.pending import Lanes, Ring
from stepwell.ops.triton.attention import LOG2_E
from stepwell.ops.triton.chunked import PAD, Chunks, Mixed
from stepwell.ops.triton.sampling import Settings


def conv_step(
    x: Tensor, b: Tensor, a: Tensor, weight: Tensor, rate: Tensor, dt_bias: Tensor,
    window: Tensor, rungs: Tensor, lanes: Lanes, ring: Ring, *, eps: float = 1e-6, fold_new: bool,
    wide: torch.dtype = torch.float32,
) -> None:  # fmt: skip
    rows, depth, key_heads, value_heads = lanes.slots.shape[0], ring.k.shape[1], ring.k.shape[2], ring.v.shape[2]
    key_width, taps = key_heads * ring.k.shape[3], weight.shape[0]
    x = x.unflatten(0, (rows, -1))
    beta = b.to(wide).sigmoid().unflatten(0, (rows, -1))
    g = (F.softplus(a.to(wide) + dt_bias.to(wide)) * rate.to(wide)).unflatten(0, (rows, -1))
    for row, (slot, committed, pending, rung, after) in enumerate(_lanes(lanes)):
        inputs = torch.cat((window[slot, : taps - 1 + pending], x[row]))
        y = torch.stack(
            [(inputs[i : i + taps].to(wide) * weight.to(wide)).sum(0) for i in range(pending, pending + x.shape[1])]
        )
        q, k, v = F.silu(y).split((key_width, key_width, y.shape[1] - 2 * key_width), -1)
        for t in range(x.shape[1]):
            place = (committed + pending + t) % depth
            ring.q[slot, place] = _unit(q[t].unflatten(0, (key_heads, -1)), eps)
            ring.k[slot, place] = _unit(k[t].unflatten(0, (key_heads, -1)), eps)
            ring.v[slot, place] = v[t].unflatten(0, (value_heads, -1))
            ring.g[slot, place], ring.beta[slot, place] = g[row, t], beta[row, t]
        if rung >= 0:
            rungs[rung] = inputs[after : after + taps - 1]
        kept = inputs[-(taps - 1) :] if fold_new else inputs[pending:]
        window[slot, : kept.shape[0]] = kept


def delta_step(
    pool: Tensor, rungs: Tensor, lanes: Lanes, ring: Ring, out: Tensor, *, fold_new: bool, wide: torch.dtype = torch.float32
) -> None:  # fmt: skip
    depth, group = ring.k.shape[1], ring.v.shape[2] // ring.k.shape[2]
    outputs = out.unflatten(0, (lanes.slots.shape[0], -1))
    new = outputs.shape[1]
    for row, (slot, committed, pending, rung, after) in enumerate(_lanes(lanes)):
        state = pool[slot].to(wide)
        for t in range(pending + new):
            at = (slot, (committed + t) % depth)
            q, k = (y[at].to(wide).repeat_interleave(group, 0) for y in (ring.q, ring.k))
            state = state * ring.g[at].to(wide).exp()[:, None, None]
            delta = (ring.v[at].to(wide) - torch.einsum("hkv,hk->hv", state, k)) * ring.beta[at].to(wide)[:, None]
            state = state + k[:, :, None] * delta[:, None, :]
            if t >= pending:
                outputs[row, t - pending] = torch.einsum("hkv,hk->hv", state, q) * k.shape[-1] ** -0.5
            if rung >= 0 and t + 1 == after:
                rungs[rung] = state
            if t + 1 == pending + (new if fold_new else 0):
                pool[slot] = state


def qkv_step(
    qk: Tensor, v: Tensor, q_norm: Tensor, k_norm: Tensor, cos: Tensor, sin: Tensor,
    k_pages: Tensor, v_pages: Tensor, page: Tensor, offset: Tensor, eps: float, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None, wide: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    kv_heads, dim = k_pages.shape[2:]
    both = qk.unflatten(1, (-1, dim)).to(wide)
    heads, half = both.shape[1] - kv_heads, cos.shape[1]
    both = both * (both.square().mean(-1, keepdim=True) + eps).rsqrt()
    both = both * torch.cat((q_norm.expand(heads, dim), k_norm.expand(kv_heads, dim))).to(wide)
    first, second, rest = both.split((half, half, dim - 2 * half), -1)
    c, s = cos.to(wide)[:, None], sin.to(wide)[:, None]
    both = torch.cat((first * c - second * s, second * c + first * s, rest), -1)
    q, k, v = both[:, :heads], both[:, heads:], v.unflatten(1, (kv_heads, dim))
    if k_scale is not None and v_scale is not None:
        q = q * k_scale.repeat_interleave(heads // kv_heads).to(wide)[:, None]
        k, v = k / k_scale.to(wide)[:, None], v.to(wide) / v_scale.to(wide)[:, None]
    write_kv(k, v, k_pages, v_pages, places(page, offset, k_pages))
    return q.to(qk.dtype)


def gather_kv(
    k_pages: Tensor, v_pages: Tensor, pages: Tensor, first: Tensor, count: Tensor, k_out: Tensor, v_out: Tensor
) -> None:
    for page, row, size in zip(pages.tolist(), first.tolist(), count.tolist(), strict=True):
        k_out[row : row + size] = k_pages[page, :size].to(k_out.dtype)
        v_out[row : row + size] = v_pages[page, :size].to(v_out.dtype)


def paged_decode(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, table: Tensor, lengths: Tensor, gate: Tensor | None,
    counts: Tensor | None = None, wide: torch.dtype = torch.float32, v_scale: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Rows of padding are left 0."""
    rows, heads, dim = q.shape
    block, kv_heads, sequences = k_pages.shape[1], k_pages.shape[2], lengths.shape[0]
    out = torch.zeros(rows, heads, dim, dtype=wide, device=q.device)
    new = (counts if counts is not None else torch.ones_like(lengths)).tolist()
    for sequence, length in enumerate(lengths.tolist()):
        if not length:
            continue
        pages = table[sequence, : -(-length // block)].long()
        k, v = (y[pages].flatten(0, 1)[:length].to(wide) for y in (k_pages, v_pages))
        for t in range(new[sequence]):
            row, seen = sequence * (rows // sequences) + t, length - new[sequence] + 1 + t
            groups = q[row].to(wide).unflatten(0, (kv_heads, -1))
            chances = torch.softmax(torch.einsum("hgd,thd->hgt", groups, k[:seen]) * dim**-0.5, -1)
            out[row] = torch.einsum("hgt,thd->hgd", chances, v[:seen]).flatten(0, 1)
    if v_scale is not None:
        out = out * v_scale.repeat_interleave(heads // kv_heads).to(wide)[:, None]
    flat = out.flatten(1)
    return (flat if gate is None else flat * gate.to(wide).sigmoid()).to(q.dtype)


def route(logits: Tensor, top: int, normed: bool) -> tuple[Tensor, Tensor]:
    experts = logits.shape[1] - 1
    chances = torch.softmax(logits[:, :experts].float(), -1)
    best, chosen = chances.sort(dim=-1, descending=True, stable=True)
    best, chosen = best[:, :top], chosen[:, :top]
    if normed:
        best = best / best.sum(-1, keepdim=True)
    shared = torch.full_like(chosen[:, :1], experts)
    return torch.cat((chosen, shared), 1).int(), torch.cat((best, logits[:, experts:].float().sigmoid()), 1)


def mixture(
    x: Tensor, chosen: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, shared_gate_up: Tensor,
    shared_down: Tensor, residual: Tensor, norm: Tensor, eps: float, wide: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    total = torch.zeros(x.shape, dtype=wide, device=x.device)
    for row in range(x.shape[0]):
        for expert, weight in zip(chosen[row].tolist(), weights[row].tolist(), strict=True):
            shared = expert == gate_up.shape[0]
            into, out = (shared_gate_up, shared_down) if shared else (gate_up[expert], down[expert])
            gate, up = (into.to(wide) @ x[row].to(wide)).chunk(2)
            total[row] += weight * (out.to(wide) @ (F.silu(gate) * up).to(x.dtype).to(wide))
    residual.copy_(residual.to(wide) + total)
    return _normed(residual, norm, eps, wide).to(residual.dtype)


def add_rms_norm(x: Tensor | None, residual: Tensor, weight: Tensor, eps: float, wide: torch.dtype = torch.float32) -> Tensor:  # fmt: skip
    if x is not None:
        residual.copy_(residual.to(wide) + x.to(wide))
    return _normed(residual, weight, eps, wide).to(residual.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float, wide: torch.dtype = torch.float32) -> Tensor:
    return (_normed(x, weight, eps, wide).flatten(1) * F.silu(gate.to(wide))).to(gate.dtype)


def sigmoid_gate(x: Tensor, gate: Tensor, wide: torch.dtype = torch.float32, scale: Tensor | None = None) -> Tensor:
    y = x.to(wide) * gate.to(wide).sigmoid()
    return (y if scale is None else y * scale.to(wide).repeat_interleave(x.shape[1] // scale.numel())).to(x.dtype)


def _lanes(lanes: Lanes) -> zip[tuple[int, ...]]:
    columns = (lanes.slots, lanes.committed, lanes.pending, lanes.rung, lanes.rung_after)
    return zip(*(column.tolist() for column in columns), strict=True)


def _normed(x: Tensor, weight: Tensor, eps: float, wide: torch.dtype) -> Tensor:
    y = x.to(wide)
    return y * (y.square().mean(-1, keepdim=True) + eps).rsqrt() * weight.to(wide)


def _unit(x: Tensor, eps: float) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()


def linear(x: Tensor, weight: Tensor, wide: torch.dtype = torch.float32) -> Tensor:
    return (x.to(wide) @ weight.to(wide).mT).to(x.dtype)


def gated(x: Tensor, weight: Tensor, wide: torch.dtype = torch.float32) -> Tensor:
    upper, lower = (x.to(wide) @ weight.to(wide).mT).chunk(2, -1)
    return (F.silu(upper) * lower).to(x.dtype)


def sample(logits: Tensor, settings: Settings) -> Tensor:
    tokens = [_draw(row.double(), *one) for row, one in zip(logits, _settings(settings), strict=True)]
    return torch.tensor(tokens, device=logits.device)


def _draw(x: Tensor, heat: float, most: int, share: float, floor: float, seed: int, index: int) -> int:
    peak = x.max()
    if not peak.isfinite():  # a maximum with a NaN in it is NaN
        return -1
    if heat <= 0:
        return int(x.argmax())
    chances = ((x - peak) / heat).exp()
    kept = chances >= floor
    if most:
        kept &= x >= x.topk(min(most, x.numel())).values[-1]
    if share < 1:
        ordered, _ = (chances * kept).sort(descending=True)
        before = ordered.cumsum(0) - ordered
        kept &= chances >= ordered[before < share * ordered.sum()].min()
    bits = _philox(seed, torch.arange(x.numel(), device=x.device), index)
    times = -torch.log1p(-(bits.double() + 0.5) / 2**32)
    return int(torch.where(kept, chances.log() - times.log(), float("-inf")).argmax())


def _philox(seed: int, token: Tensor, index: int) -> Tensor:
    """First word of Philox 4x32-10 with the counter (token, index, 0, 0), as int64."""
    word = 0xFFFFFFFF
    c0, c1, c2, c3 = token, torch.full_like(token, index & word), torch.zeros_like(token), torch.zeros_like(token)
    k0, k1 = seed & word, seed >> 32 & word
    for _ in range(10):
        # products of 32-bit words wrap to int64 with all their bits in place
        first, second = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c2 = (second >> 32 & word) ^ c1 ^ k0, (first >> 32 & word) ^ c3 ^ k1
        c1, c3 = second & word, first & word
        k0, k1 = k0 + 0x9E3779B9 & word, k1 + 0xBB67AE85 & word
    return c0


def _settings(s: Settings) -> zip[tuple[float, int, float, float, int, int]]:
    columns = (s.temperature, s.top_k, s.top_p, s.min_p, s.seed, s.index)
    return zip(*(column.tolist() for column in columns), strict=True)


def prepare(
    x: Tensor, b: Tensor, a: Tensor, taps: Tensor, rate: Tensor, dt_bias: Tensor, window: Tensor, rungs: Tensor,
    chunks: Chunks, key_heads: int, key_dim: int, *, eps: float = 1e-6, wide: torch.dtype = torch.float32,
) -> Mixed:  # fmt: skip
    qkv, decay, betas = (
        torch.zeros_like(x),
        torch.zeros_like(b, dtype=torch.float32),
        torch.zeros_like(b, dtype=torch.float32),
    )
    keys, values = key_heads * key_dim, b.shape[1]
    g, beta = F.softplus(a.to(wide) + dt_bias.to(wide)) * rate.to(wide), b.to(wide).sigmoid()
    for first, count, column, begin, slot in _chunks(chunks):
        if column == PAD:
            continue
        inputs = torch.cat((window[slot, :3], x[begin : first + count]))[-count - 3 :]
        y = F.silu(torch.stack([(inputs[i : i + 4].to(wide) * taps.to(wide)).sum(0) for i in range(count)]))
        q, k, v = y.split((keys, keys, y.shape[1] - 2 * keys), -1)
        q, k = (_unit(part.unflatten(1, (key_heads, -1)), eps).flatten(1) for part in (q, k))
        rows = slice(first, first + count)
        qkv[rows] = torch.cat((q, k, v), 1).to(x.dtype)
        decay[rows], betas[rows] = (g[rows].cumsum(0) * LOG2_E).float(), beta[rows].float()
        if column >= 0:
            rungs[column] = inputs[-3:]
    return Mixed(qkv, decay, betas, key_heads, key_dim, (x.shape[1] - 2 * keys) // values)


def keep_windows(x: Tensor, window: Tensor, chunks: Chunks) -> None:
    for end, slot, last in zip(*(y.tolist() for y in (chunks.ends[:-1], chunks.slots, chunks.last)), strict=True):
        window[slot, :3] = torch.cat((window[slot, :3], x[int(chunks.begin[end]) : last]))[-3:]


def fold(
    mixed: Mixed, z: Tensor, weight: Tensor, eps: float, pool: Tensor, rungs: Tensor, chunks: Chunks,
    wide: torch.dtype = torch.float32,
) -> Tensor:  # fmt: skip
    """Token by token."""
    heads, keys = mixed.beta.shape[1], mixed.key_heads * mixed.key_dim
    q, k, v = mixed.qkv.to(wide).split((keys, keys, heads * mixed.value_dim), -1)
    q, k = (y.unflatten(1, (mixed.key_heads, -1)).repeat_interleave(heads // mixed.key_heads, 1) for y in (q, k))
    v, out = v.unflatten(1, (heads, -1)), torch.zeros_like(z, dtype=wide)
    for first, count, column, _, slot in _chunks(chunks):
        if column == PAD:
            continue
        state, before = pool[slot].to(wide), torch.zeros_like(mixed.decay[0], dtype=wide)
        for t in range(first, first + count):
            now = mixed.decay[t].to(wide)
            state = state * torch.exp2(now - before)[:, None, None]
            delta = (v[t] - torch.einsum("hkv,hk->hv", state, k[t])) * mixed.beta[t].to(wide)[:, None]
            state, before = state + k[t][:, :, None] * delta[:, None, :], now
            y = torch.einsum("hkv,hk->hv", state, q[t]) * mixed.key_dim**-0.5
            out[t] = _normed(y, weight, eps, wide).flatten() * F.silu(z[t].to(wide))
        pool[slot] = state.to(pool.dtype)
        if column >= 0:
            rungs[column] = state.to(rungs.dtype)
    return out.to(z.dtype)


def _chunks(chunks: Chunks) -> zip[tuple[int, ...]]:
    columns = (chunks.first, chunks.count, chunks.column, chunks.begin, chunks.slot)
    return zip(*(column.tolist() for column in columns), strict=True)
