"""Steps that are rehearsed to compile kernels ahead: no kernel runs, so all that kernels should have written is garbage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from triton.runtime import interpreter  # noqa: E402

from stepwell.engine.config import EngineConfig  # noqa: E402
from stepwell.engine.worker.warm import rehearsals, wanted  # noqa: E402
from stepwell.model.cuda.backend import CudaBackend  # noqa: E402
from stepwell.model.loading import dummy_decoder  # noqa: E402
from tests.engine.rig import Rig  # noqa: E402
from tests.model.cuda.shapes import EXPERTS, written  # noqa: E402

LARGE = 1 << 40
"""What lies in fresh memory of whole numbers: no index reaches so far."""


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Names of kernels, none of which runs; what nothing has written is no index."""
    names: list[str] = []
    monkeypatch.setattr(interpreter.GridExecutor, "__call__", lambda self, *_, **__: names.append(self.fn.__name__))
    # torch fills fresh memory then: whole numbers with the largest that there is
    torch.use_deterministic_algorithms(True)
    yield names
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("shape", [{}, EXPERTS], ids=["dense", "experts"])
def test_no_operation_of_torch_reads_an_index_that_a_kernel_should_have_written(
    launched: list[str], tmp_path: Path, shape: dict[str, Any], drafts: int
) -> None:
    decoder = dummy_decoder(
        written(tmp_path, vocab_size=64, **shape), torch.float32, drafts=drafts > 0, make=CudaBackend
    )
    rig = Rig(decoder, pages=80, slots=4, depth=2 * (1 + drafts) if drafts else 0, drafts=drafts)
    rig.runner._decoder = decoder
    assert int(torch.empty(1, dtype=torch.int64)) > LARGE
    if drafts:
        rig.runner._memory.draws.fill_(LARGE)
        rig.runner._memory.drafts.fill_(LARGE)
    config = EngineConfig("m", max_num_seqs=4, max_num_batched_tokens=128, num_speculative_tokens=drafts)
    sizes: Any = type("Sizes", (), {"pages": 80, "max_model_len": 600, "geometry": rig.geometry})
    asked = replace(wanted(config, 40, captures=False), rows=(1, 4), prompts=())
    for rehearse in rehearsals(rig.runner, asked, sizes, config):
        rehearse()
    assert ("_settle_kernel" in launched) == (drafts > 0) and len(set(launched)) > 10
