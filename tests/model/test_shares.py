"""What tensor-parallel ranks hold of released models: from their config.json alone, and computed at a depth of two layers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.base.shapes import ModelShape  # noqa: E402
from stepwell.model import names  # noqa: E402
from stepwell.model.cuts import Cut  # noqa: E402
from stepwell.model.loading import dummy_decoder  # noqa: E402
from stepwell.model.shares import share  # noqa: E402
from tests.amounts import long  # noqa: E402
from tests.base.test_shapes import MOE_35B, MOE_397B, NEXT_80B  # noqa: E402
from tests.model.ranks import on_ranks  # noqa: E402
from tests.model.test_ranks import answer  # noqa: E402

RELEASED = {"Qwen3-Next-80B-A3B": NEXT_80B, "Qwen3.5-35B-A3B": MOE_35B, "Qwen3.5-397B-A17B": MOE_397B}
RANKS = (2, 4, 8)
BLOCK = 128
"""Rows and columns of a block of FP8 with one scale."""


def shallow(config: dict[str, Any]) -> dict[str, Any]:
    """The same with a few layers and experts: the others are alike."""
    few = {"num_hidden_layers": 4, "num_experts": 4, "num_experts_per_tok": 2}
    return {**config, "text_config": {**config["text_config"], **few}} if "text_config" in config else {**config, **few}


def tensors(shape: ModelShape) -> dict[str, tuple[int, ...]]:
    fused = frozenset(names.layer_prefixes(shape)[:1])  # one layer's experts in one tensor, the others' each in its own
    return names.expected(shape, fused)


def holds(name: str, shape: ModelShape, ranks: int, size: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The size of each rank's part of a tensor, whose parts are checked to be the whole, each of it once or on neighbours."""
    cuts = [share(name, shape, rank, ranks) for rank in range(ranks)]
    if cuts[0] is None:
        assert cuts == [None] * ranks
        return [size] * ranks
    held = np.zeros(size[cuts[0].axis], np.int64)
    for cut in cuts:
        assert cut is not None and cut.axis == cuts[0].axis
        for start, end in cut.spans:
            held[start:end] += 1
    twice = max(1, ranks // shape.kv_heads) if name.endswith(("k_proj.weight", "v_proj.weight")) else 1
    assert (held == twice).all(), name
    return [cut.shape(size) for cut in cuts if cut is not None]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", RELEASED)
def test_parts_of_released_models_add_up_to_the_whole_and_fit_what_each_rank_is_built_as(name: str, ranks: int) -> None:
    shape = ModelShape.from_config(shallow(RELEASED[name])).drafting()
    own = tensors(shape.shard(ranks))
    for tensor, size in tensors(shape).items():
        parts = holds(tensor, shape, ranks, size)
        if tensor not in (names.HEAD, names.EMBEDDING):
            assert parts == [own[tensor]] * ranks, tensor


SIZES = st.sampled_from([1, 2, 3, 4])


@given(
    config=st.sampled_from(["qwen3_5_text", "qwen3_next", "qwen3_5_moe_text", "qwen3", "qwen3_moe", "llama"]),
    ranks=st.sampled_from([2, 3, 4, 8]),
    kv=SIZES,
    a=SIZES,
    b=SIZES,
    vocab=st.integers(8, 70),
)
def test_parts_add_up_to_the_whole_of_any_architecture(
    config: str, ranks: int, kv: int, a: int, b: int, vocab: int
) -> None:
    heads = ranks * kv * a
    sizes = {
        "model_type": config, "vocab_size": vocab, "hidden_size": 8 * b, "num_hidden_layers": 4,
        "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": 4 * a,
        "linear_num_key_heads": ranks * a, "linear_num_value_heads": ranks * a * b,
        "linear_key_head_dim": 4, "linear_value_head_dim": 2 * b, "intermediate_size": 8 * ranks,
        "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 4 * ranks,
        "shared_expert_intermediate_size": 2 * ranks,
    }  # fmt: skip
    shape = ModelShape.from_config(sizes)
    try:
        own = tensors(shape.shard(ranks))
    except ConfigError as error:
        assert "num_key_value_heads" in str(error) and kv % ranks and ranks % kv
        return
    for tensor, size in tensors(shape).items():
        parts = holds(tensor, shape, ranks, size)
        if tensor not in (names.HEAD, names.EMBEDDING):
            assert parts == [own[tensor]] * ranks, tensor


@pytest.mark.parametrize("ranks", RANKS)
def test_heads_stay_whole_and_key_value_heads_are_repeated_beyond_two(ranks: int) -> None:
    shape = ModelShape.from_config(NEXT_80B)
    grouped = shape.value_heads // shape.key_heads
    units = {
        "self_attn.q_proj.weight": 2 * shape.head_dim,  # a head's queries, then its gates
        "self_attn.o_proj.weight": shape.head_dim,
        "linear_attn.in_proj_qkvz.weight": 2 * shape.key_dim + 2 * grouped * shape.value_dim,
        "linear_attn.in_proj_ba.weight": 2 * grouped,
        "linear_attn.conv1d.weight": shape.key_dim,
        "linear_attn.out_proj.weight": grouped * shape.value_dim,
    }
    for rank in range(ranks):
        for tensor, unit in units.items():
            cut = share(f"model.layers.0.{tensor}", shape, rank, ranks)
            assert cut is not None and not any(start % unit or end % unit for start, end in cut.spans), tensor
        keys = share("model.layers.3.self_attn.k_proj.weight", shape, rank, ranks)
        head = rank * 2 // ranks
        assert keys == Cut(0, ((256 * head, 256 * head + 256),))


def test_experts_are_cut_by_width_and_in_fp8_between_blocks_alone() -> None:
    shape = ModelShape.from_config(NEXT_80B)
    for ranks, whole in ((2, True), (4, True), (8, False)):
        for name in ("gate_proj", "up_proj", "down_proj"):
            tensor = f"model.layers.0.mlp.experts.7.{name}.weight"
            cut = share(tensor, shape, ranks - 1, ranks)
            assert cut is not None and cut.count == 512 // ranks
            assert (cut.blocks(BLOCK, 512) is not None) == whole


@pytest.mark.parametrize(("ranks", "kv", "gib"), [(1, 24_576, 148), (2, 12_288, 75), (4, 12_288, 38), (8, 12_288, 20)])
def test_memory_of_a_rank(ranks: int, kv: int, gib: int) -> None:
    """Bytes of KV a token: two heads, so two ranks halve them and more do not. Weights in bfloat16, embedding and head whole."""
    shape = ModelShape.from_config(NEXT_80B)
    own = shape.shard(ranks)
    assert own.kv_token_bytes() == kv
    assert own.image_bytes() * ranks == shape.image_bytes()
    assert round(2 * own.parameters() / 2**30) == gib


@pytest.mark.parametrize("ranks", [long(2), long(4), long(8)])
def test_two_layers_of_the_released_shape_answer_on_ranks_as_on_one(ranks: int, tmp_path: Path) -> None:
    """Heads, widths and the hidden size are the released ones; experts and words are few."""
    torch.set_num_threads(1)
    few: dict[str, Any] = {
        **NEXT_80B, "num_hidden_layers": 2, "full_attention_interval": 2, "num_experts": 12, "vocab_size": 516,
        "architectures": ["Qwen3NextForCausalLM"], "dtype": "float32", "hidden_act": "silu", "rms_norm_eps": 1e-6,
        "partial_rotary_factor": 0.25, "rope_theta": 1e7, "norm_topk_prob": True, "eos_token_id": 2,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(few))
    ((alone, logits),) = answer(lambda own: dummy_decoder(tmp_path, ranks=own), 1)
    for tokens, last in answer(lambda own: dummy_decoder(tmp_path, ranks=own), ranks):
        assert tokens == alone
        assert torch.allclose(last, logits, atol=2e-4 * float(logits.abs().max()))


def test_fp8_experts_of_the_released_shape_are_refused_on_eight_ranks(tmp_path: Path) -> None:
    stored = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [BLOCK, BLOCK]}
    small = {
        **NEXT_80B,
        "vocab_size": 512,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_experts": 2,
        "num_experts_per_tok": 1,
    }
    (tmp_path / "config.json").write_text(json.dumps({**small, "quantization_config": stored}))
    with pytest.raises(ConfigError, match=r"--tensor-parallel-size cuts .*within blocks of 128 × 128.*fewer ranks"):
        on_ranks(8, lambda own: dummy_decoder(tmp_path, ranks=own))
