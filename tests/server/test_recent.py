"""The last minutes, slice by slice."""

from __future__ import annotations

from stepwell.base.clock import VirtualClock
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.engine.process.messages import Stats
from stepwell.server.observe.recent import SECONDS, SLICES, Durations, Recent

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
    first, second = recent.points()
    assert second["t"] == first["t"] + 1
    assert (first["device"], first["host"], first["recomputed"], first["ttft50"]) == (16, 8, 16, None)
    assert second["ttft50"] is not None
    assert [point["t"] for point in recent.points(second["t"])] == [second["t"]]


def test_memory_is_bounded_and_old_slices_are_not_told() -> None:
    clock = VirtualClock()
    recent = Recent(clock)
    for _ in range(2 * SLICES):
        recent.admitted(OUTCOME)
        clock.advance(SECONDS)
    assert len(recent.points()) <= SLICES
    clock.advance(SECONDS * SLICES)
    assert recent.points() == []


def test_statistics_tell_shares_in_use_and_bytes_since_the_last_ones() -> None:
    recent = Recent(VirtualClock())
    pages = {"device": {"free": 1, "cached": 2, "private": 1}, "disk": {"free": 0}}
    recent.measured(Stats({"running": 3, "waiting": 1, "parked": 2}, pages, copied=[100, 0]))
    recent.measured(Stats({"running": 2}, pages, copied=[100, 50]))
    (point,) = recent.points()
    assert (point["running"], point["waiting"], point["copied"], point["used"]) == (2, 0, 150, {"device": 0.75})


def test_whoever_is_refused_is_told_when_the_queue_should_have_moved_on() -> None:
    clock = VirtualClock()
    recent = Recent(clock)
    assert (recent.retry_after(0), recent.retry_after(5)) == (1, 60)
    for _ in range(30):
        recent.admitted(OUTCOME)
    assert (recent.retry_after(0), recent.retry_after(10), recent.retry_after(10**6)) == (1, 10, 60)
