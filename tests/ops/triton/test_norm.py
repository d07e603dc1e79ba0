"""Norms and gates against their twins."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.triton import norm, twins  # noqa: E402
from tests.ops.triton.inputs import Made, close  # noqa: E402


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 40), (5, 7)])
@pytest.mark.parametrize("adds", [True, False])
def test_a_residual_takes_the_sum_and_is_normed(rows: int, width: int, adds: bool) -> None:
    made = Made(0)
    x, residual, weight = made.normal(rows, width), made.normal(rows, width), made.normal(width)
    other, added = residual.clone(), x if adds else None
    assert close(norm.add_rms_norm(added, residual, weight, 1e-6), twins.add_rms_norm(added, other, weight, 1e-6))
    assert torch.equal(residual, other)


def test_the_sum_is_rounded_before_it_is_normed() -> None:
    made = Made(1)
    x, residual, weight = made.normal(3, 40).half(), made.normal(3, 40).half(), made.normal(40)
    other = residual.clone()
    found, expected = norm.add_rms_norm(x, residual, weight, 1e-6), twins.add_rms_norm(x, other, weight, 1e-6)
    assert found.dtype == torch.float16
    assert torch.equal(residual, other)
    assert close(found.float(), expected.float(), 0.01)


@pytest.mark.parametrize(("rows", "heads", "dim"), [(1, 1, 16), (3, 5, 24)])
def test_heads_are_normed_alone_and_gated(rows: int, heads: int, dim: int) -> None:
    made = Made(2)
    x, gate, weight = made.normal(rows, heads, dim), made.strided(rows, heads * dim), made.normal(dim)
    assert close(norm.gated_rms_norm(x, gate, weight, 1e-6), twins.gated_rms_norm(x, gate, weight, 1e-6))


@pytest.mark.parametrize(("rows", "width"), [(1, 16), (3, 1100)])
def test_a_gate_is_a_sigmoid(rows: int, width: int) -> None:
    made = Made(3)
    x, gate = made.normal(rows, width), made.strided(rows, width)
    assert close(norm.sigmoid_gate(x, gate), twins.sigmoid_gate(x, gate))
    scale = made.normal(4).exp2()
    assert close(norm.sigmoid_gate(x, gate, scale=scale), twins.sigmoid_gate(x, gate, scale=scale))
    assert close(
        twins.sigmoid_gate(x, gate, scale=scale).view(rows, 4, -1)[:, 2],
        (scale[2] * x * gate.sigmoid()).view(rows, 4, -1)[:, 2],
    )


def test_parts_are_summed_before_they_are_added() -> None:
    made = Made(4)
    parts, residual, weight = made.normal(3, 2, 40), made.normal(2, 40), made.normal(40)
    other = residual.clone()
    found = norm.add_rms_norm(parts, residual, weight, 1e-6)
    assert close(found, twins.add_rms_norm(parts.sum(0), other, weight, 1e-6))
    assert close(residual, other)
