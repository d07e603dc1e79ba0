"""Calls that pass a front end: nobody is lost, a burst comes in by length, and time is conserved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.base.errors import ConfigError
from stepwell.replay.front import Front, Fronted
from stepwell.replay.lanes import Timeline, TraceRequest
from stepwell.replay.trace import Conversation, Stream, Trace, Turn

Calls = list[tuple[float, int]]
calls = st.lists(st.tuples(st.integers(0, 40).map(lambda n: n / 8), st.integers(1, 500)), min_size=1, max_size=12)


def asked(told: Calls) -> Timeline:
    """One call for each (time, tokens of the prompt)."""
    streams = tuple(Stream(time, (Turn(0.0, prompt, 1, 0.0, ((i, 1),)),)) for i, (time, prompt) in enumerate(told))
    return Timeline(Trace((Conversation("m", 512, streams),), open_loop=True))


def arrivals(source: Fronted, every: float = 0.0) -> list[tuple[float, TraceRequest]]:
    """When each call has passed, asked whenever the source says, or at each multiple of `every` after that."""
    found: list[tuple[float, TraceRequest]] = []
    now = 0.0
    for _ in range(10_000):
        found += [(now, request) for request in source.due(now)]
        upcoming = source.next_time()
        if upcoming is None:
            return found
        now = max(now, upcoming) if not every else now + every
    raise AssertionError(f"still waiting at {now} s for {upcoming}")


def test_a_burst_comes_in_by_the_length_of_its_prompts() -> None:
    found = arrivals(Fronted(asked([(0.0, 300), (0.0, 100), (0.0, 200)]), Front(token_s=0.01)))
    assert [request.turn.prompt for _, request in found] == [100, 200, 300]
    # three share it for 3 s, two for another 2, the last has it alone
    assert [time for time, _ in found] == pytest.approx([3.0, 5.0, 6.0])
    assert all(request.time == 0.0 for _, request in found), "its time is that of sending"


def test_what_is_not_shared_goes_on_side_by_side() -> None:
    found = arrivals(Fronted(asked([(0.0, 100)] * 3), Front(call_s=1.0, token_s=0.01, shared=0.0)))
    assert [time for time, _ in found] == pytest.approx([2.0, 2.0, 2.0])


@given(calls, st.sampled_from([0.0, 0.25, 1.0]))
def test_each_call_comes_once_and_none_before_its_own_time(told: Calls, shared: float) -> None:
    front = Front(0.05, 0.01, shared)
    found = arrivals(Fronted(asked(told), front))
    assert sorted((request.time, request.turn.prompt) for _, request in found) == sorted(told)
    assert all(time >= request.time + front.alone(request.turn.prompt) - 1e-9 for time, request in found)
    assert found == sorted(found, key=lambda pair: pair[0])


@given(calls)
def test_one_thread_that_is_never_idle_while_there_is_work(told: Calls) -> None:
    front = Front(0.05, 0.01)
    free = 0.0
    for time, prompt in sorted(told):
        free = max(free, time) + front.alone(prompt)
    assert max(time for time, _ in arrivals(Fronted(asked(told), front))) == pytest.approx(free)


@given(calls)
def test_it_does_not_matter_how_often_it_is_asked(told: Calls) -> None:
    front = Front(0.05, 0.01, 0.5)
    seldom = arrivals(Fronted(asked(told), front), every=0.75)
    exact = {request.id: time for time, request in arrivals(Fronted(asked(told), front))}
    assert all(-1e-9 <= time - exact[request.id] <= 0.75 + 1e-9 for time, request in seldom)


@pytest.mark.parametrize("wrong", [(-1.0, 0.0, 1.0), (0.0, -1.0, 1.0), (0.0, 0.0, 1.5)])
def test_impossible_front_ends_are_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError):
        Front(*wrong)
