"""Memory in which the least recently used goes first."""

from __future__ import annotations

import random

from stepwell.replay.peers.pool import Pool


def test_what_was_used_last_stays_longest() -> None:
    pool = Pool(4)
    assert all(pool.add(key, 1) for key in (1, 2, 3, 4))
    pool.touch((1,))
    assert pool.add(5, 2)
    assert [key for key in range(1, 6) if key in pool] == [1, 4, 5]
    pool.check(private=0)


def test_pinned_entries_are_not_evicted_and_come_back_as_the_latest() -> None:
    pool = Pool(3)
    assert all(pool.add(key, 1) for key in (1, 2, 3))
    pool.pin((1,))
    assert pool.take(2)
    assert [key for key in (1, 2, 3) if key in pool] == [1]
    assert not pool.take(1), "nothing is taken where there is too little"
    pool.give(2)
    assert pool.add(4, 1)
    pool.unpin((1,))
    assert pool.add(5, 2)
    assert [key for key in (1, 4, 5) if key in pool] == [1, 5]
    pool.check(private=0)


def test_an_unpin_without_use_changes_no_order() -> None:
    pool = Pool(2)
    assert all(pool.add(key, 1) for key in (1, 2))
    pool.pin((1,))
    pool.unpin((1,), used=False)
    assert pool.add(3, 1)
    assert 1 not in pool
    assert 2 in pool


def test_every_unit_is_accounted_for_whatever_happens() -> None:
    dice, pool, private = random.Random(3), Pool(20), 0
    pinned: list[int] = []
    for _ in range(3000):
        key, units = dice.randrange(30), dice.randrange(1, 4)
        match dice.randrange(6):
            case 0:
                pool.add(key, units)
            case 1 if key in pool:
                pool.pin((key,))
                pinned.append(key)
            case 2 if pinned:
                pool.unpin((pinned.pop(dice.randrange(len(pinned))),), used=dice.random() < 0.5)
            case 3 if pool.take(units):
                private += units
            case 4 if private >= units and pool.publish(key, units):
                private -= units
                pinned.append(key)
            case 5 if private:
                pool.give(1)
                private -= 1
        pool.check(private)
