"""What is kept goes last, within bounds, and for as long as was said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.base.errors import ConfigError
from stepwell.cache import keeps
from stepwell.cache.check import check
from stepwell.cache.config import CacheConfig
from stepwell.cache.directory import Directory
from stepwell.cache.kept import Label
from stepwell.cache.moves import Tier
from stepwell.cache.policy import POLICIES
from stepwell.cache.reset import reset
from stepwell.cache.shed import secure
from stepwell.cache.tree import RungKind
from tests.cache.builders import config, copy_down, directory, forget, join, keep, node_ending, numbers, rung_at

PROMPT = numbers(40)
OTHER = numbers(40, 1)
LABEL: Label = ("prompt", "", "a")


def pinned(shelf: Directory, tokens: int = 40, until: float = 100.0, rungs: int = 1) -> int:
    kept = keeps.keep(shelf, LABEL, "", PROMPT[:tokens], until, rungs)
    check(shelf)
    return kept


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_kept_goes_last_under_every_policy(policy: str) -> None:
    rules = CacheConfig(config().geometry, device_pages=22, policy=policy)
    shelf = Directory(rules)
    keep(shelf, PROMPT, 40, rungs=(40,), now=1.0)
    keep(shelf, OTHER, 40, rungs=(40,), now=9.0)
    assert pinned(shelf) == 40
    assert secure(shelf, 11, force=True)
    assert shelf.survey("", join(PROMPT, [1])).hit is not None and shelf.survey("", OTHER).device < 40
    check(shelf)


def test_nothing_is_refused_for_what_is_kept() -> None:
    shelf = directory(pages=22, host=0)
    keep(shelf, PROMPT, 40, rungs=(40,))
    assert pinned(shelf) == 40
    assert secure(shelf, 22, force=True)
    assert not shelf.keeps.known and shelf.keeps.pages == 0
    check(shelf, [], 0)


def test_it_may_be_copied_down_and_is_kept_there() -> None:
    shelf = directory(pages=22, host=36)
    keep(shelf, PROMPT, 40, rungs=(40,))
    pinned(shelf)
    copy_down(shelf)
    forget(shelf, PROMPT, Tier.DEVICE, 0, (40,))
    assert shelf.use(Tier.DEVICE).kept == 0 and shelf.use(Tier.HOST).kept == 11
    for seed in (1, 2, 3, 4, 5):
        keep(shelf, numbers(40, seed), 40, rungs=(40,), now=float(seed))
        copy_down(shelf)
    assert shelf.survey("", join(PROMPT, [1])).union == 40


def test_its_time_ends_it() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(40,))
    pinned(shelf, until=10.0)
    keeps.expire(shelf, 9.9)
    assert shelf.use(Tier.DEVICE).kept == 11
    keeps.expire(shelf, 10.0)
    assert shelf.use(Tier.DEVICE).kept == 0 and not shelf.keeps.known
    check(shelf)


def test_a_keep_of_the_same_label_takes_its_place() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    assert pinned(shelf, 40, until=10.0) == 40
    assert pinned(shelf, 20, until=50.0) == 20
    keeps.expire(shelf, 10.0)
    assert shelf.use(Tier.DEVICE).kept == 6
    assert keeps.unkeep(shelf, LABEL) == 20 and keeps.unkeep(shelf, LABEL) == 0
    check(shelf)


def test_keeps_of_one_path_end_one_by_one() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    keeps.keep(shelf, ("prompt", "", "short"), "", PROMPT[:20], 50.0)
    pinned(shelf, until=10.0)
    keeps.expire(shelf, 10.0)
    check(shelf)
    kept = {item.node.end for node in shelf.tree.nodes() for item in node.items() if item.kept}
    assert kept == {20} and shelf.keeps.pages == 6


def test_only_as_much_is_kept_as_its_share_has_room_for() -> None:
    shelf = directory(pages=14, host=0)  # seven pages may be kept
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    assert pinned(shelf) == 20
    assert shelf.keeps.pages == 6
    assert keeps.keep(shelf, ("prompt", "", "b"), "", PROMPT, 9.0) == 20, "what is kept already costs nothing more"
    check(shelf)


def test_each_tier_has_its_share() -> None:
    shelf = directory(pages=20, host=60)  # 10 and 30 pages
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    assert pinned(shelf) == 40, "the larger tier has room for it"
    assert shelf.use(Tier.DEVICE).kept == 6, "but the device keeps no more than its share"


def test_what_is_not_pinned_is_kept_below_the_device_alone() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(40,))
    path = [node_ending(shelf, PROMPT, 40)]
    assert keeps.keep_path(shelf, ("turn", "", "1"), path, 9.0, pin=False) == 40
    assert shelf.use(Tier.DEVICE).kept == 0
    copy_down(shelf)
    assert shelf.use(Tier.DEVICE).kept == 0 and shelf.use(Tier.HOST).kept == 11
    pinned(shelf, until=5.0)
    assert shelf.use(Tier.DEVICE).kept == 11
    keeps.expire(shelf, 5.0)
    assert shelf.use(Tier.DEVICE).kept == 0 and shelf.use(Tier.HOST).kept == 11
    check(shelf)


def test_who_ends_sooner_gives_way_unless_pinned() -> None:
    shelf = directory(pages=40, host=0)  # twenty pages may be kept
    keep(shelf, PROMPT, 40, rungs=(40,))
    keep(shelf, OTHER, 40, rungs=(40,))
    ends = {name: node_ending(shelf, tokens, 40) for name, tokens in (("one", PROMPT), ("two", OTHER))}
    assert keeps.keep_path(shelf, ("turn", "", "one"), [ends["one"]], 10.0, pin=False) == 40
    assert keeps.keep_path(shelf, ("turn", "", "two"), [ends["two"]], 5.0, pin=False) == 0, "it ends sooner itself"
    assert keeps.keep_path(shelf, ("turn", "", "two"), [ends["two"]], 20.0, pin=False) == 40
    assert list(shelf.keeps.known) == [("turn", "", "two")]
    assert pinned(shelf, until=30.0) == 40
    assert keeps.keep_path(shelf, ("turn", "", "two"), [ends["two"]], 90.0, pin=False) == 0, "pins stay"
    check(shelf)


def test_nothing_is_kept_that_could_not_be_resumed() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20,))
    assert pinned(shelf) == 20
    assert keeps.keep(shelf, ("prompt", "", "b"), "", OTHER, 9.0) == 0
    assert not Directory(CacheConfig(config().geometry, 20, keep_share=0.0)).keeps.most


def test_more_images_are_kept_where_asked_for() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    pinned(shelf, rungs=2)
    assert all(rung_at(shelf, PROMPT, at).image.kept for at in (20, 40))
    keeps.unkeep(shelf, LABEL)
    assert not any(rung_at(shelf, PROMPT, at).image.kept for at in (20, 40))


def test_splits_and_joins_carry_it() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(40,))
    pinned(shelf)
    keep(shelf, join(PROMPT[:12], OTHER[:8]), 20)
    assert {node.kv.kept for node in shelf.tree.nodes()} == {0, 1}
    reset_part = node_ending(shelf, join(PROMPT[:12], OTHER[:8]), 20)
    shelf.drop(reset_part.kv, Tier.DEVICE)
    check(shelf)
    keeps.unkeep(shelf, LABEL)
    assert not any(item.kept or item.guarded for node in shelf.tree.nodes() for item in node.items())
    check(shelf)


def test_it_ends_with_its_rung() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    pinned(shelf)
    forget(shelf, PROMPT, Tier.DEVICE, rungs=(40,))
    assert not shelf.keeps.known
    pinned(shelf)
    reset(shelf)
    assert not shelf.keeps.known and not shelf.keeps.pages
    check(shelf, [], 0)


def test_the_next_turn_takes_over_from_the_last() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 20, rungs=(20,), kind=RungKind.ROLLING)
    keeps.keep(shelf, ("turn", "", "1"), "", PROMPT[:20], 10.0)
    keep(shelf, PROMPT, 40, rungs=(40,))
    keeps.keep(shelf, ("turn", "", "2"), "", PROMPT, 20.0)
    keeps.follow_up(shelf, node_ending(shelf, PROMPT, 40), "turn", 20.0)
    assert list(shelf.keeps.known) == [("turn", "", "2")]
    check(shelf)


def test_the_share_is_a_share() -> None:
    with pytest.raises(ConfigError, match="--keep-share"):
        CacheConfig(config().geometry, 20, keep_share=1.5)


def test_what_may_go_last_in_host_grows_with_it() -> None:
    shelf = Directory(replace(config(64, 64), host_ready=20, keep_share=0.5))
    keeps = shelf.keeps
    assert (keeps.caps[Tier.HOST], keeps.most) == (10, 32), "the device's share is the larger one"
    shelf.widen(Tier.HOST, 20)
    shelf.settle(Tier.HOST)
    assert (keeps.caps[Tier.HOST], keeps.most) == (20, 32)
    wide = Directory(replace(config(8, 64), host_ready=20, keep_share=0.5))
    wide.widen(Tier.HOST, 44)
    assert (wide.keeps.caps[Tier.HOST], wide.keeps.most) == (32, 32)
