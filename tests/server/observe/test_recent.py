"""The last minutes, slice by slice."""

from __future__ import annotations

from stepwell.base.clock import VirtualClock
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.engine.process.messages import Stats
from stepwell.server.observe.recent import LONG_SECONDS, LONG_SLICES, SECONDS, SLICES, Durations, Recent

OUTCOME = AdmissionOutcome("a", 40, 16, 8, 0, 16, 24, 16, Tier.HOST, Reason.COMPLETE)


def test_quantiles_are_right_to_a_fifth_whatever_the_number() -> None:
    times = Durations()
    assert times.quantile(0.5) is None
    for i in range(1, 1001):
        times.add(i / 1000)
    for share, exact in ((0.5, 0.5), (0.95, 0.95)):
        found = times.quantile(share)
        assert found is not None and exact <= found <= exact * 1.2
    times.add(1e9)
    assert times.quantile(1.0) is not None


def test_what_happens_lands_in_the_slice_of_its_time() -> None:
    clock = VirtualClock()
    recent = Recent(clock)
    recent.admitted(OUTCOME)
    clock.advance(SECONDS)
    recent.admitted(OUTCOME)
    recent.slice().first.add(0.1)
    first, second = recent.points(recent.window(600))
    assert second["t"] == first["t"] + 1
    assert (first["device"], first["host"], first["recomputed"], first["ttft50"]) == (16, 8, 16, None)
    assert second["ttft50"] is not None
    assert [point["t"] for point in recent.points(recent.window(600), second["t"])] == [second["t"]]


def test_memory_is_bounded_and_old_slices_are_not_told() -> None:
    clock = VirtualClock()
    recent = Recent(clock)
    for _ in range(2 * SLICES):
        recent.admitted(OUTCOME)
        clock.advance(SECONDS)
    assert len(recent.points(recent.window(600))) <= SLICES
    clock.advance(SECONDS * SLICES)
    assert recent.points(recent.window(600)) == []


def test_statistics_tell_shares_in_use_and_bytes_since_the_last_ones() -> None:
    recent = Recent(VirtualClock())
    pages = {"device": {"free": 1, "cached": 2, "private": 1}, "disk": {"free": 0}}
    recent.measured(Stats({"running": 3, "waiting": 1, "parked": 2}, pages, copied=[100, 0]))
    recent.measured(Stats({"running": 2}, pages, copied=[100, 50]))
    (point,) = recent.points(recent.window(600))
    assert (point["running"], point["waiting"], point["copied"], point["used"]) == (2, 0, 150, {"device": 0.75})


def test_whoever_is_refused_is_told_when_the_queue_should_have_moved_on() -> None:
    clock = VirtualClock()
    recent = Recent(clock)
    assert (recent.retry_after(0), recent.retry_after(5)) == (1, 60)
    for _ in range(30):
        recent.admitted(OUTCOME)
    assert (recent.retry_after(0), recent.retry_after(10), recent.retry_after(10**6)) == (1, 10, 60)


def test_a_day_is_kept_in_long_slices_that_say_what_the_short_ones_said() -> None:
    clock = VirtualClock()
    recent = Recent(clock)
    for _ in range(90):
        recent.admitted(OUTCOME, saved=0.5)
        recent.slice().first.add(0.1)
        clock.advance(SECONDS)
    window = recent.window(3600)
    points = recent.points(window)
    assert (window.seconds, window.count, window.now) == (LONG_SECONDS, 60, 3)
    assert [point["t"] for point in points] == [0, 1, 2] and [point["admitted"] for point in points] == [30, 30, 30]
    assert points[0]["saved"] == 15 and points[0]["firsts"] == 30 and abs(points[0]["ttft"] - 3.0) < 1e-9
    assert [point["t"] for point in recent.points(window, 2)] == [2]


def test_windows_choose_their_slices_and_memory_of_a_day_is_bounded() -> None:
    clock = VirtualClock()
    recent = Recent(clock)
    assert (recent.window(60).seconds, recent.window(60).count) == (SECONDS, 30)
    assert (recent.window(600).seconds, recent.window(601).seconds) == (SECONDS, LONG_SECONDS)
    assert recent.window(1e9).count == LONG_SLICES
    for _ in range(LONG_SLICES + 60):
        recent.admitted(OUTCOME)
        clock.advance(LONG_SECONDS)
    day = recent.points(recent.window(86400))
    assert LONG_SLICES - 2 <= len(day) <= LONG_SLICES
    clock.advance(2 * 86400)
    recent.slice()
    assert len(recent.points(recent.window(86400))) == 0, "nothing of the day before yesterday"
    assert recent.points(recent.window(60))[0]["admitted"] == 0
