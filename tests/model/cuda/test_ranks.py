"""Kernels on two ranks, in Triton's interpreter: the steps of a small model, against plain torch on one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.model.cuda.backend import CudaBackend  # noqa: E402
from stepwell.model.loading import dummy_decoder  # noqa: E402
from stepwell.ops.ranks import Ranks  # noqa: E402
from tests.engine.rig import Rig, work  # noqa: E402
from tests.model.cuda.shapes import EXPERTS, TOKENS, written  # noqa: E402
from tests.model.ranks import on_ranks  # noqa: E402

TOLERANCE = 2e-5
HEADS = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
WIDE = {**EXPERTS, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32}


@pytest.mark.parametrize(
    "more", [pytest.param({}, id="dense", marks=pytest.mark.long), pytest.param(WIDE, id="experts")]
)
def test_two_ranks_compute_what_plain_torch_does_on_one(more: dict[str, Any], tmp_path: Path) -> None:
    directory = written(tmp_path, **HEADS, **more)

    def steps(rig: Rig) -> list[Any]:
        first, second = rig.table(40), rig.table(20)
        found = rig.run(work(TOKENS, first, 0, 6))[1]
        return found + rig.run(work(TOKENS, first, 6, 7), work(TOKENS[5:], second, 0, 3, slot=3))[1]

    def on_kernels(own: Ranks) -> list[Any]:
        return steps(Rig(dummy_decoder(directory, torch.float32, make=CudaBackend, ranks=own), pages=60))

    expected = steps(Rig(dummy_decoder(directory, torch.float32), pages=60))
    for found in on_ranks(2, on_kernels):
        for mine, other in zip(found, expected, strict=True):
            assert float((mine - other).abs().max()) < TOLERANCE
