"""The part of /metrics that tells ranks apart: nothing where there is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

_COUNTERS = {
    "copies_done": "Copies that a rank has made its part of",
    "copies_failed": "Copies that failed since this rank's part of them did",
    "late_seconds": "Seconds between the first rank's report of a copy and this one's, where this one was the last",
}
_GAUGES = {
    "copies_open": "Copies that a rank has not reported yet",
    "device_planned_bytes": "Memory of a rank's GPU that weights, pages and live states take; nothing without a GPU",
    "device_peak_bytes": "Memory of a rank's GPU that tensors took at the most; nothing without a GPU",
    "host_ready_slots": "Slots of host memory that a rank can use by now, where it is page-locked in the background",
}


def rank_metrics(ranks: Sequence[Mapping[str, float]]) -> Iterator[Metric]:
    """`ranks` as in `stepwell.engine.process.messages.Stats`."""
    for kind, texts in ((CounterMetricFamily, _COUNTERS), (GaugeMetricFamily, _GAUGES)):
        for name, text in texts.items():
            family = kind(f"stepwell_rank_{name}", text, labels=["rank"])
            for rank, counts in enumerate(ranks):
                if name in counts:
                    family.add_metric([str(rank)], counts[name])
            yield family
