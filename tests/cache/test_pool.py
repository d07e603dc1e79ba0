"""Free slots: each is taken once, and given back once."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.cache.slots import Pool


def test_a_new_pool_gives_slots_in_order() -> None:
    pool = Pool(5)
    assert pool.take(3).tolist() == [0, 1, 2] and pool.free == 2
    assert pool.take(2).tolist() == [3, 4] and pool.free == 0


def test_a_run_given_back_comes_out_together_and_in_order() -> None:
    pool = Pool(10)
    pool.take(10)
    pool.give(np.array([7, 2], np.int32))
    pool.give(np.array([4, 5, 6], np.int32))
    assert pool.take(3).tolist() == [4, 5, 6]
    assert pool.take(2).tolist() == [7, 2]


def test_taking_nothing_is_fine_and_taking_too_much_is_not() -> None:
    pool = Pool(2)
    assert len(pool.take(0)) == 0
    with pytest.raises(AssertionError, match="3 slots wanted, 2 of 2 free"):
        pool.take(3)


def test_giving_back_more_than_was_taken_is_noticed() -> None:
    pool = Pool(2)
    with pytest.raises(AssertionError, match="1 slots too many"):
        pool.give(np.array([0], np.int32))


def test_what_is_taken_is_the_takers_own_copy() -> None:
    pool = Pool(4)
    mine = pool.take(2)
    pool.give(mine.copy())
    pool.take(1)
    assert mine.tolist() == [0, 1]


@pytest.mark.parametrize("used", [[0, 1], [0, 1, 1], [0, 1, 3], [0, 1, 2, 9]])
def test_check_finds_slots_that_are_lost_doubled_or_foreign(used: list[int]) -> None:
    pool = Pool(4)
    pool.take(3)
    with pytest.raises(AssertionError, match="neither free nor used exactly once"):
        pool.check(np.array(used, np.int32))


def test_check_passes_where_every_slot_is_free_or_used() -> None:
    pool = Pool(4)
    pool.take(3)
    pool.check(np.array([2, 0, 1], np.int32))


def test_a_pool_that_widens_gives_the_new_slots_as_well() -> None:
    pool = Pool(7, 2)
    assert (pool.total, pool.free, pool.most) == (2, 2, 7)
    first = pool.take(1)
    pool.widen(4)
    assert (pool.total, pool.free) == (6, 5)
    assert sorted(pool.take(5).tolist()) == [1, 2, 3, 4, 5] and first.tolist() == [0]
    pool.check(np.arange(6, dtype=np.int32))
    with pytest.raises(AssertionError, match="2 slots more than 6, of 7 at most"):
        pool.widen(2)


def test_a_pool_that_widens_no_more_has_no_more_to_come() -> None:
    pool = Pool(7, 2)
    pool.take(1)
    pool.settle()
    assert (pool.total, pool.free, pool.most) == (2, 1, 2)
    with pytest.raises(AssertionError, match="1 slots more than 2, of 2 at most"):
        pool.widen(1)
    pool.check(np.array([0], np.int32))
