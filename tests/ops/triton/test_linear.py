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
    assert close(linear.linear(x, weight, tile=tile), twins.linear(x, weight), 1e-4)


@pytest.mark.parametrize("depth", [32, 1024, 2560])
def test_a_product_of_one_row(depth: int) -> None:
    made = Made(1)
    x, weight = made.normal(1, depth), made.normal(37, depth) / depth**0.5
    assert close(linear.linear(x, weight), twins.linear(x, weight), 1e-4)


@pytest.mark.parametrize(("rows", "width", "depth", "parts"), [(17, 75, 32, 1), (3, 48, 64, 2), (33, 100, 96, 3)])
def test_two_tiles_of_columns_side_by_side(rows: int, width: int, depth: int, parts: int) -> None:
    made = Made(6)
    x, weight = made.strided(rows, depth), made.normal(width, depth)
    found = linear.linear(x, weight, parts=parts, tile=Tile(columns=32, depth=16, stages=1, more=16))
    assert close(found if parts == 1 else found.sum(0), twins.linear(x, weight), 1e-4)


@pytest.mark.parametrize(
    ("width", "depth", "parts", "columns"),
    [(12352, 2560, 1, 96), (10240, 2560, 1, 80), (2560, 9216, 4, 80), (2048, 4096, 4, 64), (16000, 2560, 1, 64)],
)
def test_columns_are_divided_evenly_where_they_can_be(width: int, depth: int, parts: int, columns: int) -> None:
    tile = linear.even_tile(linear.tile_for(64), width, depth, parts)
    assert tile.columns + tile.more == columns


def test_parts_cover_the_depth() -> None:
    made = Made(2)
    x, weight = made.normal(5, 64), made.normal(20, 64)
    parts = linear.linear(x, weight, parts=2, tile=Tile(columns=16, depth=16, stages=1))
    assert parts.shape == (2, 5, 20)
    assert close(parts[0], twins.linear(x[:, :32], weight[:, :32]), 1e-4)
    assert close(parts.sum(0), twins.linear(x, weight), 1e-4)


@pytest.mark.parametrize(("rows", "width", "depth"), [(1, 24, 32), (1, 37, 600), (3, 37, 40), (16, 8, 300)])
def test_one_half_of_a_product_gates_the_other(rows: int, width: int, depth: int) -> None:
    made = Made(3)
    x, weight = made.strided(rows, depth), made.normal(2 * width, depth) / depth**0.5
    assert close(linear.gated(x, weight), twins.gated(x, weight), 1e-4)


@pytest.mark.parametrize(
    ("width", "depth", "rows", "parts"),
    [(2048, 4096, 8, 4), (12352, 2048, 8, 1), (257, 2048, 64, 8), (2048, 4096, 64, 4), (2048, 4096, 1, 1)],
)
def test_narrow_products_are_cut(width: int, depth: int, rows: int, parts: int) -> None:
    assert linear.parts_for(width, depth, rows) == parts
