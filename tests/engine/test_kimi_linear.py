"""Kimi Linear: what the common tests of architectures do not see. Splits at every offset, what a page holds, every tier, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.base.shapes import Latent, ModelShape  # noqa: E402
from stepwell.cache.moves import Tier  # noqa: E402
from stepwell.model.config import HybridConfig  # noqa: E402
from stepwell.model.loading import dummy_decoder, load_decoder  # noqa: E402
from stepwell.ops.experts import route_by_bias  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from tests.engine.disk import VOCAB, Engine, sources  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.engine.test_disk_tier import to_host  # noqa: E402

TOKENS = np.random.default_rng(7).integers(3, VOCAB, 150).astype(np.int32)
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    target = tmp_path_factory.mktemp("kimi")
    return write_checkpoint(target, arch="kimi_linear", hidden=64, layers=4, vocab=VOCAB, experts=4)


def config_of(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((model / "config.json").read_text())
    return found


def test_prompts_split_at_every_offset_around_pages_and_chunks_equal_transformers(model: Path) -> None:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = loaded(torch.from_numpy(TOKENS.astype(np.int64))[None]).logits[0].clone()
    decoder = load_decoder(model)
    for split in (*range(12, 21), *range(60, 69), 127, 128, 129):
        rig = Rig(decoder, pages=10, slots=1, seed=split)
        pages = rig.table(len(TOKENS))
        first = rig.last(work(TOKENS, pages, 0, split))
        second = rig.last(work(TOKENS, pages, split, split + 1))
        rest = rig.last(work(TOKENS, pages, split + 1, len(TOKENS)))
        for logits, at in ((first, split - 1), (second, split), (rest, len(TOKENS) - 1)):
            assert float((logits - expected[at]).abs().max()) < TOLERANCE


def test_a_wrong_state_or_latent_shows_in_the_next_logits(model: Path) -> None:
    decoder, seen = load_decoder(model), []
    for spoilt in ("nothing", "state", "latents"):
        rig = Rig(decoder, pages=10, slots=1)
        pages = rig.table(len(TOKENS))
        rig.run(work(TOKENS, pages, 0, 128))
        if spoilt == "state":
            rig.live.recurrent[:, 0] = 0
        if spoilt == "latents":
            rig.arena.rows[torch.from_numpy(pages.astype(np.int64))] = 0
        seen.append(rig.last(work(TOKENS, pages, 128, 129)))
    assert min(float((seen[0] - other).abs().max()) for other in seen[1:]) > 0.05


def test_a_page_holds_one_latent_a_token(model: Path) -> None:
    shape = HybridConfig.from_file(model).shape
    assert shape.latent == Latent(rank=32, shared=8, own=24, value=32)
    assert shape.kv_token_bytes(4) == 1 * (32 + 8) * 4
    rig = Rig(load_decoder(model), pages=3, slots=1)
    assert rig.arena.keys[0].shape == (4, 16, 1, 40) and rig.arena.values[0].shape == (4, 16, 1, 32)
    assert rig.arena.values[0].data_ptr() == rig.arena.keys[0].data_ptr()


def test_the_published_model_keeps_what_its_report_says() -> None:
    """48 billion parameters of which 3 are active; 27 layers, 20 of them recurrent. A state has 32 heads of 128 by 128."""
    shape = ModelShape.from_config(PUBLISHED)
    assert (shape.linear_layers, shape.attention_layers) == (20, 7)
    assert 47e9 < shape.parameters() < 50e9 and 2.5e9 < shape.parameters(active=True) < 3.8e9
    assert shape.kv_token_bytes() == 7 * 576 * 2
    assert shape.image_bytes() == 20 * (32 * 128 * 128 * 4 + 3 * 3 * 4096 * 2)


def test_every_tier_gives_the_cold_answer(model: Path, tmp_path: Path) -> None:
    with Engine.of(model, tmp_path / "cache") as engine:
        seen = [engine.ask(), engine.ask()]
        engine.settle()
        to_host(engine)
        engine.forget(Tier.DEVICE)
        seen.append(engine.ask())
        engine.forget(Tier.DEVICE, Tier.HOST)
        seen.append(engine.ask())
        engine.settle()
    with Engine.of(model, tmp_path / "cache") as engine:
        seen.append(engine.ask())
        engine.settle()
    routes = [(0, 0, 0, 150), (128, 0, 0, 22), (0, 128, 0, 22), (0, 0, 128, 22), (0, 0, 128, 22)]
    assert [sources(one.outcome) for one in seen] == routes
    assert len({one.token_ids for one in seen}) == 1


def test_experts_are_chosen_with_their_bias_and_weighted_without_it() -> None:
    logits, bias = torch.tensor([[2.0, 0.0, -2.0, 1.0]]), torch.tensor([-1.0, 0.5, 0.9, 0.0])
    weights, chosen = route_by_bias(logits, bias, 2, True, 2.5)
    chances = logits[0].sigmoid()
    assert set(chosen[0].tolist()) == {1, 2}
    assert torch.allclose(weights[0], 2.5 * chances[chosen[0]] / (chances[1] + chances[2]))


def test_random_weights_compute(model: Path) -> None:
    decoder = dummy_decoder(model)
    rig = Rig(decoder, pages=10, slots=1)
    assert rig.last(work(TOKENS, rig.table(len(TOKENS)), 0, len(TOKENS))).isfinite().all()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"mla_use_nope": False}, "mla_use_nope = False"),
        ({"q_lora_rank": 64}, "q_lora_rank = 64"),
        ({"num_expert_group": 8}, "num_expert_group = 8"),
        ({"moe_router_activation_func": "softmax"}, "moe_router_activation_func"),
        ({"linear_attn_config": None}, "needs linear_attn_config"),
        ({"first_k_dense_replace": "1"}, "needs first_k_dense_replace"),
        ({"kv_lora_rank": None}, "needs kv_lora_rank"),
        ({"num_hidden_layers": 5}, "each of its 5 layers"),
    ],
)
def test_what_is_not_served_is_named(model: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        HybridConfig.from_dict(config_of(model) | changes)


@pytest.mark.parametrize(
    "own", [{"gate_lower_bound": -5.0}, {"kda_layers": [1, 2, 2]}, {"kda_layers": [1, 2, "3"]}, {"num_heads": 0}]
)
def test_a_recurrence_that_is_not_served_is_named(model: Path, own: dict[str, Any]) -> None:
    config = config_of(model)
    with pytest.raises(ConfigError, match="|".join(("linear_num_key_heads", *own))):
        HybridConfig.from_dict(config | {"linear_attn_config": config["linear_attn_config"] | own})


def test_it_is_served_without_scales_of_latents(model: Path) -> None:
    with (
        pytest.raises(ConfigError, match="--calculate-kv-scales"),
        Engine.of(model, None, kv_cache_dtype="fp8", calculate_kv_scales=True),
    ):
        pass
    with Engine.of(model, None, kv_cache_dtype="fp8") as engine:
        assert engine.ask().token_ids == engine.ask().token_ids


PUBLISHED = {
    "model_type": "kimi_linear", "vocab_size": 163840, "hidden_size": 2304, "num_hidden_layers": 27, "num_attention_heads": 32,
    "num_key_value_heads": 32, "intermediate_size": 9216, "head_dim": 72, "model_max_length": 1048576, "rms_norm_eps": 1e-05,
    "linear_attn_config": {
        "kda_layers": [1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26],
        "full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32, "head_dim": 128, "short_conv_kernel_size": 4,
    },
    "num_experts": 256, "moe_intermediate_size": 1024, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "mla_use_nope": True, "num_experts_per_token": 8, "num_shared_experts": 1,
    "moe_router_activation_func": "sigmoid", "moe_renormalize": True, "routed_scaling_factor": 2.446, "first_k_dense_replace": 1,
    "moe_layer_freq": 1, "use_grouped_topk": True, "num_expert_group": 1, "topk_group": 1, "tie_word_embeddings": False,
    "num_nextn_predict_layers": 0, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
}  # fmt: skip
