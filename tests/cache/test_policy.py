"""What each policy lets go first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.base.errors import ConfigError
from stepwell.cache.content import touch
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.policy import DEFAULT, POLICIES, SAID, policy_named, spared
from tests.cache.builders import config, keep, node_ending, numbers, rung_at

LONG = numbers(80, 7)


def shelf_under(policy: str, pages: int = 64) -> Directory:
    return Directory(replace(config(pages, 0), policy=policy))


def goes(shelf: Directory) -> list[str]:
    """What would go from the device, in order."""
    out = []
    while (item := shelf.offers.drops[Tier.DEVICE].pop()) is not None:
        out.append(f"{item.what} {item.node.end}")
        shelf.drop(item, Tier.DEVICE)
    return out


def resume(shelf: Directory, prompt_seed: int, length: int, now: float) -> None:
    """A request that goes on from the rung at `length`."""
    prompt = numbers(length + 4, prompt_seed)
    touch(shelf, shelf.survey("", prompt), rung_at(shelf, prompt, length), length, now)


def test_every_policy_is_described_and_known_by_its_name() -> None:
    assert set(SAID) == set(POLICIES) and DEFAULT in POLICIES
    with pytest.raises(ConfigError, match="ladder, lru, slru, value"):
        policy_named("mru", 4)


@pytest.mark.parametrize("name", POLICIES)
def test_under_every_policy_kv_goes_leaf_first(name: str) -> None:
    shelf = shelf_under(name)
    keep(shelf, LONG, 60, rungs=(20, 40, 60), now=1.0)
    ends = [int(e.split()[1]) for e in goes(shelf) if e.startswith("kv")]
    assert ends[0] == 60 and ends == sorted(ends, reverse=True)


def test_lru_does_not_care_what_a_rung_is_good_for() -> None:
    shelf = shelf_under("lru")
    for now, position in enumerate((8, 20, 32, 48)):
        keep(shelf, LONG, 48, rungs=(position,), now=10.0 + now)
    keep(shelf, numbers(20, 1), 20, rungs=(20,), now=1.0)
    assert not rung_at(shelf, LONG, 8).superseded
    assert set(goes(shelf)[:2]) == {"image 20", "kv 20"}, "the other conversation, unused for longest"


def test_slru_lets_what_was_used_again_age_slower() -> None:
    shelf = shelf_under("slru")
    keep(shelf, numbers(20, 1), 20, rungs=(20,), now=1.0)
    resume(shelf, 1, 20, now=2.0)
    keep(shelf, numbers(24, 2), 24, rungs=(24,), now=3.0)
    keep(shelf, numbers(28, 3), 28, rungs=(28,), now=4.0)
    assert set(goes(shelf)[:2]) == {"image 24", "kv 24"}


def test_slru_lets_go_of_what_was_used_again_long_ago() -> None:
    shelf = shelf_under("slru")
    keep(shelf, numbers(20, 1), 20, rungs=(20,), now=1.0)
    resume(shelf, 1, 20, now=2.0)
    keep(shelf, numbers(24, 2), 24, rungs=(24,), now=99.0)
    keep(shelf, numbers(28, 3), 28, rungs=(28,), now=100.0)
    assert set(goes(shelf)[:2]) == {"image 20", "kv 20"}


def test_value_weighs_what_an_image_spares() -> None:
    shelf = shelf_under("value")
    keep(shelf, LONG, 60, rungs=(40, 44), now=1.0)
    keep(shelf, numbers(60, 3), 60, rungs=(40,), now=1.0)
    keep(shelf, numbers(20, 4), 20, now=2.0)
    assert spared(node_ending(shelf, LONG, 44)) == 4
    images = [e for e in goes(shelf) if e.startswith("image")]
    assert images[0] == "image 44", "four tokens are soon computed again"


def test_value_counts_uses() -> None:
    shelf = shelf_under("value")
    keep(shelf, numbers(20, 1), 20, rungs=(20,), now=0.0)
    for _ in range(8):
        resume(shelf, 1, 20, now=0.0)
    keep(shelf, numbers(20, 2), 20, rungs=(20,), now=1.0)
    keep(shelf, numbers(28, 3), 28, rungs=(28,), now=3.0)
    first = shelf.offers.drops[Tier.DEVICE].pop()
    assert first is not None and first.node.used == 1.0, "younger, but used once"
