"""Changes to single logits, and scores that are always finite."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from stepwell.ops.adjust import add_bias, penalise, repeat_less, score  # noqa: E402


def test_repetition_lowers_each_seen_token_once_whatever_its_sign() -> None:
    row = torch.tensor([2.0, -2.0, 1.0, 0.0])
    repeat_less(row, torch.tensor([True, True, False, True]), 2.0)
    assert row.tolist() == [1.0, -4.0, 1.0, 0.0]


def test_presence_counts_once_and_frequency_each_time() -> None:
    row = torch.zeros(4)
    penalise(row, torch.tensor([0.0, 2.0, 0.0, 1.0]), presence=1.0, frequency=0.25)
    assert row.tolist() == [0.0, -1.5, 0.0, -1.25]


def test_bias_is_added_to_its_token() -> None:
    row = torch.ones(4)
    add_bias(row, torch.tensor([0, 3]), torch.tensor([2.0, float("-inf")], dtype=torch.float64))
    assert row.tolist() == [3.0, 1.0, 1.0, float("-inf")]


def test_scores_are_log_softmax_and_rivals_come_likeliest_first() -> None:
    logits = torch.tensor([[0.0, math.log(2.0), math.log(5.0)]])
    ((own, top),) = score(logits, torch.tensor([1]), 2).rows()
    assert own == pytest.approx(math.log(2 / 8))
    assert [token for token, _ in top] == [2, 1]
    assert [value for _, value in top] == pytest.approx([math.log(5 / 8), math.log(2 / 8)])
    assert score(logits, torch.tensor([0]), 0).rows()[0][1] == []
    assert len(score(logits, torch.tensor([0]), 20).rows()[0][1]) == 3


@pytest.mark.parametrize("value", [float("-inf"), float("nan"), float("inf")])
def test_scores_are_finite_whatever_the_logits(value: float) -> None:
    ((own, top),) = score(torch.tensor([[0.0, value, 1.0]]), torch.tensor([1]), 3).rows()
    assert math.isfinite(own) and all(math.isfinite(v) for _, v in top)
