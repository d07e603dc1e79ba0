"""OLMo Hybrid: what the common tests of architectures do not see. Splits up to 256 tokens, rotary positions, every tier, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.base.shapes import ModelShape  # noqa: E402
from stepwell.cache.moves import Tier  # noqa: E402
from stepwell.model.config import HybridConfig  # noqa: E402
from stepwell.model.loading import load_decoder  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from tests.engine.disk import VOCAB, Engine, sources  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.engine.test_disk_tier import to_host  # noqa: E402

TOKENS = np.random.default_rng(7).integers(3, VOCAB, 270).astype(np.int32)
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return write_checkpoint(tmp_path_factory.mktemp("olmo"), arch="olmo_hybrid", hidden=64, layers=4, vocab=VOCAB)


def changed(model: Path, target: Path, **fields: Any) -> Path:
    """The same weights with other fields in config.json; None leaves one out."""
    target.mkdir()
    for file in model.iterdir():
        (target / file.name).symlink_to(file)
    config = json.loads((model / "config.json").read_text()) | fields
    (target / "config.json").unlink()
    (target / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return target


def reference(model: Path) -> Any:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    with torch.inference_mode():
        return loaded(torch.from_numpy(TOKENS.astype(np.int64))[None]).logits[0].clone()


@pytest.mark.parametrize("theta", [None, 10_000.0])
def test_prompts_split_around_pages_chunks_and_records_equal_transformers(
    model: Path, tmp_path: Path, theta: float | None
) -> None:
    rope = {"rope_type": "default", "rope_theta": theta}
    directory = model if theta is None else changed(model, tmp_path / "rotated", rope_parameters=rope)
    expected, decoder = reference(directory), load_decoder(directory)
    assert (decoder.config.rotary_dim > 0) == (theta is not None)
    splits = [grid + off for grid in (16, 64, 256) for off in (-2, -1, 0, 1, 2)]
    for split in splits if theta is None else (17, 256):
        rig = Rig(decoder, pages=17, slots=1, seed=split)
        pages = rig.table(len(TOKENS))
        first = rig.last(work(TOKENS, pages, 0, split))
        second = rig.last(work(TOKENS, pages, split, split + 1))
        rest = rig.last(work(TOKENS, pages, split + 1, len(TOKENS)))
        for logits, at in ((first, split - 1), (second, split), (rest, len(TOKENS) - 1)):
            assert float((logits - expected[at]).abs().max()) < TOLERANCE


def test_a_config_without_rotary_positions_rotates_nothing(model: Path, tmp_path: Path) -> None:
    for i, rope in enumerate((None, {"rope_type": "default"})):
        config = HybridConfig.from_file(changed(model, tmp_path / str(i), rope_parameters=rope))
        assert config.rotary_dim == 0


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


def test_what_is_not_served_is_named(model: Path, tmp_path: Path) -> None:
    shape = HybridConfig.from_file(model).shape
    with pytest.raises(ConfigError, match="--tensor-parallel-size 2: a olmo_hybrid norms over all heads at once"):
        shape.shard(2)
    assert shape.shard(1) == shape
    with pytest.raises(ConfigError, match="linear_allow_neg_eigval = False: only True"):
        HybridConfig.from_file(changed(model, tmp_path / "positive", linear_allow_neg_eigval=False))
    config = json.loads((model / "config.json").read_text())
    for name in ("linear_num_key_heads", "linear_value_head_dim"):
        with pytest.raises(ConfigError, match=name):
            ModelShape.from_config({k: v for k, v in config.items() if k != name})
