"""The loop's own statistics as a message."""

from __future__ import annotations

from stepwell.engine.messages import Stats

PHASES = ("waiting", "loading", "prefill", "decode")
PAGE_STATES = ("free", "cached", "leased")


def stats_message(stats: object) -> Stats:
    assert isinstance(stats, Stats)
    return stats
