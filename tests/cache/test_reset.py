"""Emptying the cache while it serves."""

from __future__ import annotations

from stepwell.cache.check import check
from stepwell.cache.clear import reset
from stepwell.cache.moves import Tier
from tests.cache.builders import copy_down, directory, join, keep, node_ending, numbers

PROMPT = numbers(40)


def test_everything_goes_from_every_tier() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    keep(shelf, join(PROMPT[:12], numbers(20, 1)), rungs=(32,))
    copy_down(shelf)
    keep(shelf, numbers(8, 2), salt="other")
    used = {tier: shelf.pools[tier].total - shelf.pools[tier].free for tier in shelf.pools}
    assert reset(shelf) == used and all(used.values())
    assert all(pool.free == pool.total for pool in shelf.pools.values())
    assert shelf.survey("", PROMPT).union == 0
    check(shelf, [], 0)


def test_only_the_named_salt_goes() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(40,))
    keep(shelf, PROMPT, 40, rungs=(40,), salt="other")
    reset(shelf, "other")
    assert shelf.survey("other", PROMPT).union == 0
    assert shelf.survey("", PROMPT).hit is None and shelf.survey("", PROMPT).device == 40
    assert shelf.survey("", join(PROMPT, numbers(8, 3))).hit is not None
    check(shelf, [], 0)


def test_what_is_leased_stays_and_can_go_later() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    lease = shelf.lease(node_ending(shelf, PROMPT, 20).kv, Tier.DEVICE)
    reset(shelf)
    assert shelf.survey("", PROMPT).device == 20
    check(shelf)
    shelf.release(lease)
    assert reset(shelf) == {Tier.DEVICE: 5, Tier.HOST: 0}
    assert reset(shelf) == {Tier.DEVICE: 0, Tier.HOST: 0}
    check(shelf, [], 0)
