"""A session stays where it is unless moving pays; who is silent is judged by load; nothing is held for ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.cache.moves import Tier
from stepwell.fleet.router import Router, Rules, View, Why
from stepwell.sched.outlook import Outlook

NAMES = tuple("abcdefgh")
seconds = st.floats(0, 100, allow_nan=False)


def told(queue: float, work: float, tokens: int = 1000) -> Outlook:
    return Outlook(tokens, tokens // 2, Tier.DEVICE, 0.0, work, queue, 0)


def cold(queue: float, work: float, tokens: int) -> Outlook:
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
        answered = [view.outlook for view in seen if view.outlook is not None]  # all of them have half of the prompt
        chosen = by_name[choice.replica].outlook
        if choice.why is Why.HOME:
            assert chosen is not None and router.price(chosen) == min(map(router.price, answered))
        elif choice.why is Why.MOVED and answered:
            assert chosen is not None
            assert min(map(router.price, answered)) - router.price(chosen) > router.rules.margin_s
        elif choice.why is Why.PLACED:
            assert before is None or not answered
        if choice.why is Why.LOAD:
            assert all(view.outlook is None for view in seen)
            assert by_name[choice.replica].load == min(view.load for view in seen)
        names = [name for name in ("s1", "s2", "s3") if router.session(name) is not None]
        assert len(names) <= sessions
        assert all(router.computed(name, now) >= 0 for name in NAMES)


def test_a_session_without_a_home_goes_to_the_cheap_replica_that_has_computed_least_of_late() -> None:
    router = Router(Rules(alike_s=0.2, alike_share=0.1, half_life_s=100.0))
    router.choose("big", 100_000, [View("a", 0, cold(0, 1, 100_000))], 0.0)
    router.choose("", 30_000, [View("b", 0, cold(0, 1, 30_000))], 0.0)
    three = [View("a", 0, told(0, 1)), View("b", 3, told(0, 1.05)), View("c", 0, told(9, 1))]
    choice = router.choose("new", 10, three, 1.0)
    assert (choice.why, choice.order) == (Why.PLACED, ("b", "a", "c"))
    assert router.computed("a", 200.0) == 25_000, "what was long ago counts less"
    router.choose("", 100_000, [View("b", 0, cold(0, 1, 100_000))], 300.0)
    assert router.choose("newer", 10, three, 300.0).replica == "a"


def test_what_a_replica_had_cached_is_not_counted_as_computed() -> None:
    router = Router()
    router.choose("s", 1000, [View("a", 0, Outlook(1000, 900, Tier.DEVICE, 0.0, 0.1, 0.0, 0))], 0.0)
    assert router.computed("a", 0.0) == 100
    router.choose("s", 1200, [View("a", 0)], 0.0)
    assert router.computed("a", 0.0) == 300, "of a silent home, what the prompt has grown by"


def test_a_session_moves_once_another_replica_is_cheaper_by_more_than_the_margin() -> None:
    router = Router(Rules(burden=1.0, margin_s=1.0, margin_share=0.0, alike_s=0.1))
    router.choose("s", 10, [View("a", 0, told(0, 1))], 0.0)
    stays = [View("a", 0, told(2.9, 0.1)), View("b", 0, cold(0, 1.1, 1000))]
    moves = [View("a", 0, told(3.3, 0.1)), View("b", 0, cold(0, 1.1, 1000))]
    assert router.choose("s", 10, stays, 0.0).replica == "a"
    assert router.choose("s", 10, moves, 0.0).why is Why.MOVED
    known = router.session("s")
    assert known is not None
    assert known.homes == ("b", "a"), "both are asked from now on"


def test_a_silent_home_keeps_its_sessions_until_it_has_been_silent_too_often() -> None:
    router = Router(Rules(patience=2))
    router.choose("s", 10, [View("a", 0, told(0, 1))], 0.0)
    silent = [View("a", 5), View("b", 1, cold(0, 30, 1000))]
    whys = []
    for _ in range(3):
        router.heard(("a", "b"), ("b",))
        whys.append(router.choose("s", 10, silent, 0.0).why)
    assert whys == [Why.SILENT_HOME, Why.SILENT_HOME, Why.PLACED]


def test_what_its_home_does_not_have_is_placed_anew_and_the_session_still_finds_its_home() -> None:
    """A sub-agent that shares nothing with its parent is as good as a new session; the parent's next turn goes home."""
    router = Router()
    router.choose("s", 1000, [View("a", 0, told(0, 1))], 0.0)
    nothing = Outlook(1000, 0, Tier.DEVICE, 0.0, 1.0, 0.0, 0)
    agent = router.choose("s", 1000, [View("a", 0, nothing), View("b", 0, nothing)], 0.0)
    assert (agent.why, agent.replica) == (Why.PLACED, "b")
    parent = router.choose("s", 1000, [View("a", 0, told(0, 0.1)), View("b", 0, nothing)], 0.0)
    assert (parent.why, parent.replica) == (Why.HOME, "a")


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


def test_a_session_whose_home_is_gone_is_placed_anew_and_what_it_computed_there_is_forgotten() -> None:
    router = Router()
    router.choose("s", 500, [View("a", 0, told(0, 1))], 0.0)
    router.forget_replica("a")
    assert router.choose("s", 500, [View("b", 0, cold(0, 1, 500))], 0.0).why is Why.PLACED
    assert (router.computed("a", 0.0), router.computed("b", 0.0)) == (0.0, 500.0)


def test_there_must_be_a_replica() -> None:
    with pytest.raises(AssertionError):
        Router().choose("s", 1, [], 0.0)


def test_others_are_asked_unless_the_session_is_at_home_where_it_was_asked_first() -> None:
    router = Router()
    asked = ("a", "b", "c")
    near, far = told(0.0, 0.1), told(0.0, 100.0)
    assert router.whom_to_ask_next("s", asked, {"a": near}) == ("b", "c"), "no home yet"
    router.choose("s", 1000, [View("a", 0, near), View("b", 0, near)], 0.0)
    home = router.choose("s", 1000, [View("a", 0, near), View("b", 0, near)], 0.0).replica
    assert router.whom_to_ask("s", {"a": 0, "b": 0, "c": 0})[0] == home
    others = tuple(name for name in asked if name != home)
    assert router.whom_to_ask_next("s", (home, *others), {home: near}) == ()
    assert router.whom_to_ask_next("s", (home, *others), {home: far}) == others, "moving may pay"
    assert router.whom_to_ask_next("s", (home, *others), {}) == others, "it is late"
    assert router.whom_to_ask_next("s", (home, *others), {home: cold(0.0, 0.1, 1000)}) == others, (
        "it has nothing of the prompt"
    )
