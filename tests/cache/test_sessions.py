"""Session ids lower or raise what entries are worth, and nothing else."""

from __future__ import annotations

import pytest

from stepwell.cache.check import check
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.sessions import BRANCHES, MOST_SESSIONS, Sessions, devalue
from stepwell.cache.shed import secure
from tests.cache.builders import directory, join, keep, node_ending, numbers, rung_at

PROMPT = numbers(80)
KEY = ("", "s")


def turn(shelf: Directory, sessions: Sessions, end: int, now: float = 0.0, key: tuple[str, str] = KEY) -> None:
    sessions.began(key, now)
    keep(shelf, PROMPT, end, rungs=(end,), now=now)
    sessions.ended(shelf, key, node_ending(shelf, PROMPT, end), now)


def test_think_time_is_a_moving_average() -> None:
    shelf, sessions = directory(), Sessions()
    turn(shelf, sessions, 20, now=0.0)
    found = sessions.find(KEY)
    assert found is not None and found.think is None and found.next_turn is None
    turn(shelf, sessions, 40, now=10.0)
    assert found.think == 10.0 and found.next_turn == 20.0
    turn(shelf, sessions, 60, now=30.0)
    assert found.think == pytest.approx(13.0)


def test_two_rungs_of_a_line_stay_and_forks_of_others_turns_hide_none() -> None:
    shelf, sessions = directory(pages=128), Sessions()
    for end in (20, 40, 60, 80):
        turn(shelf, sessions, end, now=float(end))
        keep(
            shelf, join(PROMPT[: end - 8], numbers(8, end)), end, rungs=(end,)
        )  # forks: the tree alone supersedes none
    assert [rung_at(shelf, PROMPT, at).superseded for at in (20, 40, 60, 80)] == [True, True, False, False]
    check(shelf)


def test_a_rung_that_others_use_is_not_superseded() -> None:
    shelf, sessions = directory(pages=128), Sessions()
    for end in (20, 40, 60, 80):
        turn(shelf, sessions, end, now=float(end))
        keep(shelf, join(PROMPT[: end - 8], numbers(8, end)), end, rungs=(end,))
        rung_at(shelf, PROMPT, end).uses += 2
    turn(shelf, sessions, 80, now=90.0)
    assert not rung_at(shelf, PROMPT, 40).superseded


def test_branches_are_told_apart() -> None:
    shelf, sessions = directory(pages=512), Sessions()
    for branch in range(BRANCHES + 2):
        prompt = join(PROMPT[:8], numbers(12, 50 + branch))
        sessions.began(KEY, 0.0)
        keep(shelf, prompt, 20, rungs=(20,))
        sessions.ended(shelf, KEY, node_ending(shelf, prompt, 20), float(branch))
    found = sessions.find(KEY)
    assert found is not None and len(found.tips()) == BRANCHES
    assert found.tips()[0] is node_ending(shelf, join(PROMPT[:8], numbers(12, 50 + BRANCHES + 1)), 20)


def test_what_an_ended_session_alone_led_to_goes_first() -> None:
    shelf, sessions = directory(pages=40, host=40), Sessions()
    shared = join(PROMPT[:20], numbers(20, 5))
    turn(shelf, sessions, 40, now=9.0)
    keep(shelf, shared, 40, rungs=(40,), now=1.0)
    found = sessions.forget(KEY)
    assert found is not None
    assert devalue(shelf, found.tips()[0]) == 6, "what both use is not touched"
    assert secure(shelf, 25, force=False), "it may go without a copy"
    assert shelf.survey("", shared).device == 40 and shelf.survey("", PROMPT).device == 20
    check(shelf)


def test_what_runs_is_left_alone() -> None:
    shelf, sessions = directory(), Sessions()
    turn(shelf, sessions, 40)
    tip = node_ending(shelf, PROMPT, 40)
    lease = shelf.lease(tip.kv, Tier.DEVICE)
    assert devalue(shelf, tip) == 0
    shelf.release(lease)


def test_the_table_is_bounded() -> None:
    sessions = Sessions()
    for number in range(MOST_SESSIONS + 3):
        sessions.began(("", str(number)), 0.0)
    assert len(sessions.known) == MOST_SESSIONS and sessions.find(("", "0")) is None
