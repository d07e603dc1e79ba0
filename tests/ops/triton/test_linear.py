"""Products of few rows against their twin."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.triton import linear, twins  # noqa: E402
from stepwell.ops.triton.linear import Tile  # noqa: E402
from tests.ops.triton.inputs import Made, close  # noqa: E402


@pytest.mark.parametrize(("rows", "width", "depth"), [(1, 16, 32), (3, 37, 40), (70, 20, 24)])
def test_a_product_of_few_rows(rows: int, width: int, depth: int) -> None:
    made = Made(0)
    x, weight = made.strided(rows, depth), made.normal(width, depth)
    tile = Tile(columns=16, depth=16, stages=1)
    assert close(linear.linear(x, weight, tile), twins.linear(x, weight), 1e-4)
