"""Activations as sums of two e4m3 values against products with the unpacked weights."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.scaled import Scaled  # noqa: E402
from stepwell.ops.triton import halves  # noqa: E402
from stepwell.ops.triton.linear import Tile  # noqa: E402
from tests.ops.triton.inputs import NAN, Made, e4m3_as_on_a_gpu  # noqa: E402, F401
from tests.ops.triton.test_stored import guarded, scaled  # noqa: E402

pytestmark = pytest.mark.usefixtures("e4m3_as_on_a_gpu")
ROUNDING = 2**-9
"""Of bfloat16, relative."""


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
def test_halves_hold_what_bfloat16_does(size: float) -> None:
    x = (Made(0).strided(5, 384) * size).bfloat16()
    x[2] = 0
    made = halves.halve(x)
    scales = made.scales.repeat_interleave(halves.GROUP, 1).double()
    back = made.values.double().sum(0) * scales
    largest = x.double().abs().view(5, -1, halves.GROUP).amax(2).repeat_interleave(halves.GROUP, 1)
    assert ((back - x.double()).abs() <= 2**-8 * x.double().abs() + 2**-18 * largest).all()
    assert (back[2] == 0).all()


@pytest.mark.parametrize(("rows", "width", "parts"), [(2, 37, 1), (9, 64, 2), (20, 130, 1), (70, 70, 1)])
@pytest.mark.parametrize(("high", "wide"), [(128, 128), (16, 128), (1, 256)])
def test_a_product_of_few_rows_rounds_no_more_than_bfloat16(
    rows: int, width: int, parts: int, high: int, wide: int
) -> None:
    made = Made(1)
    x, weight = made.strided(rows, 256).bfloat16(), guarded(scaled(made, width, 256, high, wide))
    tail = made.normal(5, 256).bfloat16() if parts == 1 else None
    assert halves.takes(x, weight)
    found = halves.linear(x, weight, tail=tail, parts=parts, tile=Tile(32, 128, 2))
    found = found.sum(0) if parts > 1 else found
    assert apart(found[:, :width], x.double() @ weight.unpacked(torch.float64).mT) < (
        ROUNDING if parts > 1 else 2 * ROUNDING
    )
    assert found.shape == (rows, width + (0 if tail is None else 5))


def test_a_row_that_broke_stays_broken_and_alone() -> None:
    made = Made(2)
    x, weight = made.normal(4, 256).bfloat16(), scaled(made, 20, 256, 128, 128)
    x[1, 3], x[2, 200] = NAN, float("inf")
    found = halves.linear(x, weight)
    assert found[[1, 2]].isnan().all() and found[[0, 3]].isfinite().all()


@pytest.mark.parametrize(("rows", "depth", "wide"), [(1, 256, 128), (4, 200, 128), (4, 256, 64), (257, 256, 128)])
def test_what_is_not_taken(rows: int, depth: int, wide: int) -> None:
    weight: Scaled = scaled(Made(3), 16, depth, 16, wide)
    assert not halves.takes(torch.zeros(rows, depth, dtype=torch.bfloat16), weight)
    assert not halves.takes(torch.zeros(4, 256), scaled(Made(3), 16, 256, 16, 128))
