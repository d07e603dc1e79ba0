"""What each policy lets go first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.base.errors import ConfigError
from stepwell.cache.directory import Directory
from stepwell.cache.evict.policy import BranchReuse, Regret
from stepwell.cache.moves import Tier
from stepwell.cache.publish import touch
from stepwell.replay.eviction import DEFAULT, POLICIES, SAID, policy_named
from tests.cache.builders import config, join, keep, node_ending, numbers, rung_at

LONG = numbers(80, 7)


def shelf_under(policy: str, pages: int = 64) -> Directory:
    return Directory(replace(config(pages, 0), policy=POLICIES[policy]))


def goes(shelf: Directory) -> list[str]:
    """What would go from the device, in order."""
    out = []
    while (item := shelf.candidates.drops[Tier.DEVICE].pop()) is not None:
        out.append(f"{item.what} {item.node.end}")
        shelf.drop(item, Tier.DEVICE)
    return out


def resume(shelf: Directory, prompt_seed: int, length: int, now: float) -> None:
    """A request that goes on from the rung at `length`."""
    prompt = numbers(length + 4, prompt_seed)
    touch(shelf, shelf.survey("", prompt), rung_at(shelf, prompt, length), length, now)


def test_every_policy_is_described_and_known_by_its_name() -> None:
    assert set(SAID) == set(POLICIES) and DEFAULT in POLICIES
    with pytest.raises(ConfigError, match="ladder, lru"):
        policy_named("mru")


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


def test_a_branch_that_was_left_goes_before_an_older_line() -> None:
    shelf = shelf_under("ladder")
    keep(shelf, numbers(20, 1), 20, rungs=(20,), now=5.0)
    keep(shelf, LONG, 60, rungs=(20, 60), now=6.0)
    keep(shelf, join(LONG[:20], numbers(20, 2)), 40, rungs=(40,), now=9.0)
    shelf.candidates.missed(100, 100)
    gone = goes(shelf)
    assert gone.index("kv 60") < gone.index("kv 20")
    assert gone.index("kv 60") < gone.index("kv 40")


def test_whoever_goes_back_to_a_branch_makes_up_for_it_and_is_learnt_from() -> None:
    shelf = shelf_under("ladder")
    keep(shelf, LONG, 60, rungs=(20, 60), now=6.0)
    keep(shelf, join(LONG[:20], numbers(20, 2)), 40, rungs=(40,), now=9.0)
    assert node_ending(shelf, LONG, 60).left
    before = shelf.branches.returned
    touch(shelf, shelf.survey("", join(LONG[:60], [1])), rung_at(shelf, LONG, 60), 60, 10.0)
    assert not node_ending(shelf, LONG, 60).left and shelf.branches.returned == before + 1


def test_how_soon_a_left_branch_goes_is_learnt() -> None:
    sharing, compacting = BranchReuse(), BranchReuse()
    for _ in range(80):
        now, then = sharing.leave(), compacting.leave()
        sharing.come_back()
    assert (now, then) == (1, 4)


def test_lru_leaves_no_branch() -> None:
    shelf = shelf_under("lru")
    keep(shelf, LONG, 60, rungs=(20, 60), now=6.0)
    keep(shelf, join(LONG[:20], numbers(20, 2)), 40, rungs=(40,), now=9.0)
    assert not node_ending(shelf, LONG, 60).left


@pytest.mark.parametrize("name", POLICIES)
def test_a_rung_that_leaves_a_wide_gap_outlasts_the_kv_of_its_line_until_kv_is_missed(name: str) -> None:
    def last_of(thrashes: bool) -> str:
        shelf = shelf_under(name)
        keep(shelf, LONG, 80, rungs=(40,), now=1.0)
        keep(shelf, LONG, 80, rungs=(20, 60, 80), now=2.0)
        shelf.candidates.drops[Tier.DEVICE].items()  # ranked while nothing was missed
        if thrashes:
            shelf.candidates.missed(100, 50)
        return goes(shelf)[0]

    assert last_of(thrashes=False) == "kv 80"
    assert last_of(thrashes=True).startswith("image"), "forks that may come give way to prompts that do"


def test_regret_is_felt_for_hundreds_of_prompts_and_passes() -> None:
    regret = Regret()
    regret.saw(1000, 0)
    assert not regret.thrashes
    regret.saw(1000, 900)
    for _ in range(100):
        regret.saw(1000, 0)
    assert regret.thrashes
    for _ in range(500):
        regret.saw(1000, 0)
    assert not regret.thrashes


def test_an_admission_says_what_kv_was_missed() -> None:
    shelf = shelf_under("ladder")
    keep(shelf, LONG, 60, rungs=(60,), now=1.0)
    goes(shelf)
    found = shelf.survey("", LONG)
    assert (found.matched, found.union) == (60, 0)
    touch(shelf, found, None, 0, 2.0)
    assert shelf.candidates.regret.evicted == 60 and shelf.candidates.regret.thrashes
