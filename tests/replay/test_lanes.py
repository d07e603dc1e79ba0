"""Who sends what when."""

from __future__ import annotations

import pytest

from stepwell.base.errors import ConfigError
from stepwell.replay.lanes import LaneRules, Lanes, Source, Timeline, TraceRequest
from stepwell.replay.synthetic import Shape, synthetic
from stepwell.replay.trace import Conversation, Stream, Trace, Turn

SERVING = 2.0
"""Seconds that the server of these tests takes for any answer."""


def stream(*times: float, start: float = 0.0, parent: int | None = None, think: float = 5.0) -> Stream:
    turns = tuple(Turn(time, 100 + 10 * i, 7, think if i else 0.0, ((1, 1),)) for i, time in enumerate(times))
    return Stream(start, turns, parent=parent)


def lanes(
    *conversations: Conversation, count: int = 1, start: tuple[float, float] = (0.0, 0.0), **rules: float
) -> Lanes:
    return Lanes(conversations, LaneRules(lanes=count, start=start, **rules))  # type: ignore[arg-type]


def play(source: Source, until: float) -> list[tuple[float, TraceRequest]]:
    """Answer everything in `SERVING` seconds; (time sent, request) of all that was sent."""
    now, sent, running = 0.0, list[tuple[float, TraceRequest]](), list[tuple[float, TraceRequest]]()
    while now <= until:
        for request in [r for end, r in running if end <= now]:
            source.finished(request, now)
        running = [(end, r) for end, r in running if end > now]
        for request in source.due(now):
            assert request.time <= now
            sent.append((now, request))
            running.append((now + SERVING, request))
        times = [end for end, _ in running]
        upcoming = source.next_time()
        if upcoming is not None:
            assert upcoming > now
            times.append(upcoming)
        if not times:
            break
        now = min(times)
    return sent


def test_a_turn_follows_its_answer_after_the_think_time() -> None:
    sent = play(lanes(Conversation("a", 64, (stream(0.0, 100.0, 200.0),))), until=20.0)
    assert [(at, r.index, r.edition) for at, r in sent] == [(0.0, 0, 0), (7.0, 1, 0), (14.0, 2, 0), (16.0, 0, 1)]
    assert not any(r.priming for _, r in sent)


def test_long_think_times_are_cut() -> None:
    sent = play(lanes(Conversation("a", 64, (stream(0.0, 1.0, think=9999.0),)), think_cap=30.0), until=33.0)
    assert [at for at, _ in sent] == [0.0, 32.0]


def test_a_lane_starts_in_the_middle_with_the_turn_before() -> None:
    told = Conversation("a", 64, (stream(0.0, 10.0, 20.0, 30.0, 40.0),))
    (primed,) = lanes(told, start=(0.55, 0.55)).due(0.0)
    assert (primed.index, primed.priming, primed.output) == (2, True, 1)
    sent = play(lanes(told, start=(0.55, 0.55)), until=13.0)
    assert [(r.index, r.priming) for _, r in sent] == [(2, True), (3, False)]
    assert sent[1][1].output == 7


def test_starting_points_are_drawn_between_the_given_shares() -> None:
    told = [Conversation(f"c{i}", 64, (stream(*map(float, range(101))),)) for i in range(40)]
    primed = lanes(*told, count=40, start=(0.25, 0.75)).due(0.0)
    assert len(primed) == 40
    assert all(24 <= r.index <= 75 for r in primed)
    assert len({r.index for r in primed}) > 15


def test_a_sub_agent_starts_when_its_parents_turn_is_sent_and_runs_beside_it() -> None:
    agent = stream(0.0, 1.0, 2.0, start=103.0, parent=0, think=1.0)
    sent = play(lanes(Conversation("a", 64, (stream(0.0, 100.0), agent))), until=20.0)
    # The parent's second turn is sent at 7, the agent 3 s later; the lane goes on once both have ended.
    assert [(at, r.stream, r.index) for at, r in sent] == [
        (0.0, 0, 0),
        (7.0, 0, 1),
        (10.0, 1, 0),
        (13.0, 1, 1),
        (16.0, 1, 2),
        (18.0, 0, 0),
    ]


def test_streams_alive_at_the_start_are_all_primed_and_ended_ones_are_not() -> None:
    told = Conversation(
        "a",
        64,
        (
            stream(0.0, 40.0, 60.0, 100.0),
            stream(0.0, 30.0, start=20.0, parent=0),
            stream(0.0, 5.0, start=10.0, parent=0),
            stream(0.0, start=55.0, parent=0),
            stream(0.0, start=70.0, parent=0),
        ),
    )
    source = lanes(told, start=(0.45, 0.45))
    sent = play(source, until=16.0)
    begun = [(r.stream, r.index, r.priming) for _, r in sent]
    assert begun[:2] == [(0, 1, True), (1, 0, True)]
    # stream 3 starts 15 s after its parent's turn 1 (primed at 0), stream 4 10 s after turn 2 (sent at 7)
    assert [(at, r.stream) for at, r in sent if r.stream == 3] == [(15.0, 3)]
    assert not any(r.stream == 2 for _, r in sent)
    assert [(at, r.stream) for at, r in play(lanes(told, start=(0.45, 0.45)), until=17.0) if r.stream == 4] == [
        (17.0, 4)
    ]


def test_an_agent_of_an_ended_parent_starts_by_itself() -> None:
    told = Conversation("a", 64, (stream(0.0, 10.0), stream(0.0, start=100.0, parent=0)))
    sent = play(lanes(told, start=(0.5, 0.5)), until=50.0)
    assert [(at, r.stream, r.index, r.priming) for at, r in sent[:1]] == [(50.0, 1, 0, False)]


def test_prompts_over_the_limit_are_left_out() -> None:
    sent = play(lanes(Conversation("a", 64, (stream(0.0, 1.0, 2.0, 3.0),)), max_prompt=115), until=12.0)
    assert [(r.edition, r.turn.prompt) for _, r in sent] == [(0, 100), (0, 110), (1, 100)]
    with pytest.raises(ConfigError, match="raise --max-prompt"):
        lanes(Conversation("a", 64, (stream(0.0),)), max_prompt=5)


def test_each_lane_plays_its_own_conversations_whatever_the_timing() -> None:
    told = [Conversation(f"c{i}", 64, (stream(0.0, 1.0, think=float(i)),)) for i in range(7)]
    played: dict[int, list[str]] = {}
    for _, request in play(lanes(*told, count=3, seed=5), until=200.0):
        if request.index == 0:
            played.setdefault(request.lane, []).append(f"{request.conversation.id}/{request.edition}")
    one_round = {name for names in played.values() for name in names if name.endswith("/0")}
    assert len(one_round) == 7
    every = [name for names in played.values() for name in names]
    assert len(every) == len(set(every)), "nothing is played twice in one edition"
    assert played[0][0] != played[1][0]


def test_more_lanes_than_conversations_play_editions_side_by_side() -> None:
    sent = lanes(Conversation("a", 64, (stream(0.0, 1.0),)), count=3).due(0.0)
    assert sorted(r.edition for r in sent) == [0, 1, 2]


def test_every_request_is_sent_once_and_named_once() -> None:
    made = synthetic(10, 2, Shape(scale=0.05, turns=(20, 0.5), agents=0.1, think=(3.0, 0.5)))
    sent = play(Lanes(made.conversations, LaneRules(lanes=4, start=(0.25, 0.75), seed=3)), until=3000.0)
    names = [request.id for _, request in sent]
    assert len(names) == len(set(names)) > 300
    per_stream: dict[tuple[str, int], list[int]] = {}
    for _, request in sent:
        per_stream.setdefault((request.session, request.stream), []).append(request.index)
    assert all(found == list(range(found[0], found[0] + len(found))) for found in per_stream.values())
    assert any(found[0] > 0 for found in per_stream.values())


def test_played_once_every_conversation_comes_exactly_once_and_then_nothing() -> None:
    made = synthetic(10, 2, Shape(scale=0.05, turns=(6, 0.5), agents=0.1, think=(3.0, 0.5)))
    for count in (4, 16):
        source = Lanes(made.conversations, LaneRules(lanes=count, start=(0.0, 0.0), seed=3, once=True))
        sent = [request for _, request in play(source, until=1e6)]
        assert len(sent) == made.requests
        assert {request.conversation.id for request in sent} == {c.id for c in made.conversations}
        assert all(request.edition == 0 and not request.priming for request in sent)
        assert source.next_time() is None


@pytest.mark.parametrize("bad", [{"lanes": 0}, {"start": (0.8, 0.2)}, {"start": (0.0, 2.0)}, {"think_cap": -1.0}])
def test_rules_that_cannot_be_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        LaneRules(**bad)  # type: ignore[arg-type]


def test_a_timeline_keeps_to_the_recorded_times() -> None:
    told = Conversation("m", 512, (stream(0.0, start=1.0), stream(0.0, start=4.0), stream(0.0, start=4.0)))
    source = Timeline(Trace((told,), open_loop=True))
    assert source.next_time() == 1.0
    assert source.due(0.5) == []
    assert [r.stream for r in source.due(1.0)] == [0]
    assert [r.stream for r in source.due(100.0)] == [1, 2]
    assert source.next_time() is None
    with pytest.raises(ConfigError, match="raise --max-prompt"):
        Timeline(Trace((told,), open_loop=True), max_prompt=3)
