"""The backend of kernels against plain torch: the same steps of a small model on both, over poisoned memory.

Kernels run in Triton's interpreter here; `bench/gpu_backend.py` does the same on a GPU, graphs included.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.model import torch_backend  # noqa: E402
from stepwell.model.backends import backend_for, sizes_up_to  # noqa: E402
from stepwell.model.config import HybridConfig  # noqa: E402
from stepwell.model.cuda.backend import CudaBackend, unfit  # noqa: E402
from stepwell.model.cuda.forward import KernelLinear  # noqa: E402
from stepwell.model.kv_scales import KvScales  # noqa: E402
from stepwell.model.loading import dummy_decoder  # noqa: E402
from stepwell.model.torch_backend import TorchBackend  # noqa: E402
from stepwell.sched.step import LAST_DRAW, Cut, FromImage  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.cuda.shapes import EXPERTS, TOKENS, written  # noqa: E402
from tests.ops.triton.inputs import e4m3_as_on_a_gpu  # noqa: E402, F401

TOLERANCE = 2e-5


@pytest.fixture(params=[{}, EXPERTS], ids=["dense", "experts"])
def rigs(request: Any, tmp_path: Path) -> tuple[Rig, Rig]:
    directory = written(tmp_path, **request.param)
    kernels = dummy_decoder(directory, torch.float32, make=CudaBackend)
    return Rig(kernels, pages=60), Rig(dummy_decoder(directory, torch.float32), pages=60)


def both(rigs: tuple[Rig, Rig], *works: Any) -> None:
    """One step on both, and the logits of every work that samples."""
    found, expected = (rig.run(*works) for rig in rigs)
    assert found[0].sampled == expected[0].sampled
    for mine, other in zip(found[1], expected[1], strict=True):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert mine.isfinite().all()
            assert float((mine - other).abs().max()) < TOLERANCE


@pytest.mark.sampled(1)
def test_prompts_images_and_decodes_agree(rigs: tuple[Rig, Rig]) -> None:
    first, second, image = rigs[0].table(40), rigs[0].table(20), rigs[0].image()
    both(rigs, work(TOKENS, first, 0, 19, cuts=[Cut(16, image)]), work(TOKENS[5:], second, 0, 3, slot=3))
    both(rigs, work(TOKENS, first, 19, 20), work(TOKENS[5:], second, 3, 4, slot=3))
    # a decode, the rest of a prompt, and one resumed from the image over pages that must not be written
    both(
        rigs,
        work(TOKENS, first, 20, 21),
        work(TOKENS[5:], second, 4, 6, slot=3),
        work(TOKENS, first, 16, 20, FromImage(image), slot=1, write_from=20),
    )
    both(rigs, work(TOKENS, first, 20, 21, slot=1), work(TOKENS, first, 21, 22))


@pytest.mark.sampled(1)
@pytest.mark.usefixtures("e4m3_as_on_a_gpu")
@pytest.mark.parametrize("scaled", [False, True])
def test_kv_in_fp8_is_stored_and_read_alike(tmp_path: Path, scaled: bool) -> None:
    """By prompts, which gather it, and by decodes. A value between two of e4m3 may become either: a step that is small in an answer."""
    directory = written(tmp_path)
    kernels = dummy_decoder(directory, torch.float32, make=CudaBackend)
    plain, heads = dummy_decoder(directory, torch.float32), kernels.config.shape.kv_heads
    each = torch.tensor([[2.0**-3, 2.0, 0.5, 4.0][i % 4] for i in range(heads)])[None]
    scales = KvScales(each, each.flip(1) / 8) if scaled else None
    rigs = Rig(kernels, pages=60, kv="fp8", scales=scales), Rig(plain, pages=60, kv="fp8", scales=scales)
    first, second = rigs[0].table(40), rigs[0].table(20)
    steps: list[list[Any]] = [
        [work(TOKENS, first, 0, 19), work(TOKENS[5:], second, 0, 3, slot=3)],
        [work(TOKENS, first, 19, 30), work(TOKENS[5:], second, 3, 4, slot=3)],
        [work(TOKENS, first, 30, 31), work(TOKENS[5:], second, 4, 5, slot=3)],
    ]
    for works in steps:
        found, expected = (rig.run(*works)[1] for rig in rigs)
        for mine, other in zip(found, expected, strict=True):
            assert mine is not None and other is not None
            assert float((mine - other).abs().max()) < 2e-3


@pytest.mark.sampled(1)
def test_a_decode_goes_on_from_what_its_slot_drew(rigs: tuple[Rig, Rig]) -> None:
    pages = rigs[0].table(20)
    both(rigs, work(TOKENS, pages, 0, 9))
    last = np.full(20, LAST_DRAW, np.int32)
    both(rigs, work(last, pages, 9, 10))
    both(rigs, work(last, pages, 10, 11))


@pytest.mark.parametrize("rows", [1, 5, 70])
def test_a_matrix_of_odd_width_multiplies_as_it_is(rows: int) -> None:
    x, weight = torch.randn(rows, 32), torch.randn(11, 32)
    matrix = KernelLinear.of(weight)
    assert matrix.weight.shape[0] == 16
    assert torch.equal(matrix.matrix, weight)
    parts = matrix.parts(x)
    for found in (matrix(x), parts if parts.ndim == 2 else parts.sum(0)):
        assert torch.allclose(found, x @ weight.mT, atol=1e-4)


def test_shapes_without_kernels_are_named(tmp_path: Path) -> None:
    config = HybridConfig.from_file(written(tmp_path, head_dim=24, num_attention_heads=2))
    assert "powers of two" in unfit(config, torch.float32)
    wide = HybridConfig.from_file(written(tmp_path, **{**EXPERTS, "shared_expert_intermediate_size": 32}))
    assert "as wide as" in unfit(wide, torch.float32)
    assert "bfloat16" in unfit(HybridConfig.from_file(written(tmp_path)), torch.float16)
    assert unfit(HybridConfig.from_file(written(tmp_path)), torch.bfloat16) == ""


@pytest.mark.parametrize(
    ("device", "dtype"),
    [("cpu", torch.bfloat16), ("cpu", torch.float32), ("cuda", torch.float32), ("cuda", torch.float16)],
)
def test_what_kernels_were_not_tried_with_is_computed_in_plain_torch(
    tmp_path: Path, device: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_backend, "Rotary", lambda *sizes: None)  # it would want the device
    backend = backend_for(HybridConfig.from_file(written(tmp_path)), dtype, torch.device(device))
    assert isinstance(backend, TorchBackend)


def test_what_computes_is_named(tmp_path: Path) -> None:
    backend = CudaBackend(HybridConfig.from_file(written(tmp_path)), torch.float32, torch.device("cpu"))
    assert any("FlashAttention-3" in name for name in backend.names)


@pytest.mark.parametrize(("rows", "sizes"), [(1, (1,)), (3, (1, 2, 3)), (32, (1, 2, 4, 8, 16, 24, 32))])
def test_graphs_are_captured_for_sizes_up_to_the_running_set(rows: int, sizes: tuple[int, ...]) -> None:
    assert sizes_up_to(rows) == sizes
