"""From checkpoint files, or from a config alone, to a decoder: takes each tensor once, fuses what reads the same input."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from stepwell.base.shapes import ModelShape
from stepwell.model import names
from stepwell.model.backend import Backend
from stepwell.model.backends import MakeBackend, backend_for
from stepwell.model.checkpoint import Checkpoint, Progress
from stepwell.model.config import HybridConfig
from stepwell.model.cuts import Cut
from stepwell.model.decoder import HybridDecoder, Layer
from stepwell.model.drafter import Drafter
from stepwell.model.dummy import DummyWeights
from stepwell.model.fp8 import Fp8Weights, cuts_of_scales, with_scales
from stepwell.model.layers import Attention, DeltaNet, DenseMlp, Experts, Half, Latent, LowRank, Norm, NormedAfter
from stepwell.model.shares import share, words
from stepwell.ops.linear import Linear
from stepwell.ops.ranks import ALONE, Ranks, SideBySide
from stepwell.ops.scaled import Matrix, Scaled, alike, joined, put, stack_like, taken, unpacked

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

LATENT_EPS = 1e-6
"""Of the norm of latents, whatever config.json says for the others: published models take the default of their class."""


class Weights(Protocol):
    """Where tensors come from, by their published names; each call makes or reads a fresh one."""

    def tensor(self, name: str) -> Tensor: ...

    def matrix(self, name: str) -> Matrix:
        """The tensor of a matrix; in FP8, if it is stored so and the backend holds it."""


def load_decoder(
    directory: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    progress: Progress = lambda done, total: None,
    make: MakeBackend = backend_for,
    drafts: bool = False,
    ranks: Ranks = ALONE,
) -> HybridDecoder:
    """The decoder saved in `directory` (config.json and safetensors). `dtype` None: as the checkpoint says.

    `drafts`: with its layer for multi-token prediction. `ranks`: of several, this one's part, and no more is read.
    The files are closed when this returns; what happens to them later changes nothing. `progress` hears of the bytes read.
    Raises ConfigError naming the field or the tensors that do not fit.
    """
    config = _config(directory, drafts)
    place, chosen = torch.device(device), dtype or DTYPES[config.dtype]
    own = config.shard(ranks.count)
    backend = make(own, chosen, place, ranks)
    with Checkpoint(directory, progress, drafts=drafts, device=place) as checkpoint:
        prefixes = names.layer_prefixes(config.shape)
        fused = frozenset(prefix for prefix in prefixes if names.fused_experts(prefix) in checkpoint)
        expected = names.expected(config.shape, fused)
        if config.shape.tied and names.HEAD in checkpoint:
            expected[names.HEAD] = expected[names.EMBEDDING]
        checkpoint.check(with_scales(checkpoint, config.fp8, expected))
        cuts = _cuts(expected, config, ranks)
        checkpoint.share(cuts if config.fp8 is None else cuts_of_scales(checkpoint, config.fp8, cuts))
        checkpoint.read_ahead(names.in_order(expected, config.shape.tied))
        if config.fp8 is None:
            return _Loader(own, checkpoint, chosen, place, backend, ranks).decoder(fused)
        weights = Fp8Weights(checkpoint, config.fp8, chosen, place, _holds(backend, config))
        return _Loader(own, weights, chosen, place, backend, ranks).decoder(fused, lambda: (weights.note,))


def dummy_decoder(
    directory: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
    make: MakeBackend = backend_for,
    drafts: bool = False,
    drawn: torch.dtype | None = None,
    ranks: Ranks = ALONE,
) -> HybridDecoder:
    """A decoder with random weights of the shape that `directory`'s config.json names, in FP8 where that says so. Raises ConfigError.

    `drawn`: the type that matrices are made in where it is another than `dtype`, so that two decoders of different types have
    the same values. `ranks`: of several, this one's part of the same weights.
    """
    config = _config(directory, drafts)
    where, chosen = torch.device(device), dtype or DTYPES[config.dtype]
    own, fused = config.shard(ranks.count), frozenset(names.layer_prefixes(config.shape))
    backend, expected = make(own, chosen, where, ranks), names.expected(config.shape, fused)
    cuts = _cuts(expected, config, ranks)
    held, centred = _holds(backend, config), config.shape.architecture.centred
    weights = DummyWeights(expected, drawn or chosen, where, seed, config.fp8, held, cuts, centred)
    return _Loader(own, weights, chosen, where, backend, ranks).decoder(fused)


def _cuts(expected: Iterable[str], config: HybridConfig, ranks: Ranks) -> dict[str, Cut]:
    """This rank's part of those tensors of which it does not hold all."""
    found = {name: share(name, config.shape, ranks.number, ranks.count) for name in expected}
    return {name: cut for name, cut in found.items() if cut is not None}


def _holds(backend: Backend, config: HybridConfig) -> bool:
    """Whether the backend multiplies FP8 matrices of this model as they are stored."""
    fp8, widest = config.fp8, config.shape.hidden
    return fp8 is not None and backend.holds(fp8.rows, fp8.columns_in(widest))


def _config(directory: Path, drafts: bool) -> HybridConfig:
    config = HybridConfig.from_file(directory)
    return replace(config, shape=config.shape.drafting()) if drafts else config


@dataclass(frozen=True, slots=True)
class _Loader:
    """Builds the decoder of one rank: `config` has that rank's sizes, and `weights` hands out that rank's parts of tensors."""

    config: HybridConfig
    weights: Weights
    dtype: torch.dtype
    device: torch.device
    backend: Backend
    ranks: Ranks

    def decoder(self, fused: frozenset[str], notes: Callable[[], tuple[str, ...]] = tuple) -> HybridDecoder:
        """The decoder. `fused`: prefixes of the layers whose experts are stored as one tensor. `notes` is called once all is read."""
        embedding = self.weights.tensor(names.EMBEDDING).to(self.device, self.dtype)
        return HybridDecoder(
            self.config,
            embedding,
            tuple(self.layer(i, fused) for i in range(self.config.shape.layers)),
            self.norm(names.NORM),
            self._head(embedding),
            self.backend,
            self._drafter(fused) if self.config.shape.draft_layers else None,
            notes(),
        )

    def _head(self, embedding: Tensor) -> Linear:
        """The output head. Every rank holds the whole embedding but only its rows of the head; the last ranks, which have fewer, fill up
        with zero rows."""
        tied, vocab, ranks = self.config.shape.tied, self.config.shape.vocab, self.ranks
        if ranks is ALONE:
            return self.backend.tied(embedding) if tied else self.linear(names.HEAD)
        first, end = words(vocab, ranks.number, ranks.count)
        rows = embedding[first:end] if tied else unpacked(self.matrix(names.HEAD), self.dtype)
        if more := words(vocab, 0, ranks.count)[1] - (end - first):
            rows = torch.nn.functional.pad(rows, (0, 0, 0, more))
        return SideBySide(self.backend.linear(rows), ranks, vocab)

    def matrix(self, *parts: str) -> Matrix:
        """The named matrices stacked by rows, in FP8 or in the model's type."""
        found = [self.weights.matrix(name) for name in parts]
        return joined([m if isinstance(m, Scaled) else m.to(self.device, self.dtype) for m in found], self.dtype)

    def narrow_behind(self, wide: Matrix, narrow: Matrix) -> Linear:
        """Two matrices stacked by rows. Where only `wide` is in FP8 (packs leave narrow matrices alone), `narrow` is kept beside it in the
        model's type, since stacking them would unpack `wide`."""
        if isinstance(wide, Scaled) and not isinstance(narrow, Scaled):
            return self.backend.linear(wide, narrow)
        return self.backend.linear(joined([wide, narrow], self.dtype))

    def linear(self, *parts: str) -> Linear:
        """The named matrices, stacked by rows."""
        return self.backend.linear(self.matrix(*parts))

    def float32(self, name: str) -> Tensor:
        return self.weights.tensor(name).to(self.device, torch.float32)

    def norm(self, name: str) -> Norm:
        """A norm with its whole weight: checkpoints of zero-centred norms store the weight less 1."""
        return Norm(self.norm_weight(name), self.config.eps)

    def norm_weight(self, name: str) -> Tensor:
        stored = self.float32(name)
        return stored + 1.0 if self.config.shape.architecture.centred else stored

    def layer(self, index: int, fused: frozenset[str]) -> Layer:
        prefix, shape = names.layer_prefix(index), self.config.shape
        full = shape.layer_types[index] == "full_attention"
        order = shape.layer_types[:index].count(shape.layer_types[index])
        attention = self._attention if shape.latent is None else self._latent_attention
        mixer: Half = attention(prefix, order) if full else self._delta_net(prefix, order)
        return self._layer(prefix, shape.layer_types[index], mixer, shape.expert_layers[index], prefix in fused)

    def _layer(self, prefix: str, kind: str, mixer: Half, experts: bool, fused: bool) -> Layer:
        shape = self.config.shape
        of_mixer, of_mlp = (self.norm(f"{prefix}{name}.weight") for name in names.norms(shape, kind))
        mlp: Half = self._experts(prefix, fused) if experts else self._mlp(f"{prefix}mlp.")
        if shape.architecture.norm_after and kind == "full_attention":
            mixer, mlp = NormedAfter(mixer, of_mixer), NormedAfter(mlp, of_mlp)
        return Layer(of_mixer, mixer, of_mlp, mlp)

    def _drafter(self, fused: frozenset[str]) -> Drafter:
        own, prefix, shape = names.DRAFTS, names.DRAFT_LAYER, self.config.shape
        attention = self._attention(prefix, shape.attention_layers)
        layer = self._layer(prefix, "full_attention", attention, any(shape.expert_layers), prefix in fused)
        return Drafter(
            join=self.linear(f"{own}fc.weight"),
            embedding_norm=self.norm(f"{own}pre_fc_norm_embedding.weight"),
            hidden_norm=self.norm(f"{own}pre_fc_norm_hidden.weight"),
            mixer_norm=layer.mixer_norm,
            attention=attention,
            mlp_norm=layer.mlp_norm,
            mlp=layer.mlp,
            norm=self.norm(f"{own}norm.weight"),
        )

    def _attention(self, prefix: str, order: int) -> Attention:
        s, own = self.config.shape, f"{prefix}self_attn."
        inner, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        into, qk_norm = self.matrix(*(f"{own}{name}_proj.weight" for name in "qkv")), None
        if s.architecture.gated:
            # of queries and gates each head's are stored together: query, then gate
            rows = torch.arange(2 * (inner + kv), device=self.device)
            query, gate = rows[: 2 * inner].view(s.heads, 2, s.head_dim).unbind(1)
            into = taken(into, torch.cat((query.flatten(), rows[2 * inner :], gate.flatten())))
        if s.architecture.qk_norm:
            q_norm, k_norm = (self.norm_weight(f"{own}{name}_norm.weight") for name in "qk")
            whole = s.architecture.qk_norm_whole
            each = (s.heads, s.head_dim), (s.kv_heads, s.head_dim)
            weight = torch.cat(
                [y.view(n, d) if whole else y.expand(n, d) for y, (n, d) in zip((q_norm, k_norm), each, strict=True)]
            )
            qk_norm = Norm(weight, self.config.eps)
        return Attention(
            index=order,
            heads=s.heads,
            kv_heads=s.kv_heads,
            head_dim=s.head_dim,
            gated=s.architecture.gated,
            into=self.backend.linear(into),
            qk_norm=qk_norm,
            whole=s.architecture.qk_norm_whole,
            out=self.linear(f"{own}o_proj.weight"),
        )

    def _latent_attention(self, prefix: str, order: int) -> Attention:
        s, own, sizes = self.config.shape, f"{prefix}self_attn.", self.config.shape.latent
        assert sizes is not None, "others keep keys and values"
        both = unpacked(self.matrix(f"{own}kv_b_proj.weight"), self.dtype).view(
            s.heads, sizes.own + sizes.value, sizes.rank
        )
        keys, values = (part.contiguous() for part in both.split_with_sizes((sizes.own, sizes.value), 1))
        return Attention(
            index=order,
            heads=s.heads,
            kv_heads=1,
            head_dim=sizes.width,
            gated=False,
            into=self.linear(f"{own}q_proj.weight", f"{own}kv_a_proj_with_mqa.weight"),
            qk_norm=None,
            whole=False,
            out=self.linear(f"{own}o_proj.weight"),
            latent=Latent(Norm(self.norm_weight(f"{own}kv_a_layernorm.weight"), LATENT_EPS), keys, values),
        )

    def _delta_net(self, prefix: str, order: int) -> DeltaNet:
        s, stored = self.config.shape, self.config.shape.architecture.recurrence
        own = f"{prefix}{stored.prefix}"
        wide, narrow = (
            self.matrix(*(f"{own}{name}.weight" for name in parts)) for parts in (stored.wide, stored.narrow)
        )
        if stored.by_key_head:
            rows = torch.arange(max(wide.shape[0], narrow.shape[0]), device=self.device)
            wide, narrow = (
                taken(wide, by_kind(rows[: wide.shape[0]], s)),
                taken(narrow, by_kind_ba(rows[: narrow.shape[0]], s)),
            )
        conv = torch.cat([self.float32(f"{own}{name}.weight") for name in stored.convs])
        return DeltaNet(
            index=order,
            key_heads=s.key_heads,
            key_dim=s.key_dim,
            value_heads=s.value_heads,
            value_dim=s.value_dim,
            into=self.narrow_behind(wide, narrow),
            conv=conv.squeeze(1).t().contiguous(),
            rate=self.float32(f"{own}A_log").flatten().exp().neg(),
            dt_bias=self.float32(f"{own}dt_bias"),
            norm=Norm(self.float32(f"{own}{stored.norm}.weight"), stored.eps or self.config.eps),
            beta=stored.largest_beta,
            out=self.linear(f"{own}{stored.out}.weight"),
            low_rank=None
            if stored.low_rank is None
            else LowRank(*(self.linear(f"{own}{y}.weight") for y in stored.low_rank)),
            sigmoid=stored.gate == "sigmoid",
        )

    def _mlp(self, prefix: str) -> DenseMlp:
        gate_up = self.linear(f"{prefix}gate_proj.weight", f"{prefix}up_proj.weight")
        return DenseMlp(gate_up, self.linear(f"{prefix}down_proj.weight"))

    def _experts(self, prefix: str, fused: bool) -> Experts:
        has_shared, stored = self.config.shape.architecture.shared_expert, self.config.shape.architecture.mixture
        own, shared = f"{prefix}{stored.prefix}", f"{prefix}{stored.prefix}{stored.shared}."
        gated = has_shared and stored.gated
        router = self.linear(f"{own}gate.weight", *([f"{own}{stored.shared}_gate.weight"] if gated else []))
        matrices: list[Matrix] = [*(self._fused_experts(own) if fused else self._single_experts(own))]
        if has_shared:
            matrices.append(self.matrix(f"{shared}gate_proj.weight", f"{shared}up_proj.weight"))
            matrices.append(self.matrix(f"{shared}down_proj.weight"))
        if not alike(matrices):
            # one kernel reads all of them, so they are of one form
            matrices = [unpacked(matrix, self.dtype) for matrix in matrices]
        gate_up, down, *rest = matrices
        return Experts(
            top=self.config.shape.experts_per_token,
            normed=self.config.norm_topk,
            router=router,
            gate_up=self.backend.stack(gate_up),
            down=self.backend.stack(down),
            shared=DenseMlp(*map(self.backend.linear, rest)) if has_shared else None,
            gated=gated,
            bias=self.float32(f"{own}{names.BIAS}") if stored.biased else None,
            scale=self.config.expert_scale,
        )

    def _fused_experts(self, own: str) -> tuple[Matrix, Matrix]:
        return self.matrix(f"{own}experts.gate_up_proj"), self.matrix(f"{own}experts.down_proj")

    def _single_experts(self, own: str) -> tuple[Matrix, Matrix]:
        """One expert at a time: all of them twice would not fit beside the rest."""
        count, made = self.config.shape.experts, None
        gate, up, last = self.config.shape.architecture.mixture.matrices
        for expert in range(count):
            one = f"{own}experts.{expert}."
            gate_up = self.matrix(f"{one}{gate}.weight", f"{one}{up}.weight")
            down = self.matrix(f"{one}{last}.weight")
            made = made or (stack_like(gate_up, count), stack_like(down, count))
            made = put(made[0], expert, gate_up, self.dtype), put(made[1], expert, down, self.dtype)
        assert made is not None, "a mixture has experts"
        return made


def by_kind(rows: Tensor, s: ModelShape) -> Tensor:
    """Qwen3-Next stores, for each key head, its query, key, values and gates; returns the rows with all of each, in that order."""
    values = s.value_heads // s.key_heads * s.value_dim
    parts = rows.view(s.key_heads, -1).split_with_sizes((s.key_dim, s.key_dim, values, values), 1)
    return torch.cat([part.flatten() for part in parts])


def by_kind_ba(rows: Tensor, s: ModelShape) -> Tensor:
    """The same for b and a."""
    return torch.cat([part.flatten() for part in rows.view(s.key_heads, -1).chunk(2, 1)])
