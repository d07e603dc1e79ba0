"""No tenant takes more than its share of a tier while others want it, and all of it while nobody does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepwell.cache.check import check
from stepwell.cache.directory import Directory
from stepwell.cache.disk.names import tenant_of
from stepwell.cache.evict.make_room import free_pages
from stepwell.cache.evict.policy import LadderPolicy
from stepwell.cache.evict.ranking import Latest
from stepwell.cache.evict.tenants import FairRanking, Tenants
from stepwell.cache.moves import Tier
from stepwell.cache.tree import Tree
from tests.cache.builders import config, copy_down, keep, numbers

EACH = 11
"""Pages of one prompt of 40 tokens and the image at its end."""


def flood(shelf: Directory, salt: str, count: int, first: int, now: float) -> None:
    """`count` prompts that nobody repeats, each in whatever room can be made for it."""
    for number in range(first, first + count):
        assert free_pages(shelf, EACH, force=True)
        keep(shelf, numbers(40, number), 40, rungs=(40,), salt=salt, now=now + number)
        check(shelf)


def held(shelf: Directory, salt: str, tier: Tier = Tier.DEVICE) -> int:
    """Slots under one salt."""
    found = (item for node in shelf.tree.nodes() for item in node.items() if item.tenant == salt)
    return sum(item.size(tier) for item in found)


def test_who_sends_much_displaces_nobody_within_its_share() -> None:
    shelf = Directory(replace(config(pages=8 * EACH, host=0), tenant_share=0.5))
    keep(shelf, numbers(40), 40, rungs=(40,), salt="quiet", now=1.0)
    flood(shelf, "loud", 30, 100, now=10.0)
    assert held(shelf, "quiet") == EACH and held(shelf, "loud") == 7 * EACH, "what nobody wants is nobody's share"


def test_without_a_share_the_last_use_decides() -> None:
    shelf = Directory(config(pages=8 * EACH, host=0))
    keep(shelf, numbers(40), 40, rungs=(40,), salt="quiet", now=1.0)
    flood(shelf, "loud", 30, 100, now=10.0)
    assert held(shelf, "quiet") == 0


def test_others_take_what_is_above_the_share_and_no_more() -> None:
    shelf = Directory(replace(config(pages=8 * EACH, host=0), tenant_share=0.5))
    flood(shelf, "first", 8, 100, now=10.0)
    assert held(shelf, "first") == 8 * EACH
    flood(shelf, "second", 30, 200, now=20.0)
    assert min(held(shelf, "first"), held(shelf, "second")) >= 3 * EACH, (
        "a run of KV goes as a whole, so up to one less"
    )
    assert held(shelf, "first") <= 4 * EACH


def test_of_one_tenant_the_least_valuable_goes_first() -> None:
    shelf = Directory(replace(config(pages=8 * EACH, host=0), tenant_share=0.25))
    flood(shelf, "first", 8, 100, now=10.0)
    shelf.survey("first", numbers(40, 100)).path[-1].used = 999.0
    flood(shelf, "second", 1, 300, now=20.0)
    assert shelf.survey("first", numbers(40, 100)).device == 40, "though it came first"
    assert shelf.survey("first", numbers(40, 101)).device < 40


def test_salts_of_one_key_are_one_tenant() -> None:
    assert tenant_of("key:one") == tenant_of("key:two") == "key" != tenant_of("other")
    shelf = Directory(replace(config(pages=8 * EACH, host=0), tenant_share=0.5))
    keep(shelf, numbers(40), 40, rungs=(40,), salt="quiet", now=1.0)
    for number in range(30):
        flood(shelf, f"key:{number}", 1, 100 + number, now=10.0)
    assert held(shelf, "quiet") == EACH


def test_it_holds_in_host_too() -> None:
    shelf = Directory(replace(config(pages=8 * EACH, host=8 * EACH), tenant_share=0.5))
    keep(shelf, numbers(40), 40, rungs=(40,), salt="quiet", now=1.0)
    copy_down(shelf)
    for number in range(30):
        flood(shelf, "loud", 1, 100 + number, now=10.0)
        copy_down(shelf)
    assert held(shelf, "quiet") == EACH or held(shelf, "quiet", Tier.HOST) == EACH


def test_a_share_of_a_tier_that_grows_grows() -> None:
    shelf = Directory(replace(config(pages=8 * EACH, host=8 * EACH), host_ready=2 * EACH, tenant_share=0.5))
    keep(shelf, numbers(40), 40, rungs=(40,), salt="a", now=1.0)
    keep(shelf, numbers(40, 1), 40, rungs=(40,), salt="a", now=2.0)
    copy_down(shelf)
    assert shelf.tenants is not None and shelf.tenants.greediest(Tier.HOST) == ("a",)
    shelf.widen(Tier.HOST, 6 * EACH)
    assert shelf.tenants.greediest(Tier.HOST) == ()
    check(shelf)


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_counts_and_candidates_hold_whatever_happens(share: float) -> None:
    """Random prompts of many tenants, with heads in common, in a cache that is far too small."""
    rng = np.random.default_rng(7)
    shelf = Directory(replace(config(pages=6 * EACH, host=9 * EACH), tenant_share=share))
    for turn in range(300):
        head, tail = numbers(20, int(rng.integers(3))), numbers(20, 50 + int(rng.integers(9)))
        assert free_pages(shelf, EACH + 3, force=True)
        keep(shelf, np.concatenate([head, tail]), 40, rungs=(20, 40), salt=f"{rng.integers(5)}:x", now=float(turn))
        if rng.random() < 0.5:
            copy_down(shelf)
        check(shelf)
    while shelf.room().free < 6 * EACH:
        assert free_pages(shelf, 6 * EACH, force=True)
    check(shelf)
    assert shelf.tenants is not None and not shelf.tenants.held[Tier.DEVICE]


def test_nothing_is_remembered_of_tenants_that_have_gone() -> None:
    shelf = Directory(replace(config(pages=8 * EACH, host=0), tenant_share=0.5))
    for number in range(300):
        flood(shelf, f"key{number}", 1, number, now=0.0)
    ranking = shelf.candidates.drops[Tier.DEVICE]
    assert isinstance(ranking, FairRanking)
    assert len(ranking._of) <= 8 and shelf.tenants is not None and len(shelf.tenants.held[Tier.DEVICE]) <= 8


def test_a_tenant_whose_candidates_have_gone_is_forgotten() -> None:
    """`--tenant-share` with ever new salts: what the order of all finds gone must go from the tenant's own order too."""
    tree, live = Tree(4), set()
    tenants = Tenants({Tier.HOST: 100}, 0.5)
    order = FairRanking(
        Tier.HOST, lambda item: item in live, LadderPolicy(), Latest(), lambda item: False, lambda: None, tenants
    )
    for number in range(100):
        item = tree.attach(tree.root(f"t{number}", 0.0), numbers(4), float(number)).kv
        live.add(item)
        order.add(item, 10)
        live.discard(item)
        assert order.pop() is None
    assert not order._of, f"{len(order._of)} tenants are remembered for ever, each with its items"
