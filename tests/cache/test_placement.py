"""Where rungs are left."""

from __future__ import annotations

import pytest

from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.placement import gap, left_by, needed, prompt_rungs
from stepwell.cache.tree import RungKind
from tests.cache.builders import config, directory, forget, join, keep, node_ending, numbers, rung_at

END, INTERVAL, BRANCH = RungKind.PROMPT_END, RungKind.INTERVAL, RungKind.BRANCH


def test_the_prompt_end_is_the_last_grid_boundary_up_to_the_end() -> None:
    rules = config(grid=8)
    for tokens, position in ((8, 8), (9, 8), (17, 16), (100, 96)):
        assert prompt_rungs(tokens, 0, None, rules) == ((position, END),)


def test_a_prompt_that_ends_on_the_grid_leaves_one_for_longer_prompts_and_one_for_itself() -> None:
    rules = config(grid=8)
    assert prompt_rungs(16, 0, None, rules) == ((8, INTERVAL), (16, END))
    assert prompt_rungs(96, 80, None, rules) == ((88, INTERVAL), (96, END))
    assert prompt_rungs(96, 88, None, rules) == ((96, END),)


@pytest.mark.parametrize("tokens", range(1, 8))
def test_a_prompt_shorter_than_the_grid_leaves_none(tokens: int) -> None:
    assert prompt_rungs(tokens, 0, None, config(grid=8)) == ()


def test_one_at_every_interval_that_is_still_to_be_computed() -> None:
    rules = config(grid=8, interval=32)
    assert prompt_rungs(100, 0, None, rules) == ((32, INTERVAL), (64, INTERVAL), (96, END))
    assert prompt_rungs(100, 40, None, rules) == ((64, INTERVAL), (96, END))
    assert prompt_rungs(100, 64, None, rules) == ((96, END),)


def test_a_divergence_has_one_besides_the_prompt_end_never_instead() -> None:
    rules = config(grid=8)
    assert prompt_rungs(100, 0, 45, rules) == ((40, BRANCH), (96, END))
    assert prompt_rungs(100, 40, 45, rules) == ((96, END),), "it is there already"
    assert prompt_rungs(100, 0, 97, rules) == ((96, END),), "where they meet, the prompt end is the better reason"
    assert prompt_rungs(100, 0, 3, rules) == ((96, END),)


def test_a_store_of_whole_chunks_gets_one_on_its_own_grid_too() -> None:
    rules = config(grid=8, whole=True, chunk=32)
    assert prompt_rungs(60, 0, None, rules) == ((32, END), (56, END))
    assert prompt_rungs(65, 0, None, rules) == ((64, END),)
    odd = config(grid=12, whole=True, chunk=32, interval=12 * 400)
    assert prompt_rungs(200, 0, None, odd) == ((96 * 2, END),)


def test_none_at_or_below_where_the_request_resumed() -> None:
    rules = config(grid=8, interval=16)
    for resumed in range(0, 100, 8):
        rungs = prompt_rungs(100, resumed, 20, rules)
        assert all(resumed < p <= 100 for p, _ in rungs)
        assert list(rungs) == sorted(rungs)


def test_known_places_get_the_last_grid_boundary_below_them() -> None:
    rules = config(grid=8, interval=1000)
    assert prompt_rungs(100, 0, None, rules, (30, 32, 61, 0, 3, 200)) == (
        (24, INTERVAL),
        (32, INTERVAL),
        (56, INTERVAL),
        (96, END),
    )
    assert prompt_rungs(100, 40, 58, rules, (30, 61)) == ((56, BRANCH), (96, END))
    assert prompt_rungs(100, 0, None, rules, (99,)) == ((96, END),)


LINE = numbers(160, 7)


def line_with(*rungs: int) -> Directory:
    shelf = directory(pages=200, host=0)
    keep(shelf, LINE, 160, rungs=rungs)
    return shelf


def test_a_gap_reaches_from_the_rung_above_to_the_rung_below() -> None:
    shelf = line_with(20, 40, 100, 160)
    assert [gap(rung_at(shelf, LINE, p)) for p in (20, 40, 100, 160)] == [40, 80, 120, 60]


def test_a_rung_that_has_gone_widens_the_gaps_beside_it() -> None:
    shelf = line_with(20, 40, 100, 160)
    shelf.drop(rung_at(shelf, LINE, 40).image, Tier.DEVICE)
    assert [gap(rung_at(shelf, LINE, p)) for p in (20, 100, 160)] == [100, 140, 60]


def test_a_rung_is_needed_where_forks_would_lose_more_than_an_eighth_of_the_line_and_more_than_its_image() -> None:
    shelf = line_with(8, 16, 28, 100, 160)
    assert [needed(rung_at(shelf, LINE, p), 4) for p in (8, 16, 28, 100)] == [False, False, True, True]
    assert not needed(rung_at(shelf, LINE, 28), 84)


def test_no_rung_of_an_answer_or_without_kv_is_needed() -> None:
    shelf = directory(pages=200, host=0)
    keep(shelf, LINE, 160, rungs=(80,), kind=RungKind.ROLLING)
    keep(shelf, numbers(160, 8), 160, rungs=(80,))
    answer, prompt = rung_at(shelf, LINE, 80), rung_at(shelf, numbers(160, 8), 80)
    assert not needed(answer, 4) and needed(prompt, 4)
    forget(shelf, numbers(160, 8), Tier.DEVICE, 0)
    assert not needed(prompt, 4)


def test_a_line_that_grows_makes_its_gaps_narrow() -> None:
    shelf = directory(pages=400, host=0)
    long = numbers(400, 9)
    keep(shelf, long, 64, rungs=(16, 32, 48, 64))
    assert needed(rung_at(shelf, long, 32), 4) and rung_at(shelf, long, 32).line == 64
    keep(shelf, long, 400, rungs=(400,))
    assert not needed(rung_at(shelf, long, 32), 4) and rung_at(shelf, long, 32).line == 400


def test_a_path_that_goes_on_elsewhere_leaves_the_branch_that_it_was_on() -> None:
    shelf = directory(pages=400, host=0)
    old, new = LINE, join(LINE[:20], numbers(60, 11))
    keep(shelf, old, 160, rungs=(20, 160))
    keep(shelf, new, 80, rungs=(80,))
    assert [node.end for node in shelf.survey("", old).path if node.left] == [160]
    assert not node_ending(shelf, new, 80).left
    assert left_by(node_ending(shelf, new, 80)) == [], "it is left once"


def test_conversations_that_share_nothing_leave_nobody() -> None:
    shelf = line_with(160)
    keep(shelf, numbers(40, 12), 40, rungs=(40,))
    assert not any(node.left for node in shelf.tree.nodes())


def test_a_branch_in_use_is_not_left() -> None:
    shelf = line_with(20, 160)
    lease = shelf.lease(node_ending(shelf, LINE, 160).kv, Tier.DEVICE)
    keep(shelf, join(LINE[:20], numbers(60, 11)), 80, rungs=(80,))
    assert not any(node.left for node in shelf.tree.nodes())
    shelf.release(lease)
