"""A server's counters over time."""

from __future__ import annotations

from stepwell.cache.reuse.outcome import AdmissionCounts, Loss, Reason
from stepwell.replay.gauges import Gauges, parse


def text(copied: int, left: int) -> str:
    return f"""# TYPE stepwell_copied_bytes counter
stepwell_copied_bytes_total{{target="host",source="device"}} {copied}
# TYPE stepwell_rungs_left counter
stepwell_rungs_left_total {left}
# TYPE stepwell_resumes counter
stepwell_resumes_total{{tier="host"}} {left / 2}
# TYPE stepwell_admissions counter
stepwell_admissions_total{{reason="no_room"}} {left}
# TYPE stepwell_recomputed_tokens counter
stepwell_recomputed_tokens_total{{lost_to="new"}} {10 * left}
# TYPE other counter
other_total 3
"""


def test_counters_are_told_as_growth() -> None:
    gauges = Gauges(2.0)
    for i, (copied, left) in enumerate([(0, 2), (100, 4), (250, 8), (250, 10)]):
        gauges.readings.append((2.0 * i, parse(text(copied, left))))
    assert gauges.traffic().ways == (("device to host", (100, 150, 0)),)
    assert gauges.traffic().since(2.0) == (("device to host", 150),)
    rungs = gauges.rungs(2.0)
    assert rungs is not None
    assert (rungs.left, rungs.used, rungs.demoted) == (6, (0, 3, 0), None)
    tally = AdmissionCounts()
    gauges.explain(tally, 2.0)
    assert (tally.reasons[Reason.NO_ROOM], tally.lost[Loss.NEW]) == (6, 60)


def test_a_server_that_tells_nothing_of_ours_leaves_nothing_told() -> None:
    gauges = Gauges(1.0, [(0.0, parse("# TYPE other counter\nother_total 3\n")), (1.0, {})])
    assert not gauges.told
    assert gauges.rungs(0.0) is None
    assert gauges.traffic().ways == ()
    tally = AdmissionCounts()
    gauges.explain(tally, 0.0)
    assert not any(tally.reasons.values())
