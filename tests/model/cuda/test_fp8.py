"""FP8 weights on the kernels: held as they are stored, and computing what plain torch computes from the same weights unpacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from safetensors.torch import load_file, save_file  # noqa: E402

from stepwell.model.cuda.backend import CudaBackend  # noqa: E402
from stepwell.model.loading import dummy_decoder, load_decoder  # noqa: E402
from stepwell.ops.scaled import Scaled  # noqa: E402
from stepwell.testing.checkpoint import write_checkpoint  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.cuda.shapes import EXPERTS, TOKENS, written  # noqa: E402
from tests.model.cuda.test_backend import both  # noqa: E402
from tests.model.test_fp8 import DYNAMIC, OFFICIAL, packs  # noqa: E402

BLOCKS: dict[str, Any] = {**OFFICIAL, "weight_block_size": [16, 16]}
FORMS = {"blocks": BLOCKS, "cut blocks": {**OFFICIAL, "weight_block_size": [24, 32]}, "rows": DYNAMIC}


def steps(rigs: tuple[Rig, Rig]) -> None:
    """A prompt of several chunks, a decode of one row, and a decode of two beside a prompt."""
    first, second = rigs[0].table(90), rigs[0].table(20)
    both(rigs, work(TOKENS, first, 0, 80))
    both(rigs, work(TOKENS, first, 80, 81))
    both(rigs, work(TOKENS[5:], second, 0, 3, slot=3), work(TOKENS, first, 81, 82))
    both(rigs, work(TOKENS, first, 82, 83), work(TOKENS[5:], second, 3, 4, slot=3))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("more", [{}, EXPERTS], ids=["dense", "experts"])
def test_random_fp8_weights_agree_with_their_unpacked_twin(tmp_path: Path, form: str, more: dict[str, Any]) -> None:
    directory = written(tmp_path, **more, quantization_config=FORMS[form])
    kernels = dummy_decoder(directory, torch.float32, make=CudaBackend)
    steps((Rig(kernels, pages=60), Rig(dummy_decoder(directory, torch.float32), pages=60)))


class Seen(CudaBackend):
    """Remembers what it was asked to multiply with."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.given: list[tuple[Any, Any]] = []

    def linear(self, weight: Any, tail: Any = None) -> Any:
        self.given.append((weight, tail))
        return super().linear(weight, tail)

    def stack(self, weights: Any) -> Any:
        self.given.append((weights, None))
        return super().stack(weights)


def given(directory: Path) -> list[tuple[Any, Any]]:
    backend = dummy_decoder(directory, torch.float32, make=Seen).backend
    assert isinstance(backend, Seen)
    return backend.given


@pytest.mark.parametrize("more", [{}, EXPERTS], ids=["dense", "experts"])
def test_matrices_stay_in_fp8_but_for_what_packs_leave_alone(tmp_path: Path, more: dict[str, Any]) -> None:
    found = given(written(tmp_path, **more, quantization_config=BLOCKS))
    scaled = [(weight, tail) for weight, tail in found if isinstance(weight, Scaled)]
    assert all(weight.values.dtype == torch.float8_e4m3fn for weight, _ in scaled)
    assert all(weight.values.nbytes == weight.shape.numel() for weight, _ in scaled)
    # of two layers: four of mixers, and of each a dense MLP's two or a mixture's four
    assert len(scaled) == (12 if more else 8)
    assert [tail.shape[0] for _, tail in scaled if tail is not None] == [4], "the delta rule's two narrow projections"
    # the head, and each layer's router
    assert len(found) - len(scaled) == (3 if more else 1)


@pytest.fixture(params=["qwen3_5", "qwen3_next", "qwen3_5_moe"])
def plain(request: Any, tmp_path: Path) -> Path:
    experts = 4 if request.param == "qwen3_5_moe" else 0
    return write_checkpoint(tmp_path / "plain", arch=request.param, hidden=64, layers=4, vocab=260, experts=experts)


def test_packs_agree_with_plain_torch(plain: Path, tmp_path: Path) -> None:
    pack, _ = packs(plain, tmp_path, BLOCKS, torch.bfloat16)
    kernels = load_decoder(pack, make=CudaBackend)
    assert "as they are stored" in kernels.notes[0]
    steps((Rig(kernels, pages=60), Rig(load_decoder(pack), pages=60)))


@pytest.mark.parametrize("left", ["q_proj.weight", "in_proj_z.weight", "experts.2.up_proj.weight", "down_proj.weight"])
def test_a_matrix_that_a_pack_left_alone_unpacks_those_it_is_joined_with(tmp_path: Path, left: str) -> None:
    plain = write_checkpoint(tmp_path / "plain", arch="qwen3_5_moe", hidden=64, layers=4, vocab=260, experts=4)
    pack, twin = packs(plain, tmp_path, BLOCKS)
    own, values = load_file(pack / "model.safetensors"), load_file(twin / "model.safetensors")
    names = [name for name in own if name.endswith(left)]
    assert names or "experts" in left
    for name in names:
        own[name] = values[name]
        del own[f"{name}_scale_inv"]
    save_file(own, pack / "model.safetensors")
    steps((Rig(load_decoder(pack, make=CudaBackend), pages=60), Rig(load_decoder(twin), pages=60)))


def test_blocks_that_kernels_cannot_read_are_unpacked(tmp_path: Path) -> None:
    form = {**OFFICIAL, "weight_block_size": [80, 112]}
    assert not any(isinstance(weight, Scaled) for weight, _ in given(written(tmp_path, quantization_config=form)))
