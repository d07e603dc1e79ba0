"""Products with matrices in FP8 against their unpacked twins: odd sizes, blocks cut off on either side, NaN in what must not be read."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.scaled import Scaled, joined, packed, taken  # noqa: E402
from stepwell.ops.triton import experts, grouped, linear, twins  # noqa: E402
from stepwell.ops.triton.experts import Tiles  # noqa: E402
from stepwell.ops.triton.linear import Tile  # noqa: E402
from stepwell.ops.triton.stored import unpack  # noqa: E402
from tests.amounts import long  # noqa: E402
from tests.ops.triton.inputs import NAN, Made, close  # noqa: E402

TILE = Tile(columns=16, depth=16, stages=1)


def scaled(made: Made, width: int, depth: int, rows: int, columns: int) -> Scaled:
    """Blocks of very different sizes."""
    weight = made.normal(width, depth) * torch.logspace(-2, 1, depth)
    return packed(weight / depth**0.5, rows, columns)


def guarded(matrix: Scaled) -> Scaled:
    """The same with NaN behind its last row and its last scale."""
    values = torch.cat((matrix.values.view(torch.uint8), torch.full((64, matrix.shape[1]), 127, dtype=torch.uint8)))
    scales = torch.cat((matrix.scales, torch.full((8, matrix.scales.shape[1]), NAN)))
    kept = values.view(torch.float8_e4m3fn)[: matrix.shape[0]], scales[: matrix.scales.shape[0]]
    return Scaled(*kept, matrix.rows, matrix.columns)


@pytest.mark.parametrize(("rows", "width", "depth"), [(1, 16, 32), (3, 37, 40), (70, 20, 24)])
@pytest.mark.parametrize(("high", "wide"), [(16, 16), (24, 32), (1, 64)])
def test_a_product_of_few_rows(rows: int, width: int, depth: int, high: int, wide: int) -> None:
    made = Made(0)
    x, weight = made.strided(rows, depth), guarded(scaled(made, width, depth, high, wide))
    found = linear.linear(x, weight, tile=TILE)
    assert close(found, twins.linear(x, weight.unpacked(torch.float32)), 1e-4)


@pytest.mark.parametrize(("depth", "wide"), [(32, 32), (1024, 128), (2560, 128), (300, 128), (1024, 1024)])
def test_a_product_of_one_row(depth: int, wide: int) -> None:
    made = Made(1)
    x, weight = made.normal(1, depth), guarded(scaled(made, 37, depth, 16, wide))
    assert close(linear.linear(x, weight), twins.linear(x, weight.unpacked(torch.float32)), 1e-4)


@pytest.mark.parametrize("rows", [1, 5, 70, 130])
@pytest.mark.parametrize("width", [32, 41])
def test_plain_rows_may_follow(rows: int, width: int) -> None:
    made = Made(2)
    x, weight, tail = made.strided(rows, 256), guarded(scaled(made, width, 256, 16, 128)), made.normal(7, 256)
    found = linear.linear(x, weight, tail=tail)
    assert close(found, twins.linear(x, torch.cat((weight.unpacked(torch.float32), tail))), 2e-4)


def test_parts_cover_the_depth() -> None:
    made = Made(3)
    x, weight, tail = made.normal(5, 64), scaled(made, 20, 64, 16, 16), made.normal(3, 64)
    whole = torch.cat((weight.unpacked(torch.float32), tail))
    parts = linear.linear(x, weight, tail=tail, parts=2, tile=TILE)
    assert close(parts[0], twins.linear(x[:, :32], whole[:, :32]), 1e-4)
    assert close(parts.sum(0), twins.linear(x, whole), 1e-4)


@pytest.mark.parametrize(("rows", "width", "depth"), [(1, 24, 128), (1, 37, 600), (3, 37, 160), (16, 8, 300)])
def test_one_half_of_a_product_gates_the_other(rows: int, width: int, depth: int) -> None:
    made = Made(4)
    x, weight = made.strided(rows, depth), guarded(scaled(made, 2 * width, depth, 16, 128))
    assert close(linear.gated(x, weight), twins.gated(x, weight.unpacked(torch.float32)), 1e-4)


def test_what_unpacked_weights_would_round_is_not_rounded() -> None:
    """Activations of bfloat16 times values and then scales: nearer to the exact product than the unpacked twin in bfloat16."""
    made = Made(5)
    x, weight = made.normal(4, 512).bfloat16().float(), scaled(made, 64, 512, 128, 128)
    exact = x.double() @ weight.unpacked(torch.float64).mT
    rounded = x.double() @ weight.unpacked(torch.bfloat16).double().mT
    found = linear.linear(x, weight, parts=2).sum(0)
    assert (found - exact).abs().max() < 1e-5 < (rounded - exact).abs().max() / 100


@pytest.mark.parametrize(("width", "depth", "high", "wide"), [(37, 40, 16, 16), (130, 300, 128, 128), (64, 24, 1, 32)])
def test_a_matrix_is_unpacked_as_plain_torch_does(width: int, depth: int, high: int, wide: int) -> None:
    matrix, out = guarded(scaled(Made(6), width, depth, high, wide)), torch.empty(width, depth)
    unpack(matrix, out)
    assert torch.equal(out, matrix.unpacked(torch.float32))


@pytest.mark.parametrize(("high", "kept"), [(8, True), (12, False)])
def test_rows_are_stacked_and_reordered_in_whole_blocks_where_they_can_be(high: int, kept: bool) -> None:
    made = Made(7)
    parts = [scaled(made, width, 40, high, 16) for width in (16, 24)]
    both = joined(parts, torch.float32)
    whole = torch.cat([part.unpacked(torch.float32) for part in parts])
    assert isinstance(both, Scaled) and (both.rows == high) == kept
    assert torch.equal(both.unpacked(torch.float32), whole)
    order = torch.arange(40).view(5, 8).flip(0).flatten()
    turned = taken(both, order)
    assert isinstance(turned, Scaled) and (turned.rows == high) == kept
    assert torch.equal(turned.unpacked(torch.float32), whole[order])
    mixed = joined([parts[0], parts[1].unpacked(torch.float32)], torch.float32)
    assert torch.equal(mixed, whole)


def stacked(made: Made, count: int, width: int, depth: int, rows: int, columns: int) -> Scaled:
    one = [scaled(made, width, depth, rows, columns) for _ in range(count)]
    values = torch.stack([m.values.view(torch.uint8) for m in one]).view(torch.float8_e4m3fn)
    return Scaled(values, torch.stack([m.scales for m in one]), rows, columns)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rows", "tiles"), [(1, None), (2, Tiles(16, 16, 16, 16, 1)), long(19, Tiles(16, 16, 16, 16, 1))]
)
@pytest.mark.parametrize(("high", "wide"), [(16, 16), (24, 32), (1, 64)])
def test_a_mixture_of_experts(rows: int, tiles: Tiles | None, high: int, wide: int) -> None:
    """Scales and values of experts that nobody chose are NaN."""
    count, top, hidden, width = 11, 3, 40, 24
    made = Made(8)
    into, out = stacked(made, count, 2 * width, hidden, high, wide), stacked(made, count, hidden, width, high, wide)
    shared = scaled(made, 2 * width, hidden, high, wide), scaled(made, hidden, width, high, wide)
    chosen, weights = twins.route(made.normal(rows, count + 1), top, True)
    unused = sorted(set(range(count)) - set(chosen.flatten().tolist()))
    for stack in (into, out):
        stack.scales[unused] = NAN
    x, residual, norm = made.normal(rows, hidden), made.normal(rows, hidden), made.normal(hidden)
    other = residual.clone()
    again = residual.clone()
    found = experts.mixture(x, chosen, weights, into, out, *shared, residual, norm, 1e-6, tiles)
    one = grouped.Tile(16, 16, 16, 1, 4)
    many = grouped.mixture_of_many(x, chosen, weights, into, out, *shared, again, norm, 1e-6, grouped.Tiles(one, one))
    plain = [matrix.unpacked(torch.float32) for matrix in (into, out, *shared)]
    expected = twins.mixture(x, chosen, weights, *plain, other, norm, 1e-6)
    assert found.isfinite().all()
    assert close(residual, other, 1e-4)
    assert close(found, expected, 1e-4) and close(many, expected, 1e-4)


def test_a_mixture_in_bfloat16_multiplies_in_float16_and_rounds_less() -> None:
    """Activations of bfloat16 become float16, which holds them; an intermediate that float16 does not hold by itself, too."""
    count, top, hidden, width, rows = 5, 2, 32, 16, 6
    made = Made(11)
    into, out = stacked(made, count, 2 * width, hidden, 16, 16), stacked(made, count, hidden, width, 16, 16)
    shared = scaled(made, 2 * width, hidden, 16, 16), scaled(made, hidden, width, 16, 16)
    into.scales.mul_(60)
    shared[0].scales.mul_(60)
    x, (chosen, weights) = made.normal(rows, hidden).bfloat16(), twins.route(made.normal(rows, count + 1), top, True)
    residual, norm = made.normal(rows, hidden), made.normal(hidden)
    plain = [matrix.unpacked(torch.float32) for matrix in (into, out, *shared)]
    other = residual.clone()
    expected = twins.mixture(x.float(), chosen, weights, *plain, other, norm, 1e-6)
    h = x.float() @ plain[2].mT
    assert (h[:, :width] * h[:, width:]).abs().max() > torch.finfo(torch.float16).max
    found = experts.mixture(x, chosen, weights, into, out, *shared, residual, norm, 1e-6, Tiles(16, 16, 16, 16, 1))
    assert (found - expected).norm() / expected.norm() < 1e-3


def test_what_float16_does_not_hold_is_told_by_a_row_of_nan() -> None:
    made, count, rows = Made(12), 5, 3
    into, out = stacked(made, count, 32, 32, 16, 16), stacked(made, count, 32, 16, 16, 16)
    shared = scaled(made, 32, 32, 16, 16), scaled(made, 32, 16, 16, 16)
    x, (chosen, weights) = made.normal(rows, 32).bfloat16(), twins.route(made.normal(rows, count + 1), 2, True)
    x[1] *= 1e5
    residual = made.normal(rows, 32)
    args = x, chosen, weights, into, out, *shared, residual, made.normal(32), 1e-6, Tiles(16, 16, 16, 16, 1)
    found = experts.mixture(*args)
    assert found[1].isnan().all() and found[[0, 2]].isfinite().all()
