"""Scales of keys and values in FP8: what they cover, and what they must be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from stepwell.base.errors import ConfigError  # noqa: E402
from stepwell.model.kv_scales import KvScales  # noqa: E402


def pages(largest: list[float]) -> torch.Tensor:
    """Two pages of four tokens whose heads have these largest magnitudes, the second one negative."""
    found = torch.zeros(2, 4, len(largest), 8)
    for head, value in enumerate(largest):
        found[0, 1, head, 3], found[1, 2, head, 5] = value / 3, -value
    return found


@given(st.lists(st.floats(2.0**-7, 2.0**22, width=32), min_size=1, max_size=4))
def test_the_largest_value_lies_within_half_of_the_range_and_beyond_a_quarter(largest: list[float]) -> None:
    made = KvScales.covering([pages(largest)], [pages(largest[::-1])])
    for scales, values in ((made.keys, largest), (made.values, largest[::-1])):
        stored = torch.tensor([values]).abs() / scales
        assert ((stored <= 224) & (stored > 112)).all()
    assert made.sound(1, len(largest))


@given(st.one_of(st.floats(2.0**-126, 2.0**-8, width=32), st.floats(2.0**23, 2.0**126, width=32)))
def test_scales_stay_where_float16_holds_them(largest: float) -> None:
    """Beyond, what is stored loses digits, or is clamped: a scale that the model's type rounds to zero would make infinities of it."""
    made = KvScales.covering([pages([largest])], [pages([1.0])])
    assert made.sound(1, 1)
    assert made.keys.item() == (2.0**-14 if largest < 1 else 2.0**15)
    assert made.keys.half().item() == made.keys.item()


def test_a_head_that_is_always_zero_has_a_scale_of_one() -> None:
    made = KvScales.covering([pages([0.0, 224.0, 225.0])], [pages([0.0, 112.0, 7.0])])
    assert made.keys.tolist() == [[1.0, 1.0, 2.0]]
    assert made.values.tolist() == [[1.0, 0.5, 0.03125]]
    assert made.exponents == (-5, 1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_values_that_are_not_finite_are_refused(value: float) -> None:
    with pytest.raises(ConfigError, match="not finite"):
        KvScales.covering([pages([1.0])], [pages([value])])


@pytest.mark.parametrize(
    "wrong",
    [[[3.0]], [[0.0]], [[-2.0]], [[float("inf")]], [[float("nan")]], [[1.0, 1.0]], [1.0], [[2.0**-15]], [[2.0**16]]],
)
def test_scales_that_are_no_powers_of_two_are_not_sound(wrong: list[list[float]]) -> None:
    right = torch.ones(1, 1)
    assert KvScales(right, right * 0.25).sound(1, 1)
    assert not KvScales(right, torch.tensor(wrong)).sound(1, 1)
    assert not KvScales(right.double(), right).sound(1, 1)
