"""Where rungs are left."""

from __future__ import annotations

import pytest

from stepwell.cache.placement import prompt_rungs
from stepwell.cache.tree import RungKind
from tests.cache.builders import config

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
