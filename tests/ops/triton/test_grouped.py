"""Tokens sorted by expert multiplied and brought back, against their twins."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.triton import grouped, twins  # noqa: E402
from stepwell.ops.triton.grouped import Tile, Tiles  # noqa: E402
from tests.amounts import long  # noqa: E402
from tests.ops.triton.inputs import NAN, Made, close  # noqa: E402

EXPERTS, TOP, HIDDEN, WIDTH = 11, 3, 40, 24


@pytest.mark.parametrize("rows", [1, 3, 190])
def test_places_sort_pairs_by_expert_and_keep_the_order_of_equal_ones(rows: int) -> None:
    chosen, _ = twins.route(Made(rows).normal(rows, EXPERTS + 1), TOP, True)
    found = grouped.sort_pairs(chosen, EXPERTS)
    order = chosen.flatten().argsort(stable=True)
    assert torch.equal(found.places.long().argsort(), order)
    assert torch.equal(found.rows.long(), order // (TOP + 1))
    assert torch.equal(found.ends[:, -1], torch.bincount(chosen.flatten(), minlength=EXPERTS + 1).cumsum(0))


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (7, 24), (3, 2500)])
def test_one_half_gates_the_other(rows: int, width: int) -> None:
    x = Made(2).normal(rows, 2 * width)
    assert close(grouped.silu_gate(x), torch.nn.functional.silu(x[:, :width]) * x[:, width:])


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("rows", "places"), [(1, 16), (6, 16), long(70, 16), long(70, 32)])
def test_a_mixture_of_many_is_the_mixture(rows: int, places: int) -> None:
    made = Made(3)
    gate_up, down = (
        made.normal(EXPERTS, 2 * WIDTH, HIDDEN) / HIDDEN**0.5,
        made.normal(EXPERTS, HIDDEN, WIDTH) / WIDTH**0.5,
    )
    matrices = gate_up, down, made.normal(2 * WIDTH, HIDDEN), made.normal(HIDDEN, WIDTH)
    chosen, weights = twins.route(made.normal(rows, EXPERTS + 1), TOP, True)
    x, residual, norm = made.normal(rows, HIDDEN), made.normal(rows, HIDDEN), made.normal(HIDDEN)
    other, tile = residual.clone(), Tile(places, 16, 16, 1, 4)
    found = grouped.mixture_of_many(x, chosen, weights, *matrices, residual, norm, 1e-6, Tiles(tile, tile))
    assert close(found, twins.mixture(x, chosen, weights, *matrices, other, norm, 1e-6), 1e-4)
    assert close(residual, other, 1e-4)


def test_experts_that_nobody_chose_are_not_read() -> None:
    made = Made(4)
    gate_up, down = made.normal(EXPERTS, 2 * WIDTH, HIDDEN), made.normal(EXPERTS, HIDDEN, WIDTH)
    chosen = torch.tensor([[4, 2, 0, EXPERTS]] * 5, dtype=torch.int32)
    unread = [e for e in range(EXPERTS) if e not in (4, 2, 0)]
    gate_up[unread], down[unread] = NAN, NAN
    matrices = gate_up, down, made.normal(2 * WIDTH, HIDDEN), made.normal(HIDDEN, WIDTH)
    x, residual, norm = made.normal(5, HIDDEN), made.normal(5, HIDDEN), made.normal(HIDDEN)
    assert grouped.mixture_of_many(x, chosen, torch.ones(5, 4), *matrices, residual, norm, 1e-6).isfinite().all()
