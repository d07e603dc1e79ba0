"""A session stays where it is unless moving pays; who is silent is judged by load; nothing is held for ever."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.cache.moves import Tier
from stepwell.fleet.router import Router, Rules, View, Why
from stepwell.sched.outlook import Outlook

NAMES = tuple("abcdefgh")
seconds = st.floats(0, 100, allow_nan=False)


def told(queue: float, work: float, tokens: int = 1000) -> Outlook:
    return Outlook(tokens, 0, Tier.DEVICE, 0.0, work, queue, 0)


outlooks = st.none() | st.builds(told, seconds, seconds)
views = st.lists(st.sampled_from(NAMES), min_size=1, unique=True).flatmap(
    lambda names: st.tuples(*(st.builds(View, st.just(name), st.integers(0, 50), outlooks) for name in names))
)
calls = st.tuples(
    st.sampled_from(["", "s1", "s2", "s3"]), st.integers(1, 10**6), views, st.floats(0, 400, allow_nan=False)
)


@settings(max_examples=150, deadline=None)
@given(st.lists(calls, max_size=30), st.integers(1, 3))
def test_whatever_comes_the_choice_is_one_of_the_views_and_moves_only_where_that_pays(
    script: list[tuple[str, int, tuple[View, ...], float]], sessions: int
) -> None:
    router, now = Router(Rules(sessions=sessions)), 0.0
    for session, tokens, seen, passed in script:
        now += passed
        before = router.session(session)
        choice = router.choose(session, tokens, seen, now)
        by_name = {view.replica: view for view in seen}
        assert sorted(choice.order) == sorted(by_name), "each replica once, the chosen one first"
        home = next((name for name in (before.homes if before else ()) if name in by_name), None)
        chosen = by_name[choice.replica].outlook
        if choice.replica == home:
            assert choice.why in (Why.HOME, Why.SILENT_HOME, Why.LOAD, Why.MOVED)
        elif home is not None and chosen is not None:
            there = by_name[home].outlook
            assert there is not None
            assert router.price(there) - router.price(chosen) > router.rules.margin_s
        if choice.why is Why.LOAD:
            assert all(view.outlook is None for view in seen)
            assert by_name[choice.replica].load == min(view.load for view in seen)
        check(router, now)


def check(router: Router, now: float) -> None:
    """What is held is what recent sessions have, and no more is remembered than the rules allow."""
    held: Counter[str] = Counter()
    names = [name for name in ("s1", "s2", "s3") if router.session(name) is not None]
    assert len(names) <= router.rules.sessions
    for name in names:
        session = router.session(name)
        assert session is not None
        assert 1 <= len(session.homes) <= router.rules.homes
        if now - session.seen <= router.rules.remembered_s:
            held[session.homes[0]] += session.tokens
    assert {name: tokens for name, tokens in router.held.items() if tokens} == held


def test_a_session_without_a_home_goes_to_the_one_of_the_cheapest_that_holds_the_least() -> None:
    router = Router()
    router.choose("big", 100_000, [View("a", 0, told(0, 1))], 0.0)
    choice = router.choose(
        "new", 10, [View("a", 0, told(0, 1)), View("b", 3, told(0, 1.05)), View("c", 0, told(9, 1))], 1.0
    )
    assert (choice.why, choice.order) == (Why.PLACED, ("b", "a", "c"))


def test_a_session_moves_once_another_replica_is_cheaper_by_more_than_the_margin() -> None:
    router = Router(Rules(burden=1.0, margin_s=1.0, margin_share=0.0))
    router.choose("s", 10, [View("a", 0, told(0, 1))], 0.0)
    stays = [View("a", 0, told(2.9, 0.1)), View("b", 0, told(0, 1.1))]
    moves = [View("a", 0, told(3.3, 0.1)), View("b", 0, told(0, 1.1))]
    assert router.choose("s", 10, stays, 0.0).replica == "a"
    assert router.choose("s", 10, moves, 0.0).why is Why.MOVED
    known = router.session("s")
    assert known is not None
    assert known.homes == ("b", "a"), "both are asked from now on"


def test_a_silent_home_keeps_its_sessions_until_it_has_been_silent_too_often() -> None:
    router = Router(Rules(patience=2))
    router.choose("s", 10, [View("a", 0, told(0, 1))], 0.0)
    silent = [View("a", 5), View("b", 1, told(0, 30))]
    whys = []
    for _ in range(3):
        router.heard(("a", "b"), ("b",))
        whys.append(router.choose("s", 10, silent, 0.0).why)
    assert whys == [Why.SILENT_HOME, Why.SILENT_HOME, Why.MOVED]


def test_an_answer_ends_the_count_of_silence() -> None:
    router = Router(Rules(patience=1))
    router.choose("s", 10, [View("a", 0, told(0, 1))], 0.0)
    for _ in range(5):
        router.heard(("a",), ())
        router.heard(("a",), ("a",))
    assert router.choose("s", 10, [View("a", 5), View("b", 1)], 0.0).why is Why.SILENT_HOME


def test_those_who_had_the_session_are_asked_first_and_no_more_than_the_rules_say() -> None:
    router = Router(Rules(asked=3))
    loads = {name: place for place, name in enumerate(NAMES)}
    router.choose("s", 10, [View("h", 0, told(0, 1))], 0.0)
    assert router.whom_to_ask("s", loads) == ("h", "a", "b")
    assert router.whom_to_ask("", loads) == ("a", "b", "c")
    assert router.whom_to_ask("s", {"a": 0, "b": 0}) == ("a", "b")


def test_a_session_whose_home_is_gone_is_placed_anew_and_what_it_held_there_is_forgotten() -> None:
    router = Router()
    router.choose("s", 500, [View("a", 0, told(0, 1))], 0.0)
    router.forget_replica("a")
    router.choose("t", 70, [View("a", 0, told(0, 1))], 0.0)
    assert router.choose("s", 500, [View("b", 0, told(0, 1))], 0.0).why is Why.PLACED
    assert router.held == {"a": 70, "b": 500}


def test_there_must_be_a_replica() -> None:
    with pytest.raises(AssertionError):
        Router().choose("s", 1, [], 0.0)
