"""Times: what Prometheus reads of them is what its own histogram would show."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Histogram, generate_latest

from stepwell.server.observe.times import Times

BOUNDS = (0.01, 0.5, 1, 30)
SEEN = (0.0, 0.01, 0.011, 0.5, 0.75, 1.0, 2.0, 30.0, 31.0, 1e9)


def shown(registry: CollectorRegistry) -> list[str]:
    return [line for line in generate_latest(registry).decode().splitlines() if "_created" not in line]


def test_the_text_is_that_of_the_library_s_own_histogram() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    times = Times("wait_seconds", "How long", BOUNDS)
    ours.register(times)
    library = Histogram("wait_seconds", "How long", buckets=BOUNDS, registry=theirs)
    assert shown(ours) == shown(theirs)  # before anything was seen, too
    for seconds in SEEN:
        times.observe(seconds)
        library.observe(seconds)
    assert shown(ours) == shown(theirs)
