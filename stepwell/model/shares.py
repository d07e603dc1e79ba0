"""Which part of each published tensor one of several tensor-parallel ranks holds.

    attention    query heads with their gates; key and value heads, each on several ranks where there are fewer heads than ranks
    delta rule   queries, keys, values and gates by heads, each by itself; the convolution's channels alike, decay and bias by value head
                 where it decays by channel (KDA), the narrow halves of low-rank matrices are whole, the wide ones cut by heads
    latents      queries and what turns them by heads; the latent itself, which has no heads, is made and kept on every rank
    MLPs         their width: a rank has its part of every expert
    head         rows, so words of the vocabulary; the embedding is whole on every rank, and so are norms and routers

Matrices that lead back to the residual stream are cut by columns. What each rank computes with its own is a part of a sum.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import accumulate, pairwise

from stepwell.base.shapes import Latent, ModelShape
from stepwell.base.units import ceil_div
from stepwell.model import names
from stepwell.model.cuts import Cut, Spans


def share(name: str, shape: ModelShape, rank: int, ranks: int) -> Cut | None:
    """The part of tensor `name` that `rank` holds; None for all of it. `shape` is that of the whole model, which `ranks` divides."""
    if ranks == 1:
        return None
    if name == names.HEAD:
        return Cut(0, (words(shape.vocab, rank, ranks),))
    for ending, cut in _endings(name, shape).items():
        if name.endswith(ending):
            return cut(shape, rank, ranks)
    return None


def _endings(name: str, shape: ModelShape) -> dict[str, _Share]:
    if shape.latent is None:
        return _ENDINGS
    # both kinds of layers call their matrices alike
    layer = _LAYER.match(name)
    return _CHANNELS if layer and shape.layer_types[int(layer[1])] == "linear_attention" else _LATENT


def words(vocab: int, rank: int, ranks: int) -> tuple[int, int]:
    """The rows of the head that `rank` holds: as many on all ranks, but for the last ones where that leaves a rest."""
    width = ceil_div(vocab, ranks)
    return min(vocab, rank * width), min(vocab, (rank + 1) * width)


_Share = Callable[[ModelShape, int, int], Cut]


def _even(count: int, rank: int, ranks: int, first: int = 0) -> tuple[int, int]:
    each = count // ranks
    return first + rank * each, first + (rank + 1) * each


def _each(sizes: Iterable[int], rank: int, ranks: int) -> Spans:
    """The rank's part of each of several things that lie one behind the other."""
    ends = (0, *accumulate(sizes))
    return tuple(_even(end - first, rank, ranks, first) for first, end in pairwise(ends))


def _along(axis: int, *sizes: Callable[[ModelShape], int]) -> _Share:
    return lambda s, rank, ranks: Cut(axis, _each([size(s) for size in sizes], rank, ranks))


def _kv(s: ModelShape, rank: int, ranks: int) -> Cut:
    heads = max(1, s.kv_heads // ranks)
    first = rank * s.kv_heads // ranks
    return Cut(0, ((first * s.head_dim, (first + heads) * s.head_dim),))


def _mlp(name: str, width: Callable[[ModelShape], int], matrices: tuple[str, ...] = names.GATED) -> dict[str, _Share]:
    gate, up, down = matrices
    return {
        f"{name}{gate}.weight": _along(0, width),
        f"{name}{up}.weight": _along(0, width),
        f"{name}{down}.weight": _along(1, width),
    }


def _keys(s: ModelShape) -> int:
    return s.key_heads * s.key_dim


def _values(s: ModelShape) -> int:
    return s.value_heads * s.value_dim


_ENDINGS: dict[str, _Share] = {
    "self_attn.q_proj.weight": _along(0, lambda s: (2 if s.architecture.gated else 1) * s.heads * s.head_dim),
    "self_attn.k_proj.weight": _kv,
    "self_attn.v_proj.weight": _kv,
    "self_attn.o_proj.weight": _along(1, lambda s: s.heads * s.head_dim),
    # Qwen3-Next stores query, key, values and gates of each key head together: whole heads are rows that follow each other
    "linear_attn.in_proj_qkvz.weight": _along(0, lambda s: s.conv_channels + _values(s)),
    "linear_attn.in_proj_ba.weight": _along(0, lambda s: 2 * s.value_heads),
    "linear_attn.in_proj_qkv.weight": _along(0, _keys, _keys, _values),
    "linear_attn.in_proj_z.weight": _along(0, _values),
    "linear_attn.in_proj_b.weight": _along(0, lambda s: s.value_heads),
    "linear_attn.in_proj_a.weight": _along(0, lambda s: s.value_heads),
    "linear_attn.conv1d.weight": _along(0, _keys, _keys, _values),
    "linear_attn.A_log": _along(0, lambda s: s.value_heads),
    "linear_attn.dt_bias": _along(0, lambda s: s.value_heads),
    "linear_attn.out_proj.weight": _along(1, _values),
    "mlp.experts.gate_up_proj": _along(1, lambda s: s.expert_width, lambda s: s.expert_width),
    "mlp.experts.down_proj": _along(2, lambda s: s.expert_width),
    **_mlp("mlp.shared_expert.", lambda s: s.shared_width),
    **_mlp("mlp.", lambda s: s.mlp_width),
    **_mlp(".", lambda s: s.expert_width),
}
"""By how names end; the first that fits counts, so that what is left for the last is an expert with tensors of its own."""


def _heads_of(part: Callable[[Latent], int]) -> Callable[[ModelShape], int]:
    def size(s: ModelShape) -> int:
        assert s.latent is not None
        return s.heads * part(s.latent)

    return size


_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_MIXTURE: dict[str, _Share] = {
    **_mlp("shared_experts.", lambda s: s.shared_width),
    **_mlp("mlp.", lambda s: s.mlp_width),
    **_mlp(".", lambda s: s.expert_width, ("w1", "w3", "w2")),
}
_LATENT: dict[str, _Share] = {
    "self_attn.q_proj.weight": _along(0, _heads_of(lambda latent: latent.own + latent.shared)),
    "self_attn.kv_b_proj.weight": _along(0, _heads_of(lambda latent: latent.own + latent.value)),
    "self_attn.o_proj.weight": _along(1, _heads_of(lambda latent: latent.value)),
    **_MIXTURE,
}
"""Of a layer whose attention keeps latents."""
_CHANNELS: dict[str, _Share] = {
    **{f"self_attn.{name}.weight": _along(0, _keys) for name in ("q_proj", "k_proj", "q_conv1d", "k_conv1d")},
    **{f"self_attn.{name}.weight": _along(0, _values) for name in ("v_proj", "v_conv1d", "g_b_proj")},
    "self_attn.f_b_proj.weight": _along(0, _keys),
    "self_attn.b_proj.weight": _along(0, lambda s: s.value_heads),
    "self_attn.A_log": _along(2, lambda s: s.value_heads),
    "self_attn.dt_bias": _along(0, lambda s: s.value_heads * s.decays),
    "self_attn.o_proj.weight": _along(1, _values),
    **_MIXTURE,
}
"""Of a layer whose delta rule decays by channel."""
