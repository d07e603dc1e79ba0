"""What is shown of the paths that were used last."""

from __future__ import annotations

from stepwell.cache.clear import reset
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.explain import GONE, PathUse, RecentPaths, RungSeen, ladders
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.cache.tree import Node
from tests.cache.builders import copy_down, directory, forget, join, keep, numbers, state_of

OUTCOME = AdmissionOutcome("a", 40, 16, 8, 0, 16, 24, 16, Tier.HOST, Reason.COMPLETE)
PROMPT = numbers(48)


def tip_of(shelf: Directory, end: int, salt: str = "") -> Node:
    found = shelf.survey(salt, PROMPT)
    return next(node for node in found.path if node.end == end)


def noted(shelf: Directory, end: int, trails: RecentPaths, now: float = 0.0, salt: str = "") -> None:
    trails.left(tip_of(shelf, end, salt), PathUse(salt, f"s{end}", OUTCOME, now))


def test_rungs_and_kv_are_told_by_the_tiers_that_they_are_in() -> None:
    shelf, trails = directory(), RecentPaths()
    keep(shelf, PROMPT, 48, rungs=(20, 32, 40))
    copy_down(shelf)
    forget(shelf, PROMPT, Tier.DEVICE, 32, (40,))
    forget(shelf, PROMPT, Tier.HOST, None, (20, 40))
    noted(shelf, 48, trails, now=1.0)
    before = state_of(shelf)
    (told,) = ladders(trails, 3.5, 9)
    assert state_of(shelf) == before
    assert (told.session, told.known, told.ago, told.outcome) == ("s48", 48, 2.5, OUTCOME)
    assert [(rung.position, rung.tier) for rung in told.rungs] == [(20, "device"), (32, "device"), (40, GONE)]
    assert told.rungs[0].kind == "prompt_end" and told.rungs[2] == RungSeen(40, GONE, "")
    assert told.kv == (("device", 0, 32), ("host", 0, 40))  # nothing resumes behind the last rung


def test_a_path_that_goes_on_takes_the_place_of_what_it_goes_on_from() -> None:
    shelf, trails = directory(), RecentPaths()
    keep(shelf, PROMPT, 20, rungs=(20,))
    noted(shelf, 20, trails)
    keep(shelf, PROMPT, 40, rungs=(40,))
    noted(shelf, 40, trails)
    assert [told.session for told in ladders(trails, 0.0, 9)] == ["s40"]
    other = join(PROMPT[:20], numbers(20, 1))  # a branch has a line of its own
    keep(shelf, other, 40, rungs=(40,))
    trails.left(shelf.survey("", other).path[-1], PathUse("", "branch", OUTCOME, 0.0))
    assert [told.session for told in ladders(trails, 0.0, 9)] == ["branch", "s40"]


def test_only_so_many_are_noted_and_only_so_many_told_the_last_used_first() -> None:
    shelf, trails = directory(pages=256), RecentPaths(most=3)
    for seed in range(5):
        tokens = numbers(8, seed)
        keep(shelf, tokens, 8)
        trails.left(shelf.survey("", tokens).path[-1], PathUse("", f"s{seed}", OUTCOME, float(seed)))
    assert len(trails) == 3
    assert [told.session for told in ladders(trails, 9.0, 2)] == ["s4", "s3"]


def test_owners_see_their_own_salts_alone() -> None:
    shelf, trails = directory(), RecentPaths()
    for salt in ("mine", "mine:below", "mines", "other", ""):
        keep(shelf, PROMPT, 8, salt=salt)
        trails.left(shelf.survey(salt, PROMPT).path[-1], PathUse(salt, salt, OUTCOME, 0.0))
    assert {told.session for told in ladders(trails, 0.0, 9, "mine")} == {"mine", "mine:below"}
    assert len(ladders(trails, 0.0, 9)) == 5


def test_what_has_left_the_tree_is_told_no_more() -> None:
    shelf, trails = directory(ghosts=0), RecentPaths()
    keep(shelf, PROMPT, 16)
    noted(shelf, 16, trails)
    reset(shelf, None)
    assert ladders(trails, 0.0, 9) == () and len(trails) == 0
