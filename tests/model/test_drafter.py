"""The draft layer over pages and slots against a straightforward one, and its tensors in every published layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors.torch import load_file  # noqa: E402

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.model.loading import dummy_decoder, load_decoder  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.drafts import PREFIX, Reference  # noqa: E402
from tests.model.test_fp8 import OFFICIAL, packs  # noqa: E402
from tests.model.test_loading import changed  # noqa: E402

TOKENS = np.random.default_rng(3).integers(3, 512, 75).astype(np.int32)
DRAFTS = 4
ARCHS = [("qwen3_5", 0), ("qwen3_next", 0), ("qwen3_next", 4), ("qwen3_5_moe", 4)]


@pytest.fixture(scope="module", params=ARCHS)
def model(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    arch, experts = request.param
    return write_checkpoint(
        tmp_path_factory.mktemp("mtp"), arch=arch, hidden=64, layers=4, vocab=512, experts=experts, mtp=True
    )


def drafted(directory: Path, chunks: list[int], poison: int = 0xFF) -> list[int]:
    """Compute the tokens in chunks that end at these positions, then draft."""
    rig = Rig(
        load_decoder(directory, drafts=True), pages=8, slots=2, depth=2 + 2 * DRAFTS, poison=poison, drafts=DRAFTS
    )
    pages = rig.table(75 + DRAFTS + 1)
    for start, end in zip([0, *chunks], chunks, strict=False):
        rig.last(replace(work(TOKENS, pages, start, end, slot=1), pages=pages))
    drafts: list[int] = rig.runner._memory.drafts[1].tolist()
    return drafts


@pytest.mark.sampled(4)
@pytest.mark.parametrize("chunks", [[75], [64, 75], [16, 17, 18, 64, 74, 75]])
def test_drafts_equal_a_straightforward_layer(model: Path, chunks: list[int]) -> None:
    """However the prompt is divided: in parts of several tokens, or of one."""
    reference = Reference(model)
    assert drafted(model, chunks) == reference.drafts(torch.from_numpy(TOKENS).long(), DRAFTS)


def test_the_hidden_row_before_the_first_token_is_nothing(model: Path) -> None:
    assert drafted(model, [75], poison=0x7F) == drafted(model, [75], poison=0)


def test_a_layer_with_its_experts_in_one_tensor_is_the_same(model: Path, tmp_path: Path) -> None:
    if f"{PREFIX}mlp.gate.weight" not in load_file(model / "model.safetensors"):
        pytest.skip("has no experts")

    def fused(tensors: Any) -> Any:
        own = f"{PREFIX}mlp.experts."
        get = lambda e, part: tensors[f"{own}{e}.{part}_proj.weight"]  # noqa: E731
        rest = {n: t for n, t in tensors.items() if not n.startswith(own)}
        up = torch.stack([torch.cat((get(e, "gate"), get(e, "up"))) for e in range(4)])
        return {
            **rest,
            f"{own}gate_up_proj": up,
            f"{own}down_proj": torch.stack([get(e, "down") for e in range(4)]),
        }

    assert drafted(changed(model, tmp_path / "fused", fused), [75]) == drafted(model, [75])


def test_its_tensors_are_fp8_or_not_one_by_one(model: Path, tmp_path: Path) -> None:
    pack, twin = packs(model, tmp_path, OFFICIAL)
    assert any(n.startswith("mtp") and n.endswith("_scale_inv") for n in load_file(pack / "model.safetensors"))
    assert drafted(pack, [75]) == drafted(twin, [75])


def test_a_checkpoint_that_cannot_draft_is_told(tmp_path: Path) -> None:
    plain = write_checkpoint(tmp_path / "plain", hidden=64, layers=4, vocab=512)
    with pytest.raises(ConfigError, match=r"has no mtp\. tensors: this checkpoint cannot draft"):
        load_decoder(plain, drafts=True)


def test_random_weights_can_draft(model: Path) -> None:
    decoder = dummy_decoder(model, drafts=True)
    assert decoder.drafter is not None and dummy_decoder(model).drafter is None
