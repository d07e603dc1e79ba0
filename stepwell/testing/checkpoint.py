"""Writes a small checkpoint in Hugging Face format, for demos, tests and benchmarks.

The weights are random, yet not just anything: with the usual initialisation (std 0.02) the recurrent states are about
1e-4 and a wrong state changes no answer. Here every projection keeps unit variance and the states reach far back, so
that a missing, stale or shifted state shows in the very next logits.

    python -m stepwell.testing.checkpoint /tmp/tiny --arch qwen3_5
"""

from __future__ import annotations

import argparse
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from stepwell.base.architectures import ARCHITECTURES, Architecture
from stepwell.testing.kimi import Kimi
from stepwell.testing.tokenizer import readable, train_tokenizer, write_tokenizer

Arch: TypeAlias = Literal[
    "qwen3_5", "qwen3_5_moe", "qwen3_next", "qwen3", "qwen3_moe", "llama", "olmo_hybrid", "kimi_linear"
]
Floats: TypeAlias = npt.NDArray[np.float32]

_NAMES = {
    "qwen3_5": ("qwen3_5_text", "Qwen3_5ForCausalLM"),
    "qwen3_5_moe": ("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM"),
    "qwen3_next": ("qwen3_next", "Qwen3NextForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3_moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    "llama": ("llama", "LlamaForCausalLM"),
    "olmo_hybrid": ("olmo_hybrid", "OlmoHybridForCausalLM"),
    "kimi_linear": ("kimi_linear", "KimiLinearForCausalLM"),
}
_FULL_EVERY = 4  # one layer in four is full attention in hybrids, as in the released models


@dataclass(frozen=True, slots=True)
class _Sizes:
    """Every width of the model. The linear heads are wide so that an image outweighs many pages, as in large models."""

    arch: Arch
    hidden: int
    layers: int
    vocab: int
    experts: int
    head_dim: int = 64
    kv_heads: int = 2
    linear_dim: int = 64
    linear_key_heads: int = 4
    linear_value_heads: int = 8
    kernel: int = 4
    mtp: bool = False

    @property
    def model(self) -> Architecture:
        return ARCHITECTURES[_NAMES[self.arch][0]]

    @property
    def heads(self) -> int:
        return max(self.kv_heads, self.hidden // self.head_dim)

    @property
    def intermediate(self) -> int:
        return 2 * self.hidden

    @property
    def expert_width(self) -> int:
        return self.hidden // 2

    @property
    def keys(self) -> int:
        return self.linear_key_heads * self.linear_dim

    @property
    def values(self) -> int:
        return self.linear_value_heads * self.linear_dim

    @property
    def kimi(self) -> Kimi:
        heads, dim = self.linear_value_heads // 2, self.linear_dim // 2
        return Kimi(self.hidden, self.heads, heads, dim, self.kernel, self.experts, self.expert_width)

    def full(self, layer: int) -> bool:
        return not self.model.recurrent or (layer + 1) % _FULL_EVERY == 0


def write_checkpoint(
    path: str | Path,
    *,
    arch: Arch = "qwen3_5",
    seed: int = 0,
    hidden: int = 256,
    layers: int = 8,
    vocab: int = 2048,
    experts: int = 0,
    max_positions: int = 32_768,
    mtp: bool = False,
) -> Path:
    """Write config.json, generation_config.json, model.safetensors and a tokenizer into `path`; returns it.

    arch       "qwen3_next" is dense unless `experts`; those on "moe" and "kimi_linear" need `experts`, and others have none
    hidden     width of the residual stream, a multiple of 64
    layers     of hybrids a multiple of 4: three recurrent layers, then one of full attention
    experts    experts of each layer, of a Kimi Linear's but the first, two of which serve a token; 0 is dense
    mtp        with a layer for multi-token prediction, as random as the rest: its drafts are guesses

    float32; 7.9 M parameters (32 MB) at the defaults. The same arguments give the same bytes in every file. Needs the
    packages `safetensors` and `tokenizers`. Raises ValueError where the sizes cannot work.
    """
    _check(arch, hidden, layers, experts)
    sizes = _Sizes(arch=arch, hidden=hidden, layers=layers, vocab=vocab, experts=experts, mtp=mtp)
    target = Path(path)
    target.mkdir(parents=True, exist_ok=True)
    tokenizer = train_tokenizer(vocab)
    write_tokenizer(target, tokenizer, max_positions)
    _write_json(target / "config.json", _config(sizes, max_positions))
    _write_json(target / "generation_config.json", {"do_sample": False, "eos_token_id": 2, "pad_token_id": 0})
    _write_weights(target / "model.safetensors", sizes, seed, readable(tokenizer))
    return target


def _check(arch: str, hidden: int, layers: int, experts: int) -> None:
    if arch not in get_args(Arch):
        raise ValueError(f"arch must be one of {', '.join(get_args(Arch))}, not {arch!r}")
    if hidden < 64 or hidden % 64:
        raise ValueError(f"hidden must be a multiple of 64, not {hidden}")
    if layers < 1 or (ARCHITECTURES[_NAMES[arch][0]].recurrent and layers % _FULL_EVERY):
        raise ValueError(f"layers must be a multiple of {_FULL_EVERY}, not {layers}")
    if experts == 1 or experts < 0:
        raise ValueError(f"experts must be 0 (dense) or at least 2, not {experts}")
    if arch.endswith(("_moe", "kimi_linear")) and not experts:
        raise ValueError(f"{arch} needs experts: change one of arch and experts")
    if experts and ARCHITECTURES[_NAMES[arch][0]].experts == "none":
        raise ValueError(f"{arch} must have no experts: change one of arch and experts")


def _config(sizes: _Sizes, max_positions: int) -> dict[str, Any]:
    model_type, architecture = _NAMES[sizes.arch]
    layers = range(sizes.layers)
    shared = {"partial_rotary_factor": sizes.model.rotary_share} if sizes.model.rotary_share < 1 else {}
    theta = None if sizes.model.rotary_optional else 1_000_000.0
    config: dict[str, Any] = {
        "architectures": [architecture],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "dtype": "float32",
        "eos_token_id": 2,
        "head_dim": sizes.head_dim,
        "hidden_act": "silu",
        "hidden_size": sizes.hidden,
        "intermediate_size": sizes.intermediate,
        "max_position_embeddings": max_positions,
        **({"mtp_num_hidden_layers": 1} if sizes.mtp else {}),
        "model_type": model_type,
        "num_attention_heads": sizes.heads,
        "num_hidden_layers": sizes.layers,
        "num_key_value_heads": sizes.kv_heads,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {**shared, "rope_theta": theta, "rope_type": "default"},
        "tie_word_embeddings": False,
        "use_cache": True,
        "vocab_size": sizes.vocab,
    }
    if sizes.arch == "kimi_linear":
        full = [i for i in layers if sizes.full(i)]
        for name in ("max_position_embeddings", "rope_parameters"):
            del config[name]
        fields = sizes.kimi.fields(full, [i for i in layers if i not in full])
        return config | fields | {"model_max_length": max_positions}
    if sizes.model.recurrent:
        config |= {
            "layer_types": ["full_attention" if sizes.full(i) else "linear_attention" for i in layers],
            "linear_conv_kernel_dim": sizes.kernel,
            "linear_key_head_dim": sizes.linear_dim,
            "linear_num_key_heads": sizes.linear_key_heads,
            "linear_num_value_heads": sizes.linear_value_heads,
            "linear_value_head_dim": sizes.linear_dim,
        }
    if sizes.experts:
        config |= {
            "moe_intermediate_size": sizes.expert_width,
            "num_experts": sizes.experts,
            "num_experts_per_tok": 2,
        }
        config |= {"shared_expert_intermediate_size": sizes.expert_width} if sizes.model.shared_expert else {}
    if sizes.model.experts == "listed":
        dense = {"mlp_only_layers": [] if sizes.experts else list(layers), "num_experts": sizes.experts}
        config |= dense | {"decoder_sparse_step": 1, "norm_topk_prob": True}
    return config


def _shapes(sizes: _Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Name and shape of every tensor, as the released checkpoints have them."""
    h = sizes.hidden
    yield "model.embed_tokens.weight", (sizes.vocab, h)
    yield "model.norm.weight", (h,)
    yield "lm_head.weight", (sizes.vocab, h)
    for layer in range(sizes.layers):
        prefix = f"model.layers.{layer}."
        for name in sizes.model.norms if sizes.full(layer) else sizes.model.recurrence.norms:
            yield f"{prefix}{name}.weight", (h,)
        for name, shape in _halves(sizes, layer):
            yield prefix + name, shape
    if sizes.mtp:
        yield "mtp.fc.weight", (h, 2 * h)
        for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"):
            yield f"mtp.{name}.weight", (h,)
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"mtp.layers.0.{name}.weight", (h,)
        for name, shape in (*_attention(sizes), *_mlp(sizes)):
            yield f"mtp.layers.0.{name}", shape


def _halves(sizes: _Sizes, layer: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """What a layer has beside norms."""
    if sizes.arch == "kimi_linear":
        yield from sizes.kimi.attention() if sizes.full(layer) else sizes.kimi.delta()
        yield from sizes.kimi.mixture() if layer else _gated("mlp.", sizes.hidden, sizes.intermediate)
        return
    yield from _attention(sizes) if sizes.full(layer) else _linear_attention(sizes)
    yield from _mlp(sizes)


def _attention(sizes: _Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    h, d = sizes.hidden, sizes.head_dim
    # queries, and output gates where there are any
    yield "self_attn.q_proj.weight", ((2 if sizes.model.gated else 1) * sizes.heads * d, h)
    yield "self_attn.k_proj.weight", (sizes.kv_heads * d, h)
    yield "self_attn.v_proj.weight", (sizes.kv_heads * d, h)
    yield "self_attn.o_proj.weight", (h, sizes.heads * d)
    if sizes.model.qk_norm:
        whole = sizes.model.qk_norm_whole
        yield "self_attn.q_norm.weight", (sizes.heads * d if whole else d,)
        yield "self_attn.k_norm.weight", (sizes.kv_heads * d if whole else d,)


def _linear_attention(sizes: _Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    h, heads = sizes.hidden, sizes.linear_value_heads
    if sizes.arch == "olmo_hybrid":
        yield from _linear_attention_apart(sizes)
        return
    if sizes.arch == "qwen3_next":
        yield "linear_attn.in_proj_qkvz.weight", (2 * sizes.keys + 2 * sizes.values, h)
        yield "linear_attn.in_proj_ba.weight", (2 * heads, h)
    else:
        yield "linear_attn.in_proj_qkv.weight", (2 * sizes.keys + sizes.values, h)
        yield "linear_attn.in_proj_z.weight", (sizes.values, h)
        yield "linear_attn.in_proj_b.weight", (heads, h)
        yield "linear_attn.in_proj_a.weight", (heads, h)
    yield "linear_attn.conv1d.weight", (2 * sizes.keys + sizes.values, 1, sizes.kernel)
    yield "linear_attn.A_log", (heads,)
    yield "linear_attn.dt_bias", (heads,)
    yield "linear_attn.norm.weight", (sizes.linear_dim,)
    yield "linear_attn.out_proj.weight", (h, sizes.values)


def _linear_attention_apart(sizes: _Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    """With queries, keys, values and gates each in tensors of their own."""
    h, heads = sizes.hidden, sizes.linear_value_heads
    for name, width in (("q", sizes.keys), ("k", sizes.keys), ("v", sizes.values)):
        yield f"linear_attn.{name}_proj.weight", (width, h)
        yield f"linear_attn.{name}_conv1d.weight", (width, 1, sizes.kernel)
    yield "linear_attn.g_proj.weight", (sizes.values, h)
    yield "linear_attn.b_proj.weight", (heads, h)
    yield "linear_attn.a_proj.weight", (heads, h)
    yield "linear_attn.A_log", (heads,)
    yield "linear_attn.dt_bias", (heads,)
    yield "linear_attn.o_norm.weight", (sizes.linear_dim,)
    yield "linear_attn.o_proj.weight", (h, sizes.values)


def _mlp(sizes: _Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    h = sizes.hidden
    if not sizes.experts:
        yield from _gated("mlp.", h, sizes.intermediate)
        return
    yield "mlp.gate.weight", (sizes.experts, h)
    for expert in range(sizes.experts):
        yield from _gated(f"mlp.experts.{expert}.", h, sizes.expert_width)
    if sizes.model.shared_expert:
        yield from _gated("mlp.shared_expert.", h, sizes.expert_width)
        yield "mlp.shared_expert_gate.weight", (1, h)


def _gated(prefix: str, hidden: int, width: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield prefix + "gate_proj.weight", (width, hidden)
    yield prefix + "up_proj.weight", (width, hidden)
    yield prefix + "down_proj.weight", (hidden, width)


def _values(name: str, shape: tuple[int, ...], seed: int, centred: bool) -> Floats:
    """The values of one tensor; they depend on its name, its shape, the seed and on whether norms are centred at zero alone."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    normal: Floats = rng.standard_normal(shape, dtype=np.float32)
    if name.endswith("A_log"):
        decay = rng.permutation(np.geomspace(0.01, 1.0, normal.size))  # heads that remember 1 … 100 tokens
        return np.asarray(np.log(decay), dtype=np.float32).reshape(shape)
    if name.endswith(("dt_bias", "conv1d.weight", "embed_tokens.weight")):
        return np.float32(0.5) * normal
    if name.endswith("linear_attn.norm.weight"):
        return np.float32(1) + np.float32(0.1) * normal  # never centred at zero
    if name.endswith("e_score_correction_bias"):
        return np.float32(0.1) * normal
    if len(shape) == 1:
        return np.float32(0.1) * normal + np.float32(not centred)
    return normal / np.float32(np.sqrt(shape[-1]))


def _write_weights(path: Path, sizes: _Sizes, seed: int, spoken: list[int]) -> None:
    """`spoken` are the tokens that greedy decoding may choose; the rest have logit 0, far below the best."""
    from safetensors.numpy import save

    tensors = {name: _values(name, shape, seed, sizes.model.centred) for name, shape in _shapes(sizes)}
    silent = np.ones(sizes.vocab, dtype=bool)
    silent[spoken] = False
    tensors["lm_head.weight"][silent] = 0
    path.write_bytes(save(tensors, metadata={"format": "pt"}))


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(
        prog="python -m stepwell.testing.checkpoint", description="Write a small checkpoint."
    )
    parser.add_argument("path", help="directory to write into; made if missing")
    parser.add_argument("--arch", choices=get_args(Arch), default="qwen3_5")
    for name, default in (("seed", 0), ("hidden", 256), ("layers", 8), ("vocab", 2048), ("experts", 0)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--mtp", action="store_true", help="with a layer for multi-token prediction")
    parser.add_argument("--max-positions", type=int, default=32_768, help="longest context, default 32768")
    chosen = vars(parser.parse_args(arguments))
    try:
        print(write_checkpoint(chosen.pop("path"), **chosen))
    except ValueError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
