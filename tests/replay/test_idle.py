"""Idle gaps cut short, and only those."""

from __future__ import annotations

from stepwell.replay.idle import CappedIdle
from stepwell.replay.lanes import LaneRules, Lanes, Timeline
from stepwell.replay.trace import Conversation, Stream, Trace, Turn


def single(start: float) -> Stream:
    return Stream(start, (Turn(0.0, 64, 1, 0.0, ((0, 1),)),))


def play(source: CappedIdle, seconds: float, most: int = 9) -> list[float]:
    """When each request goes out, `most` at most, where every answer takes so many `seconds`."""
    sent: list[float] = []
    open_until: list[tuple[float, object]] = []
    now = 0.0
    while len(sent) < most:
        for request in source.due(now):
            sent.append(now)
            open_until.append((now + seconds, request))
        times = [when for when, _ in open_until] + [t for t in [source.next_time()] if t is not None]
        if not times:
            return sent
        now = max(now, min(times))
        for pair in [p for p in open_until if p[0] <= now]:
            open_until.remove(pair)
            source.finished(pair[1], now)  # type: ignore[arg-type]
    return sent


def test_a_gap_with_nothing_under_way_is_cut_and_the_rest_moves_with_it() -> None:
    trace = Trace((Conversation("m", 64, (single(0.0), single(100.0), single(103.0), single(500.0))),), open_loop=True)
    assert play(CappedIdle(Timeline(trace), 10.0), seconds=1.0) == [0.0, 11.0, 14.0, 25.0]


def test_a_gap_while_something_is_under_way_stays() -> None:
    trace = Trace((Conversation("m", 64, (single(0.0), single(50.0))),), open_loop=True)
    assert play(CappedIdle(Timeline(trace), 10.0), seconds=60.0) == [0.0, 50.0]


def test_think_times_are_cut_where_all_lanes_think() -> None:
    turns = tuple(Turn(100.0 * i, 64, 1, 90.0, ((0, 1),)) for i in range(3))
    rules = LaneRules(lanes=1, start=(0.0, 0.0))
    sent = play(CappedIdle(Lanes([Conversation("a", 64, (Stream(0.0, turns),))], rules), 5.0), seconds=2.0, most=3)
    assert sent == [0.0, 7.0, 14.0]
