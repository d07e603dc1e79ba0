"""What a Stepwell server tells at /metrics, read now and then while a live replay runs. Other servers tell nothing that we use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeAlias

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionCounts, Loss, Reason
from stepwell.replay.report import Rungs, Traffic

Counters: TypeAlias = Mapping[tuple[str, tuple[str, ...]], float]
"""(name, values of its labels by the order of their names) → value."""

_MOST_BYTES = 4 << 20


def parse(text: str) -> Counters:
    """Our own counters in Prometheus text; empty where there are none."""
    from prometheus_client.parser import text_string_to_metric_families

    found: dict[tuple[str, tuple[str, ...]], float] = {}
    for family in text_string_to_metric_families(text[:_MOST_BYTES]):
        for sample in family.samples:
            if sample.name.startswith("stepwell_"):
                found[sample.name, tuple(sample.labels[k] for k in sorted(sample.labels))] = sample.value
    return found


@dataclass(slots=True)
class Gauges:
    """Readings in order: (s since the start, counters). `every`: seconds between them."""

    every: float
    readings: list[tuple[float, Counters]] = field(default_factory=list)

    @property
    def told(self) -> bool:
        """Whether the server told anything."""
        return any(counters for _, counters in self.readings)

    def traffic(self) -> Traffic:
        """Bytes copied between two readings, by direction."""
        name = "stepwell_copied_bytes_total"
        ways = sorted({key[1] for _, counters in self.readings for key in counters if key[0] == name})
        series = []
        for way in ways:
            totals = [counters.get((name, way), 0.0) for _, counters in self.readings]
            steps = tuple(max(0, int(b - a)) for a, b in pairwise(totals))
            series.append((f"{way[0]} to {way[1]}", steps))
        return Traffic(self.every, tuple(series))

    def since(self, start: float, name: str, *labels: str) -> int:
        """What a counter grew by from `start` (s) on."""
        if not self.readings:
            return 0
        before = next((c for when, c in self.readings if when >= start), self.readings[-1][1])
        return int(self.readings[-1][1].get((name, labels), 0.0) - before.get((name, labels), 0.0))

    def rungs(self, start: float) -> Rungs | None:
        if not self.told:
            return None
        used = [self.since(start, "stepwell_resumes_total", tier.name.lower()) for tier in Tier]
        return Rungs(
            left=self.since(start, "stepwell_rungs_left_total"),
            skipped=self.since(start, "stepwell_rungs_skipped_total"),
            used=(used[0], used[1], used[2]),
            demoted=None,
        )

    def explain(self, tally: AdmissionCounts, start: float) -> None:
        """Set reasons and losses, which no answer tells, to what the counters grew by."""
        tally.reasons = {r: self.since(start, "stepwell_admissions_total", r.value) for r in Reason}
        tally.lost = {loss: self.since(start, "stepwell_recomputed_tokens_total", loss.value) for loss in Loss}
