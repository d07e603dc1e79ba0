"""What /metrics says of each tensor-parallel rank."""

from __future__ import annotations

from stepwell.server.observe.rank_metrics import rank_metrics


def test_each_rank_has_a_row_of_what_it_counts() -> None:
    first = {"copies_done": 3.0, "copies_failed": 0.0, "late_seconds": 0.5, "copies_open": 1.0}
    second = {
        **first,
        "copies_failed": 2.0,
        "device_peak_bytes": 7e9,
        "device_planned_bytes": 6e9,
        "host_ready_slots": 4,
    }
    rows = {
        (sample.name, sample.labels["rank"]): sample.value
        for family in rank_metrics([first, second])
        for sample in family.samples
    }
    assert rows["stepwell_rank_copies_failed_total", "0"] == 0 and rows["stepwell_rank_copies_failed_total", "1"] == 2
    assert rows["stepwell_rank_late_seconds_total", "1"] == 0.5 and rows["stepwell_rank_copies_open", "0"] == 1
    assert rows["stepwell_rank_device_peak_bytes", "1"] == 7e9
    assert ("stepwell_rank_device_peak_bytes", "0") not in rows, "a rank without a GPU has none to tell of"


def test_one_rank_alone_has_no_rows() -> None:
    assert not [sample for family in rank_metrics([]) for sample in family.samples]
