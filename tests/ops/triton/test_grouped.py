"""Tokens sorted by expert and brought back, against their twins. The grouped products between are torch's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.triton import grouped, twins  # noqa: E402
from tests.ops.triton.inputs import Made, close  # noqa: E402

EXPERTS, TOP, HIDDEN, WIDTH = 11, 3, 40, 24


@pytest.mark.parametrize("rows", [1, 3, 190])
def test_places_sort_pairs_by_expert_and_keep_the_order_of_equal_ones(rows: int) -> None:
    chosen, _ = twins.route(Made(rows).normal(rows, EXPERTS + 1), TOP, True)
    places, ends = grouped.sort_pairs(chosen, EXPERTS)
    routed = chosen[:, :TOP].flatten()
    assert torch.equal(places.long().argsort(), routed.argsort(stable=True))
    assert torch.equal(ends, torch.bincount(routed, minlength=EXPERTS).cumsum(0))


def test_rows_are_spread_to_their_places() -> None:
    made = Made(1)
    x, places = made.normal(5, HIDDEN), made.shuffled(15).int()
    out = grouped.spread_rows(x, places, TOP)
    assert torch.equal(out[places.long()], x.repeat_interleave(TOP, 0))


@pytest.mark.parametrize(("rows", "width"), [(1, 8), (7, 24)])
def test_one_half_gates_the_other(rows: int, width: int) -> None:
    x = Made(2).normal(rows, 2 * width)
    assert close(grouped.silu_gate(x), torch.nn.functional.silu(x[:, :width]) * x[:, width:])


@pytest.mark.parametrize("rows", [1, 6])
def test_a_mixture_of_many_is_the_mixture(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def by_group(x: torch.Tensor, weights: torch.Tensor, offs: torch.Tensor) -> torch.Tensor:
        """Torch's product on the CPU takes bfloat16 alone."""
        ends = offs.tolist()
        return torch.cat([x[a:b] @ w for a, b, w in zip([0, *ends], ends, weights, strict=False)])

    monkeypatch.setattr(torch, "_grouped_mm", by_group)
    made = Made(3)
    gate_up, down = (
        made.normal(EXPERTS, 2 * WIDTH, HIDDEN) / HIDDEN**0.5,
        made.normal(EXPERTS, HIDDEN, WIDTH) / WIDTH**0.5,
    )
    matrices = gate_up, down, made.normal(2 * WIDTH, HIDDEN), made.normal(HIDDEN, WIDTH)
    chosen, weights = twins.route(made.normal(rows, EXPERTS + 1), TOP, True)
    x, residual, norm = made.normal(rows, HIDDEN), made.normal(rows, HIDDEN), made.normal(HIDDEN)
    other = residual.clone()
    found = grouped.mixture_of_many(x, chosen, weights, *matrices, residual, norm, 1e-6)
    assert close(found, twins.mixture(x, chosen, weights, *matrices, other, norm, 1e-6), 1e-4)
    assert close(residual, other, 1e-4)
