"""Rotary positions stretched to longer contexts against Transformers, on the same files; and in both backends alike."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from stepwell.model.config import HybridConfig  # noqa: E402
from stepwell.model.loading import load_decoder  # noqa: E402
from stepwell.model.torch_backend import TorchBackend  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.test_config import LLAMA3  # noqa: E402
from tests.model.test_loading import changed  # noqa: E402

TOKENS = np.random.default_rng(4).integers(3, 512, 150).astype(np.int32)
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "partial_rotary_factor": 0.5, "factor": 4.0}
ORIGINAL = {**YARN, "original_max_position_embeddings": 32}


@pytest.fixture(scope="module", params=["qwen3_5", "qwen3_next"])
def plain(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("plain")
    return write_checkpoint(folder, arch=request.param, hidden=64, layers=4, vocab=512, max_positions=64)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "rope",
    [
        ORIGINAL,
        {**ORIGINAL, "attention_factor": 1.3},
        {**ORIGINAL, "beta_fast": 8, "beta_slow": 2},
        {**ORIGINAL, "truncate": False, "mscale": 1.0, "mscale_all_dim": 0.5},
        {**ORIGINAL, "factor": 1.0},
    ],
)
def test_logits_equal_transformers(plain: Path, tmp_path: Path, rope: dict[str, Any]) -> None:
    equal_logits(changed(plain, tmp_path / "yarn", None, {"rope_parameters": rope}))


@pytest.mark.parametrize("factors", [{}, {"factor": 2.0, "low_freq_factor": 2.0}])
def test_logits_of_a_stretched_llama_equal_transformers(tmp_path: Path, factors: dict[str, float]) -> None:
    folder = write_checkpoint(tmp_path / "llama", arch="llama", hidden=64, layers=2, vocab=512, max_positions=256)
    equal_logits(
        changed(folder, tmp_path / "long", None, {"rope_parameters": {"rope_theta": 1e4, **LLAMA3, **factors}})
    )


def equal_logits(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        reference = model(torch.from_numpy(TOKENS.astype(np.int64))[None]).logits[0]
    rig = Rig(load_decoder(folder), pages=12, slots=1)
    pages = rig.table(150)
    found = {149: rig.last(work(TOKENS, pages, 0, 100), work(TOKENS, pages, 100, 149), work(TOKENS, pages, 149, 150))}
    assert all((logits - reference[at]).abs().max() < 1e-4 for at, logits in found.items())


def test_it_changes_what_is_computed(plain: Path, tmp_path: Path) -> None:
    folder = changed(plain, tmp_path / "yarn", None, {"rope_parameters": ORIGINAL})
    logits = []
    for one in (folder, changed(plain, tmp_path / "not", None, {"rope_parameters": {**YARN, "rope_type": "default"}})):
        rig = Rig(load_decoder(one), pages=12, slots=1)
        logits.append(rig.last(work(TOKENS, rig.table(150), 0, 150)))
    assert (logits[0] - logits[1]).abs().max() > 0.01


def test_the_context_is_as_long_as_it_is_stretched(plain: Path, tmp_path: Path) -> None:
    for rope, positions in ((ORIGINAL, 128), (YARN, 256), ({**ORIGINAL, "factor": 1.5}, 64)):
        config = {**json.loads((plain / "config.json").read_text()), "rope_parameters": rope}
        assert HybridConfig.from_dict(config).max_positions == positions


def test_older_files_say_it_elsewhere(plain: Path) -> None:
    config = json.loads((plain / "config.json").read_text())
    new = HybridConfig.from_dict({**config, "rope_parameters": ORIGINAL})
    del config["rope_parameters"]
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    assert (
        HybridConfig.from_dict({**config, "rope_theta": 1e6, "partial_rotary_factor": 0.5, "rope_scaling": scaling})
        == new
    )


def test_both_backends_turn_alike(plain: Path, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from stepwell.model.cuda.backend import CudaBackend

    config = HybridConfig.from_file(changed(plain, tmp_path / "yarn", None, {"rope_parameters": ORIGINAL}))
    positions = torch.arange(200)
    cos, sin = CudaBackend(config, torch.float32, torch.device("cpu")).angles(positions)
    angles = TorchBackend(config, torch.float32, torch.device("cpu"))._rotary(positions)
    half = config.rotary_dim // 2
    assert torch.equal(cos, angles.cos[:, 0, :half]) and torch.equal(sin, angles.sin[:, 0, half : 2 * half])
