"""Routing and the mixture of experts for few tokens against their twins."""

from __future__ import annotations

from itertools import pairwise

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.triton import experts, twins  # noqa: E402
from stepwell.ops.triton.experts import Tiles  # noqa: E402
from tests.ops.triton.inputs import NAN, Made, close  # noqa: E402

EXPERTS, TOP, HIDDEN, WIDTH = 11, 3, 40, 24
TILES = Tiles(up=16, up_depth=16, down=16, down_depth=16, stages=1)


@pytest.mark.parametrize("rows", [1, 7])
@pytest.mark.parametrize("normed", [True, False])
def test_routing_takes_the_likeliest_and_the_shared_expert(rows: int, normed: bool) -> None:
    logits = Made(0).strided(rows, EXPERTS + 1)
    chosen, weights = experts.route(logits, TOP, normed)
    expected = twins.route(logits, TOP, normed)
    assert torch.equal(chosen, expected[0])
    assert close(weights, expected[1])


def test_logits_in_parts_are_summed_first() -> None:
    parts = Made(1).normal(2, 3, EXPERTS + 1)
    chosen, weights = experts.route(parts, TOP, True)
    expected = twins.route(parts.sum(0), TOP, True)
    assert torch.equal(chosen, expected[0])
    assert close(weights, expected[1])


def test_equal_chances_are_settled_by_number() -> None:
    chosen, _ = experts.route(torch.zeros(1, EXPERTS + 1), TOP, True)
    assert chosen.tolist() == [[0, 1, 2, EXPERTS]]


@pytest.mark.parametrize("broken", [NAN, float("inf")])
def test_a_row_that_broke_chooses_experts_that_there_are(broken: float) -> None:
    logits = torch.full((2, EXPERTS + 1), broken)
    logits[1] = Made(2).normal(EXPERTS + 1)
    chosen, _ = experts.route(logits, TOP, True)
    assert chosen.min() >= 0 and chosen[:, :TOP].max() < EXPERTS
    assert torch.equal(chosen[1:], twins.route(logits[1:], TOP, True)[0])


@pytest.mark.parametrize("chosen", [[[4, 2, 0, 11]], [[4, 2, 0, 11], [2, 9, 4, 11], [10, 2, 7, 11]]])
def test_units_hold_the_pairs_of_one_expert_in_order(chosen: list[list[int]]) -> None:
    units = experts.plan_units(torch.tensor(chosen, dtype=torch.int32), EXPERTS)
    flat = [expert for row in chosen for expert in row]
    found, start = {}, units.start.tolist()
    for u, (a, b) in enumerate(pairwise(start)):
        if b > a:
            found[int(units.expert[u])] = units.order[a:b].tolist()
    assert found == {e: [p for p, x in enumerate(flat) if x == e] for e in sorted(set(flat))}
    assert list(found) == sorted(found)
    assert start[-1] == len(flat)


def weights_of(made: Made) -> tuple[torch.Tensor, ...]:
    gate_up, down = made.normal(EXPERTS, 2 * WIDTH, HIDDEN), made.normal(EXPERTS, HIDDEN, WIDTH)
    return gate_up / HIDDEN**0.5, down / WIDTH**0.5, made.normal(2 * WIDTH, HIDDEN), made.normal(HIDDEN, WIDTH)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("rows", "tiles"), [(1, None), (1, TILES), (2, TILES), (19, TILES)])
def test_a_mixture_adds_its_experts_and_norms_the_sum(rows: int, tiles: Tiles | None) -> None:
    made = Made(rows)
    matrices = weights_of(made)
    chosen, weights = twins.route(made.normal(rows, EXPERTS + 1), TOP, True)
    unused = sorted(set(range(EXPERTS)) - set(chosen.flatten().tolist()))
    matrices[0][unused], matrices[1][unused] = NAN, NAN
    x, residual, norm = made.normal(rows, HIDDEN), made.normal(rows, HIDDEN), made.normal(HIDDEN)
    other = residual.clone()
    found = experts.mixture(x, chosen, weights, *matrices, residual, norm, 1e-6, tiles)
    expected = twins.mixture(x, chosen, weights, *matrices, other, norm, 1e-6)
    assert found.isfinite().all()
    assert close(residual, other, 1e-4)
    assert close(found, expected, 1e-4)


def test_all_rows_may_choose_the_same_expert() -> None:
    made = Made(9)
    matrices, rows = weights_of(made), 35
    chosen = torch.tensor([[5, 1, 0, EXPERTS]] * rows, dtype=torch.int32)
    weights = made.uniform(rows, TOP + 1)
    x, residual, norm = made.normal(rows, HIDDEN), made.normal(rows, HIDDEN), made.normal(HIDDEN)
    other = residual.clone()
    found = experts.mixture(x, chosen, weights, *matrices, residual, norm, 1e-6, TILES)
    assert close(found, twins.mixture(x, chosen, weights, *matrices, other, norm, 1e-6), 1e-4)
