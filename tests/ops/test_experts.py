"""A mixture of experts against each row's experts one by one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from stepwell.ops.experts import gated_mlp, mixture, route  # noqa: E402
from stepwell.ops.linear import Dense, DenseStack  # noqa: E402

HIDDEN, WIDTH, EXPERTS, TOP = 8, 12, 7, 3
RNG = torch.Generator().manual_seed(0)
GATE_UP = torch.randn(EXPERTS, 2 * WIDTH, HIDDEN, generator=RNG)
DOWN = torch.randn(EXPERTS, HIDDEN, WIDTH, generator=RNG)
ROUTER = torch.randn(EXPERTS, HIDDEN, generator=RNG)


def mixed(x: torch.Tensor, normed: bool) -> torch.Tensor:
    return mixture(x, *route(x @ ROUTER.T, TOP, normed), DenseStack(GATE_UP), DenseStack(DOWN))


@pytest.mark.parametrize("rows", [1, 2, 33])
@pytest.mark.parametrize("normed", [True, False])
def test_a_mixture_is_the_weighted_sum_of_its_experts(rows: int, normed: bool) -> None:
    x = torch.randn(rows, HIDDEN, generator=torch.Generator().manual_seed(rows))
    found = mixed(x, normed)
    chances = (x @ ROUTER.T).softmax(-1)
    for row in range(rows):
        best = chances[row].topk(TOP)
        scale = best.values.sum() if normed else 1.0
        expected = sum(
            gated_mlp(x[row : row + 1], Dense(GATE_UP[e]), Dense(DOWN[e]))[0] * p / scale
            for p, e in zip(best.values, best.indices, strict=True)
        )
        assert torch.allclose(found[row], expected, atol=1e-5)


def test_a_row_does_not_depend_on_its_batch() -> None:
    x = torch.randn(20, HIDDEN, generator=torch.Generator().manual_seed(3))
    together = mixed(x, True)
    alone = torch.cat([mixed(row, True) for row in x.split(1)])
    assert torch.allclose(together, alone, atol=1e-5)
