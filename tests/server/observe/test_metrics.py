"""Metrics: all there from the start, named as documented, counted once."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Loss, Reason
from stepwell.engine.process.messages import Stats
from stepwell.engine.process.stats import COPIES, PAGE_STATES, PHASES
from stepwell.sched.request import FinishReason
from stepwell.server.http import errors
from stepwell.server.observe.metrics import STATUSES, Metrics

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"
OUTCOME = AdmissionOutcome("a", 40, 16, 8, 0, 16, 24, 16, Tier.HOST, Reason.COMPLETE, ((Loss.NEW, 16),))
READMITTED = AdmissionOutcome("a", 40, 40, 0, 0, 0, 40, 40, Tier.DEVICE, Reason.COMPLETE, readmission=True)


def shown(metrics: Metrics) -> dict[str, float]:
    lines = metrics.render().decode().splitlines()
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if not line.startswith("#")}


def test_documented_metrics_are_the_exported_ones() -> None:
    metrics = Metrics()
    metrics.watch(Stats, lambda: True)
    exported = set(re.findall(r"^# TYPE (\S+)", metrics.render().decode(), re.MULTILINE))
    documented = set(re.findall(r"`(stepwell_\w+)`", DOCUMENT.read_text("utf-8")))
    assert {name for name in exported if not name.endswith("_created")} == documented


def test_tokens_by_source_sum_to_the_prompt_and_readmissions_stay_apart() -> None:
    metrics = Metrics()
    metrics.watch(lambda: Stats(counters={"readmissions": 3}), lambda: True)
    assert shown(metrics)['stepwell_admissions_total{reason="no_room"}'] == 0
    metrics.admitted(OUTCOME)
    metrics.admitted(READMITTED)
    values = shown(metrics)
    sources = {name: value for name, value in values.items() if name.startswith("stepwell_prompt_tokens_total{")}
    assert len(sources) == 5 and sum(sources.values()) == 40
    assert values['stepwell_resumes_total{tier="host"}'] == 1
    assert values['stepwell_admissions_total{reason="complete"}'] == 1
    assert values['stepwell_recomputed_tokens_total{lost_to="new"}'] == 16
    assert values["stepwell_readmissions_total"] == 3


def test_what_the_cache_saved_is_told_at_the_speed_of_the_time_and_nothing_while_that_is_unknown() -> None:
    metrics = Metrics()
    metrics.admitted(OUTCOME)
    assert shown(metrics)["stepwell_prefill_saved_seconds_total"] == metrics.saved(OUTCOME) == 0
    metrics.measured(Stats(prefill=(48.0, 0.001)))
    metrics.admitted(OUTCOME)
    metrics.admitted(READMITTED)
    cached = OUTCOME.cached
    saved = cached / 48 + 0.001 * cached * cached / 2
    assert shown(metrics)["stepwell_prefill_saved_seconds_total"] == pytest.approx(saved)
    (point,) = metrics.recent.points(metrics.recent.window(600))
    assert point["saved"] == pytest.approx(saved, abs=0.001) and point["admitted"] == 2


def test_compiled_kernels_and_device_memory_are_told() -> None:
    metrics = Metrics()
    given = Stats(compiled={"start": 40, "serving": 2}, device_bytes={"planned": 100, "peak": 130})
    metrics.watch(lambda: given, lambda: True)
    values = shown(metrics)
    assert values['stepwell_kernels_compiled_total{when="start"}'] == 40
    assert values['stepwell_kernels_compiled_total{when="serving"}'] == 2
    assert values['stepwell_device_memory_bytes{kind="peak"}'] == 130
    none = Metrics()
    none.watch(Stats, lambda: True)
    assert shown(none)['stepwell_kernels_compiled_total{when="serving"}'] == 0


def test_what_another_has_computed_is_counted() -> None:
    metrics = Metrics()
    metrics.admitted(OUTCOME)
    metrics.admitted(replace(OUTCOME, coalesced=12))
    values = shown(metrics)
    assert (values["stepwell_coalesced_requests_total"], values["stepwell_coalesced_tokens_total"]) == (1, 12)


def test_only_answers_that_ended_by_themselves_can_be_empty() -> None:
    metrics = Metrics()
    metrics.finished("stop", empty=True)
    metrics.finished("abort", empty=True)
    values = shown(metrics)
    assert values["stepwell_empty_completions_total"] == 1
    assert values['stepwell_requests_total{finish_reason="abort"}'] == 1


def labelled(metrics: Metrics) -> set[str]:
    """Every time series that has labels, but for buckets and the disk's causes of trouble, which are any text."""
    return {name for name in shown(metrics) if "{" in name and "le=" not in name and "cause=" not in name}


def test_every_label_is_there_from_the_start_and_use_adds_none() -> None:
    metrics = Metrics()
    stats = Stats()
    metrics.watch(lambda: stats, lambda: True)
    before = labelled(metrics)
    tiers = [None, *Tier]
    for number, reason in enumerate(Reason):
        lost = tuple((loss, 1) for loss in Loss)
        outcome = replace(
            OUTCOME, reason=reason, lost=lost, recomputed=len(lost), state_tier=tiers[number % len(tiers)]
        )
        metrics.admitted(outcome)
    for end in get_args(FinishReason):
        metrics.finished(end, empty=True)
    for status in (400, 404, 418, 429, 500, 503):
        metrics.refused(status)
    pages = {tier.name.lower(): dict.fromkeys(PAGE_STATES, 1) for tier in Tier}
    stats = Stats(queues=dict.fromkeys(PHASES, 1), pages=pages, copied=[1] * len(COPIES))
    assert labelled(metrics) == before
    assert len(before) > 60


def test_recomputed_tokens_are_lost_to_something_each() -> None:
    metrics = Metrics()
    for outcome in (OUTCOME, replace(OUTCOME, lost=((Loss.NO_RUNG, 10), (Loss.NEW, 6)))):
        metrics.admitted(outcome)
    values = shown(metrics)
    lost = sum(value for name, value in values.items() if name.startswith("stepwell_recomputed_tokens_total{"))
    assert lost == values['stepwell_prompt_tokens_total{source="recomputed"}'] == 32


def test_calls_that_never_read_the_cache_are_no_part_of_a_hit_rate() -> None:
    """They are scored, or were told not to read it: all their tokens are `not_read`, which the documented rate leaves out."""
    metrics = Metrics()
    metrics.admitted(OUTCOME)
    apart = AdmissionOutcome("b", 600, 0, 0, 0, 600, 0, 0, None, Reason.NOT_READ, ((Loss.NOT_READ, 600),))
    metrics.admitted(apart)
    values = shown(metrics)
    tokens = sum(value for name, value in values.items() if name.startswith("stepwell_prompt_tokens_total{"))
    lost = {loss: values[f'stepwell_recomputed_tokens_total{{lost_to="{loss.value}"}}'] for loss in Loss}
    unread = lost.pop(Loss.NOT_READ)
    assert 1 - sum(lost.values()) / (tokens - unread) == OUTCOME.cached / OUTCOME.prompt > 0
    rate = 'stepwell_recomputed_tokens_total{lost_to!="not_read"}'
    assert rate in DOCUMENT.read_text("utf-8")


def test_every_status_that_the_server_answers_with_is_counted() -> None:
    sources = Path(errors.__file__).parents[1].rglob("*.py")
    used = {status for path in sources for status in re.findall(r"Problem\(\s*(\d{3})", path.read_text("utf-8"))}
    assert len(used) > 8 and used <= set(STATUSES)
