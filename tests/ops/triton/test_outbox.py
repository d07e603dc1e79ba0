"""Values that a kernel stores where it is told."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.triton.outbox import store  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("count", [0, 1, 5, 256, 700])
def test_every_value_arrives_and_nothing_else_is_written(count: int) -> None:
    values = torch.randint(-(2**62), 2**62, (count,), device=DEVICE)
    memory = torch.full((count + 300,), 7, dtype=torch.int64, pin_memory=DEVICE == "cuda")
    store(values, memory[:count])
    if DEVICE == "cuda":
        torch.cuda.synchronize()
    assert memory[:count].tolist() == values.tolist() and memory[count:].eq(7).all()
