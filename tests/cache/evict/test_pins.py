"""What is pinned goes last, within bounds, and for as long as was said."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.base.errors import ConfigError
from stepwell.cache import hints
from stepwell.cache.check import check
from stepwell.cache.clear import reset
from stepwell.cache.config import CacheConfig
from stepwell.cache.directory import Directory
from stepwell.cache.evict import pins
from stepwell.cache.evict.make_room import free_pages
from stepwell.cache.evict.pins import Label
from stepwell.cache.moves import Tier
from stepwell.replay.eviction import POLICIES
from tests.cache.builders import config, copy_down, directory, forget, join, keep, node_ending, numbers

PROMPT = numbers(40)
OTHER = numbers(40, 1)
LABEL: Label = ("", "a")


def pinned(shelf: Directory, tokens: int = 40, until: float = 100.0) -> int:
    kept = hints.pin(shelf, LABEL, PROMPT[:tokens], until)
    check(shelf)
    return kept


@pytest.mark.parametrize("policy", POLICIES)
def test_what_is_pinned_goes_last_under_every_policy(policy: str) -> None:
    rules = CacheConfig(config().geometry, device_pages=22, policy=POLICIES[policy])
    shelf = Directory(rules)
    keep(shelf, PROMPT, 40, rungs=(40,), now=1.0)
    keep(shelf, OTHER, 40, rungs=(40,), now=9.0)
    assert pinned(shelf) == 40
    assert free_pages(shelf, 11, force=True)
    assert shelf.survey("", join(PROMPT, [1])).hit is not None and shelf.survey("", OTHER).device < 40
    check(shelf)


def test_nothing_is_refused_for_what_is_pinned() -> None:
    shelf = directory(pages=22, host=0)
    keep(shelf, PROMPT, 40, rungs=(40,))
    assert pinned(shelf) == 40
    assert free_pages(shelf, 22, force=True)
    assert not shelf.pins.known and shelf.pins.pages == 0
    check(shelf, [], 0)


def test_it_may_be_copied_down_and_stays_there() -> None:
    shelf = directory(pages=22, host=36)
    keep(shelf, PROMPT, 40, rungs=(40,))
    pinned(shelf)
    copy_down(shelf)
    forget(shelf, PROMPT, Tier.DEVICE, 0, (40,))
    assert shelf.use(Tier.DEVICE).pinned == 0 and shelf.use(Tier.HOST).pinned == 11
    for seed in (1, 2, 3, 4, 5):
        keep(shelf, numbers(40, seed), 40, rungs=(40,), now=float(seed))
        copy_down(shelf)
    assert shelf.survey("", join(PROMPT, [1])).union == 40


def test_its_time_ends_it() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(40,))
    pinned(shelf, until=10.0)
    hints.expire(shelf, 9.9)
    assert shelf.use(Tier.DEVICE).pinned == 11
    hints.expire(shelf, 10.0)
    assert shelf.use(Tier.DEVICE).pinned == 0 and not shelf.pins.known
    check(shelf)


def test_a_pin_of_the_same_label_takes_its_place() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    assert pinned(shelf, 40, until=10.0) == 40
    assert pinned(shelf, 20, until=50.0) == 20
    hints.expire(shelf, 10.0)
    assert shelf.use(Tier.DEVICE).pinned == 6
    assert hints.unpin(shelf, LABEL) == 20 and hints.unpin(shelf, LABEL) == 0
    check(shelf)


def test_pins_of_one_path_end_one_by_one() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    hints.pin(shelf, ("", "short"), PROMPT[:20], 50.0)
    pinned(shelf, until=10.0)
    hints.expire(shelf, 10.0)
    check(shelf)
    left = {item.node.end for node in shelf.tree.nodes() for item in node.items() if item.pins}
    assert left == {20} and shelf.pins.pages == 6


def test_only_as_much_is_pinned_as_its_share_has_room_for() -> None:
    shelf = directory(pages=14, host=0)  # seven pages may be pinned
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    assert pinned(shelf) == 20
    assert shelf.pins.pages == 6
    assert hints.pin(shelf, ("", "b"), PROMPT, 9.0) == 20, "what is pinned already costs nothing more"
    check(shelf)


def test_a_tenant_pins_no_more_than_its_share_of_what_may_be_pinned() -> None:
    shelf = Directory(replace(config(pages=88), tenant_share=0.25))  # 44 pages may be pinned, 11 by one tenant
    for salt in ("one:x", "one:y", "two"):
        keep(shelf, PROMPT, 40, rungs=(40,), salt=salt)
    assert hints.pin(shelf, ("one:x", "a"), PROMPT, 9.0) == 40
    assert hints.pin(shelf, ("one:y", "a"), PROMPT, 9.0) == 0, "a key has no more for naming more salts"
    assert hints.pin(shelf, ("two", "a"), PROMPT, 9.0) == 40, "what one has taken is not what another has left"
    check(shelf)
    hints.unpin(shelf, ("one:x", "a"))
    assert hints.pin(shelf, ("one:y", "a"), PROMPT, 9.0) == 40
    check(shelf)


def test_pins_are_counted_by_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "MOST_PINS", 4)
    shelf = Directory(replace(config(pages=400), tenant_share=0.5))
    for salt in ("one", "two"):
        keep(shelf, PROMPT, 40, rungs=(20, 40), salt=salt)
    assert [hints.pin(shelf, ("one", name), PROMPT, 9.0) for name in "abc"] == [40, 40, 0]
    assert [hints.pin(shelf, ("two", name), PROMPT, 9.0) for name in "ab"] == [40, 40]
    check(shelf)


def test_each_tier_has_its_share() -> None:
    shelf = directory(pages=20, host=60)  # 10 and 30 pages
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    assert pinned(shelf) == 40, "the larger tier has room for it"
    assert shelf.use(Tier.DEVICE).pinned == 6, "but on the device no more goes last than its share"


def test_nothing_is_pinned_that_could_not_be_resumed() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20,))
    assert pinned(shelf) == 20
    assert hints.pin(shelf, ("", "b"), OTHER, 9.0) == 0


def test_splits_and_joins_carry_it() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(40,))
    pinned(shelf)
    keep(shelf, join(PROMPT[:12], OTHER[:8]), 20)
    assert {node.kv.pins for node in shelf.tree.nodes()} == {0, 1}
    reset_part = node_ending(shelf, join(PROMPT[:12], OTHER[:8]), 20)
    shelf.drop(reset_part.kv, Tier.DEVICE)
    check(shelf)
    hints.unpin(shelf, LABEL)
    assert not any(item.pins or item.guarded for node in shelf.tree.nodes() for item in node.items())
    check(shelf)


def test_it_ends_with_its_rung() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    pinned(shelf)
    forget(shelf, PROMPT, Tier.DEVICE, rungs=(40,))
    assert not shelf.pins.known
    pinned(shelf)
    reset(shelf)
    assert not shelf.pins.known and not shelf.pins.pages
    check(shelf, [], 0)


@pytest.mark.parametrize("share", [0.0, 1.5, -1.0, float("nan")])
def test_the_share_is_a_share(share: float) -> None:
    with pytest.raises(ConfigError, match="--tenant-share"):
        CacheConfig(config().geometry, 20, tenant_share=share)


def test_what_may_go_last_in_host_grows_with_it() -> None:
    shelf = Directory(replace(config(64, 64), host_ready=20))
    kept = shelf.pins
    assert (kept.caps[Tier.HOST], kept.most) == (10, 32), "the device's share is the larger one"
    shelf.widen(Tier.HOST, 20)
    shelf.settle(Tier.HOST)
    assert (kept.caps[Tier.HOST], kept.most) == (20, 32)
    wide = Directory(replace(config(8, 64), host_ready=20))
    wide.widen(Tier.HOST, 44)
    assert (wide.pins.caps[Tier.HOST], wide.pins.most) == (32, 32)
