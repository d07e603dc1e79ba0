"""What /metrics shows. Every label combination exists from the start, at zero.

Counters follow the engine's own events and the ends of API calls; gauges are the engine's latest statistics. No metric
carries text, names or salts of callers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import get_args

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stepwell.base.clock import Clock, WallClock
from stepwell.cache.config import Costs
from stepwell.cache.hints import Status
from stepwell.cache.moves import NATIVE, Tier
from stepwell.cache.reuse.outcome import AdmissionCounts, AdmissionOutcome, Loss, Reason
from stepwell.engine.process.messages import Stats
from stepwell.engine.process.stats import COPIES, COUNTERS, GAUGES, PAGE_STATES, PHASES
from stepwell.sched.request import FinishReason
from stepwell.server.observe.disk_metrics import disk_metrics
from stepwell.server.observe.phases import Phases
from stepwell.server.observe.rank_metrics import rank_metrics
from stepwell.server.observe.recent import Recent
from stepwell.server.observe.times import Times
from stepwell.server.observe.vllm import VllmNames

SOURCES = ("device", "host", "disk", "external", "recomputed")
STATUSES = ("400", "401", "403", "404", "405", "408", "409", "413", "415", "429", "499", "500", "503")
_STATE_TIERS = ("none", *(tier.name.lower() for tier in Tier))
_BELOW = tuple(tier.name.lower() for tier in Tier if tier != Tier.DEVICE)
_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_NEXT_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)

_COPIED = "Bytes that copies between tiers were asked to move"
_COMPILED = (
    "Kernels compiled before the first request, and while requests may have waited, of which there should be none"
)
_EVENTS = "Batches of cache events that were published, and that were dropped since too many waited"
_MEMORY = (
    "Memory of a GPU that tensors take: planned (weights, pages, live states), and at the peak; nothing without a GPU"
)
_DRAFTS = "Drafted tokens by position (1: behind the drawn one), and whether accepted (yes, no)"
_TEXTS = {
    "leases": "Named holds on pages, images or slots",
    "nodes": "Nodes of the prefix tree",
    "moves_in_flight": "Copies that have not been reported",
    "moves_overdue": "Copies between tiers that have not been reported for --load-timeout",
    "page_bytes": "Bytes of one page, in every tier",
    "pins": "Prompts that are pinned",
    "drafting": "Whether answers draft now (1): drafts turn themselves off where they cost more than they save",
    "prefetched_tokens": "Tokens that prefetches have brought to the device",
    "steps": "Forward passes",
    "computed_tokens": "Tokens that went through the model",
    "sampled_tokens": "Tokens chosen by the engine, whoever reads them",
    "preemptions": "Sequences sent back to the queue for want of pages",
    "readmissions": "Admissions after a preemption",
    "rungs_left": "Rungs left in the cache",
    "rungs_skipped": "Rungs not left for want of pages",
    "audits": "Resumed prompts that were computed once more, cold",
    "audit_mismatches": "Audits whose answers differed",
    "audits_skipped": "Audits that could not be held",
    "quarantined": "Cached copies taken out after a mismatch",
    "sched_seconds": "Time spent on plans, steps and bookkeeping, outside the model",
}


class Metrics:
    """The counters of one server, in a registry of their own."""

    def __init__(self, clock: Clock | None = None) -> None:
        self.registry = CollectorRegistry()
        self.recent = Recent(clock or WallClock())
        self._tally = AdmissionCounts()
        self._ends: dict[str, int] = dict.fromkeys(get_args(FinishReason), 0)
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens by where they came from", "source", SOURCES)
        self._lost = self._counter(
            "recomputed_tokens", "Recomputed prompt tokens by what they were lost to", "lost_to", Loss
        )
        self._admissions = self._counter("admissions", "Admissions by why they resumed no further", "reason", Reason)
        self._resumes = self._counter(
            "resumes", "Admissions by the tier of the state they resumed from", "tier", _STATE_TIERS
        )
        self._boundaries = self._counter(
            "boundaries", "Admissions that loaded, by the tier of the state they resumed from", "tier", _STATE_TIERS[1:]
        )
        self._loads = _load_legs(self.registry)
        self._saved = self._plain(
            "prefill_saved_seconds", "Prefill that cached tokens would have taken, at the speed measured at the time"
        )
        self._prefill = (0.0, 0.0)
        self._coalesced = self._plain("coalesced_requests", "Admissions that waited for what another computed")
        self._coalesced_tokens = self._plain("coalesced_tokens", "Tokens that they did not compute themselves")
        self._ahead = self._plain("look_ahead_requests", "Conversations computed as their next turn will have them")
        self._ahead_tokens = self._plain("look_ahead_tokens", "Prompt tokens computed for them")
        self._hangs = self._plain("engine_hangs", "Times that the engine gave no sign of life or no step ended")
        self._restarts = self._plain(
            "engine_restarts", "Times that an engine was started in place of one that had ended"
        )
        self._generated = self._plain("generation_tokens", "Tokens generated")
        reasons = get_args(FinishReason)
        self._finished = self._counter("requests", "Sequences by how they ended", "finish_reason", reasons)
        self._empty = self._plain("empty_completions", "Sequences that ended without visible text")
        self._refused = self._counter("http_errors", "Calls answered with an error, by status", "status", STATUSES)
        self._first = self._histogram(
            "time_to_first_token_seconds", "From a call's arrival to its first token", _FIRST_TOKEN_BUCKETS
        )
        self._next = self._histogram(
            "inter_token_seconds", "Between tokens; one observation a delivery", _NEXT_TOKEN_BUCKETS
        )
        self.phases = Phases(self.registry)
        self._said = 0

    def watch(self, stats: Callable[[], Stats], up: Callable[[], bool]) -> None:
        """Show an engine's gauges too."""
        self.registry.register(_EngineGauges(stats, up))

    def also_as_vllm(self, model: str, stats: Callable[[], Stats]) -> None:
        """Show what has a name in vLLM under that, too."""
        times = {**self.phases.times, "time_to_first_token_seconds": self._first, "inter_token_seconds": self._next}
        self.registry.register(VllmNames(model, times, self.totals, lambda: self._said, stats))

    def render(self) -> bytes:
        """All metrics in the text format."""
        return generate_latest(self.registry)

    def totals(self) -> dict[str, dict[str, int]]:
        """Sums since the start: prompt tokens by source, recomputed ones by what they were lost to, sequences by how they ended."""
        tally = self._tally
        return {
            "tokens": {source: getattr(tally, source) for source in SOURCES},
            "lost": {loss.value: tokens for loss, tokens in tally.lost.items()},
            "ends": dict(self._ends),
        }

    def admitted(self, outcome: AdmissionOutcome) -> None:
        for tier, leg, came in outcome.legs:
            for result in ("attempted", "completed" if came else "failed"):
                self._loads.labels(tier.name.lower(), leg, result).inc()
        if outcome.readmission:  # its tokens were counted when it was first admitted
            return
        saved = self.saved(outcome)
        self.recent.admitted(outcome, saved)
        self._saved.inc(saved)
        self._tally.add(outcome)
        self._coalesced.inc(outcome.coalesced > 0)
        self._coalesced_tokens.inc(outcome.coalesced)
        for source in SOURCES:
            self._prompt_tokens.labels(source).inc(getattr(outcome, source))
        for loss, tokens in outcome.lost:
            self._lost.labels(loss).inc(tokens)
        self._admissions.labels(outcome.reason).inc()
        state = "none" if outcome.state_tier is None else outcome.state_tier.name.lower()
        self._resumes.labels(state).inc()
        if outcome.loaded:
            self._boundaries.labels(state).inc()

    def looked_ahead(self, outcome: AdmissionOutcome) -> None:
        """A conversation was computed as its next turn will have it: no call's, and no part of any rate."""
        self._ahead.inc()
        self._ahead_tokens.inc(outcome.recomputed)

    def hung(self) -> None:
        self._hangs.inc()

    def restarted(self) -> None:
        self._restarts.inc()

    def generated(self, tokens: int) -> None:
        self._generated.inc(tokens)
        self._said += tokens
        self.recent.slice().generated += tokens

    def saved(self, outcome: AdmissionOutcome) -> float:
        """Seconds of prefill that the cached tokens of a prompt would take at the engine's present speed; 0 while that is unknown."""
        speed, pair = self._prefill
        return Costs(speed, attention_s_per_pair=pair).prefill_seconds(0, outcome.cached) if speed else 0.0

    def measured(self, stats: Stats) -> None:
        self._prefill = stats.prefill
        self.recent.measured(stats)

    def retry_after(self, waiting: int) -> int:
        """Whole seconds until `waiting` sequences will have been admitted, as far as the last half minute tells."""
        return self.recent.retry_after(waiting)

    def finished(self, reason: FinishReason, empty: bool) -> None:
        self._finished.labels(reason).inc()
        self._ends[reason] += 1
        self.recent.slice().ended += 1
        if empty and reason in ("stop", "length"):
            self._empty.inc()

    def first_token(self, seconds: float) -> None:
        self._first.observe(seconds)
        self.recent.slice().first.add(seconds)

    def next_token(self, seconds: float) -> None:
        self._next.observe(seconds)
        self.recent.slice().next.add(seconds)

    def refused(self, status: int) -> None:
        self.recent.slice().errors += status >= 500
        if str(status) in STATUSES:
            self._refused.labels(str(status)).inc()

    def _counter(self, name: str, text: str, label: str, values: Iterable[str]) -> Counter:
        counter = Counter(f"stepwell_{name}", text, (label,), registry=self.registry)
        for value in values:
            counter.labels(value)
        return counter

    def _plain(self, name: str, text: str) -> Counter:
        return Counter(f"stepwell_{name}", text, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Times:
        times = Times(f"stepwell_{name}", text, buckets)
        self.registry.register(times)
        return times


def _load_legs(registry: CollectorRegistry) -> Counter:
    """Loads of every tier below the device, by leg and result; all there from the start."""
    counter = Counter(
        "stepwell_load_legs",
        "Loads by the tier that was read, the leg (kv or image), and the result: attempted, completed or failed",
        ("tier", "leg", "result"),
        registry=registry,
    )
    for labels in product(_BELOW, ("kv", "image"), ("attempted", "completed", "failed")):
        counter.labels(*labels)
    return counter


class _EngineGauges(Collector):
    """Reads the latest statistics whenever someone looks."""

    def __init__(self, stats: Callable[[], Stats], up: Callable[[], bool]) -> None:
        self._stats = stats
        self._up = up

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        yield GaugeMetricFamily("stepwell_engine_up", "1 while the engine serves", value=float(self._up()))
        queue = GaugeMetricFamily("stepwell_queue_requests", "Sequences in the engine by phase", labels=["phase"])
        for phase in PHASES:
            queue.add_metric([phase], stats.queues.get(phase, 0))
        yield queue
        yield from self._numbers(stats)
        yield from disk_metrics(stats.disk, stats.problems)
        yield from rank_metrics(stats.ranks)

    def _numbers(self, stats: Stats) -> Iterator[Metric]:
        pages = GaugeMetricFamily("stepwell_pages", "Pages by tier and state", labels=["tier", "state"])
        for tier in (t.name.lower() for t in NATIVE):
            here: Mapping[str, int] = stats.pages.get(tier, {})
            for state in PAGE_STATES:
                pages.add_metric([tier, state], here.get(state, 0))
        yield pages
        copied = CounterMetricFamily("stepwell_copied_bytes", _COPIED, labels=["source", "target"])
        for (source, target), count in zip(COPIES, stats.copied or [0] * len(COPIES), strict=True):
            copied.add_metric([source, target], count)
        yield copied
        prefetches = CounterMetricFamily("stepwell_prefetches", "Prefetches by what became of them", labels=["status"])
        for status in Status:
            prefetches.add_metric([status], stats.prefetches.get(status, 0))
        yield prefetches
        drafts = CounterMetricFamily("stepwell_drafts", _DRAFTS, labels=["position", "accepted"])
        for position, (computed, accepted) in enumerate(stats.drafts, 1):
            drafts.add_metric([str(position), "yes"], accepted)
            drafts.add_metric([str(position), "no"], computed - accepted)
        yield drafts
        compiled = CounterMetricFamily("stepwell_kernels_compiled", _COMPILED, labels=["when"])
        for when in ("start", "serving"):
            compiled.add_metric([when], stats.compiled.get(when, 0))
        yield compiled
        events = CounterMetricFamily("stepwell_cache_event_batches", _EVENTS, labels=["status"])
        for end in ("sent", "dropped"):
            events.add_metric([end], stats.event_batches.get(end, 0))
        yield events
        memory = GaugeMetricFamily("stepwell_device_memory_bytes", _MEMORY, labels=["kind"])
        for kind, count in sorted(stats.device_bytes.items()):
            memory.add_metric([kind], count)
        yield memory
        for name in GAUGES:
            yield GaugeMetricFamily(f"stepwell_{name}", _TEXTS[name], value=stats.gauges.get(name, 0))
        for name in COUNTERS:
            yield CounterMetricFamily(f"stepwell_{name}", _TEXTS[name], value=stats.counters.get(name, 0))
