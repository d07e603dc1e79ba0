"""A histogram for measurements at every token: an observation costs a search among the bounds and two additions."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Times(Collector):
    """Times in seconds, counted by size. For one thread."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        """`bounds`, ascending, are the longest times of the buckets; one more bucket takes longer times."""
        self._name = name
        self._text = text
        self._bounds = [float(bound) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[Metric]:
        """As Prometheus shows histograms: each bucket holds those before it, too."""
        names = map(floatToGoString, [*self._bounds, math.inf])
        buckets = list(zip(names, map(float, accumulate(self._counts)), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)
