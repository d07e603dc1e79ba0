"""What /metrics shows also under the names that vLLM's public Grafana board reads: `--metrics-compat vllm`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stepwell.engine.process.messages import Stats
from stepwell.server.observe.times import Times

_HISTOGRAMS = {
    "vllm:e2e_request_latency_seconds": "request_seconds",
    "vllm:request_queue_time_seconds": "queue_seconds",
    "vllm:request_prefill_time_seconds": "prefill_seconds",
    "vllm:request_decode_time_seconds": "decode_seconds",
    "vllm:request_prompt_tokens": "prompt_length_tokens",
    "vllm:request_generation_tokens": "answer_length_tokens",
    "vllm:request_max_num_generation_tokens": "answer_length_tokens",
    "vllm:time_to_first_token_seconds": "time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "inter_token_seconds",
    "vllm:time_per_output_token_seconds": "inter_token_seconds",
}
_GAUGES = {"vllm:num_requests_running": "running", "vllm:num_requests_waiting": "waiting"}

Totals = Callable[[], Mapping[str, Mapping[str, int]]]


class VllmNames(Collector):
    """Reads our own metrics whenever someone looks. `times` are histograms by the last part of their names."""

    def __init__(
        self,
        model: str,
        times: Mapping[str, Times],
        totals: Totals,
        generated: Callable[[], int],
        stats: Callable[[], Stats],
    ) -> None:
        self._model = model
        self._generated = generated
        self._times = times
        self._totals = totals
        self._stats = stats

    def collect(self) -> Iterator[Metric]:
        for name, ours in _HISTOGRAMS.items():
            for metric in self._times[ours].collect():
                told = Metric(name, metric.documentation, "histogram")
                for sample in metric.samples:
                    theirs = sample.name.replace(f"stepwell_{ours}", name)
                    told.add_sample(theirs, {**sample.labels, "model_name": self._model}, sample.value)
                yield told
        yield from self._counters()
        yield from self._gauges()

    def _counters(self) -> Iterator[Metric]:
        totals = self._totals()
        tokens = totals["tokens"]
        cached = sum(count for source, count in tokens.items() if source != "recomputed")
        for name, value in (
            ("vllm:prompt_tokens", sum(tokens.values())),
            ("vllm:generation_tokens", self._generated()),
            ("vllm:prefix_cache_queries", sum(tokens.values())),
            ("vllm:prefix_cache_hits", cached),
            ("vllm:num_preemptions", self._stats().counters.get("preemptions", 0)),
        ):
            family = CounterMetricFamily(name, "As vLLM counts it", labels=["model_name"])
            family.add_metric([self._model], value)
            yield family
        ended = CounterMetricFamily(
            "vllm:request_success", "Sequences by how they ended", labels=["model_name", "finished_reason"]
        )
        for reason, count in totals["ends"].items():
            ended.add_metric([self._model, reason], count)
        yield ended

    def _gauges(self) -> Iterator[Metric]:
        stats = self._stats()
        for name, phase in _GAUGES.items():
            yield self._gauge(name, stats.queues.get(phase, 0))
        pages = stats.pages.get("device", {})
        whole = sum(pages.get(state, 0) for state in ("free", "cached", "private"))
        yield self._gauge("vllm:kv_cache_usage_perc", pages.get("private", 0) / whole if whole else 0.0)

    def _gauge(self, name: str, value: float) -> Metric:
        family = GaugeMetricFamily(name, "As vLLM measures it", labels=["model_name"])
        family.add_metric([self._model], value)
        return family
