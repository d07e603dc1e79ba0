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
from tests.amounts import long  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.cuda.shapes import EXPERTS, TOKENS, written  # noqa: E402
from tests.model.cuda.test_backend import both  # noqa: E402
from tests.model.test_fp8 import DYNAMIC, OFFICIAL, packs  # noqa: E402

BLOCKS: dict[str, Any] = {**OFFICIAL, "weight_block_size": [16, 16]}
FORMS = {"blocks": BLOCKS, "cut blocks": {**OFFICIAL, "weight_block_size": [24, 32]}, "rows": DYNAMIC}


def steps(rigs: tuple[Rig, Rig]) -> None:
    """A prompt of several chunks, a decode of one row, and a decode of two beside a prompt."""
    first, second = rigs[0].table(80), rigs[0].table(20)
    both(rigs, work(TOKENS, first, 0, 66))
    both(rigs, work(TOKENS, first, 66, 67))
    both(rigs, work(TOKENS[5:], second, 0, 3, slot=3), work(TOKENS, first, 67, 68))
    both(rigs, work(TOKENS, first, 68, 69), work(TOKENS[5:], second, 3, 4, slot=3))


@pytest.mark.long
@pytest.mark.parametrize(("form", "more"), [("blocks", {}), long("rows", {}), long("cut blocks", EXPERTS)])
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


@pytest.mark.long
def test_a_pack_and_matrices_that_it_left_alone(tmp_path: Path) -> None:
    """Those unpack what they are joined with. One of each kind: queries beside keys, one half of the delta rule's projection, one matrix
    of one expert."""
    left = ("q_proj.weight", "in_proj_z.weight", "experts.2.up_proj.weight")
    plain = write_checkpoint(tmp_path / "plain", arch="qwen3_next", hidden=64, layers=4, vocab=260, experts=4)
    pack, twin = packs(plain, tmp_path, BLOCKS)
    own, values = load_file(pack / "model.safetensors"), load_file(twin / "model.safetensors")
    names = [name for name in own if name.endswith(left)]
    assert any("experts.2" in name for name in names)
    for name in names:
        own[name] = values[name]
        del own[f"{name}_scale_inv"]
    save_file(own, pack / "model.safetensors")
    both_ways = load_decoder(pack, make=CudaBackend), load_decoder(twin)
    assert "as they are stored" in both_ways[0].notes[0]
    steps((Rig(both_ways[0], pages=60), Rig(both_ways[1], pages=60)))


def test_blocks_that_kernels_cannot_read_are_unpacked(tmp_path: Path) -> None:
    form = {**OFFICIAL, "weight_block_size": [80, 112]}
    assert not any(isinstance(weight, Scaled) for weight, _ in given(written(tmp_path, quantization_config=form)))
