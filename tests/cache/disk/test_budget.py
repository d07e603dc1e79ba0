"""A bucket that fills at a steady rate."""

from __future__ import annotations

from stepwell.cache.disk.archive import WriteBudget


def test_without_a_rate_anything_goes() -> None:
    budget = WriteBudget()
    budget.spend(10**9, 0.0)
    assert budget.allows(0.0)


def test_what_is_overdrawn_has_to_be_waited_for() -> None:
    budget = WriteBudget(rate=10.0, burst=20.0, level=20.0)
    budget.spend(50, 0.0)
    assert not budget.allows(2.9) and not budget.allows(3.0) and budget.allows(3.1)


def test_no_more_is_saved_up_than_the_burst() -> None:
    budget = WriteBudget(rate=10.0, burst=20.0)
    budget.spend(30, 1000.0)
    assert not budget.allows(1000.9) and budget.allows(1001.1)


def test_time_that_goes_backwards_takes_nothing_away() -> None:
    budget = WriteBudget(rate=10.0, burst=20.0, level=5.0, at=100.0)
    assert budget.allows(50.0)
