"""The disk tier's part of /metrics: all zero where there is none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_GAUGES = {
    "segments": "Files of records in the disk cache",
    "file_bytes": "Bytes of these files, with headers and dead space",
    "dormant_pages": "Pages on disk that nobody has asked for since an earlier process",
    "paused_seconds": "Seconds until the disk cache tries to write again; 0 while all is well",
}
_COUNTERS = {
    "written_bytes": "Bytes of records written, headers included",
    "rewritten_bytes": "Bytes written once more, to win back dead space",
    "read_bytes": "Bytes of pages read",
    "records_published": "Records written, verified and findable",
    "records_adopted": "Records of an earlier process that a prompt has matched",
    "records_forgotten": "Records dropped by the directory",
    "records_deduplicated": "Records that need not be written, being there already",
    "records_quarantined": "Records that failed a check and are used no more",
    "failed_writes": "Copies to disk that failed",
    "failed_reads": "Copies from disk that failed",
    "compactions": "Files rewritten to win back dead space",
}
_PROBLEMS = "What has stopped the disk cache from writing, or broken a copy, by cause; only causes that have occurred"


def disk_metrics(counts: Mapping[str, float], problems: Mapping[str, int]) -> Iterator[Metric]:
    """`counts` and `problems` as in `stepwell.engine.process.messages.Stats`."""
    for name, text in _GAUGES.items():
        yield GaugeMetricFamily(f"stepwell_disk_{name}", text, value=counts.get(name, 0))
    for name, text in _COUNTERS.items():
        yield CounterMetricFamily(f"stepwell_disk_{name}", text, value=counts.get(name, 0))
    found = CounterMetricFamily("stepwell_disk_problems", _PROBLEMS, labels=["cause"])
    for cause, count in problems.items():
        found.add_metric([cause], count)
    yield found
