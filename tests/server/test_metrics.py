"""Metrics: all there from the start, named as documented, counted once."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from stepwell.cache.moves import Tier
from stepwell.cache.outcome import AdmissionOutcome, Loss, Reason
from stepwell.engine.messages import Stats
from stepwell.server.metrics import Metrics

DOCUMENT = Path(__file__).parents[2] / "docs" / "metrics.md"
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
    assert shown(metrics)['stepwell_admissions_total{reason="no_room"}'] == 0
    metrics.admitted(OUTCOME)
    metrics.admitted(READMITTED)
    values = shown(metrics)
    sources = {name: value for name, value in values.items() if name.startswith("stepwell_prompt_tokens_total{")}
    assert len(sources) == 4 and sum(sources.values()) == 40
    assert values['stepwell_resumes_total{tier="host"}'] == 1
    assert values['stepwell_recomputed_tokens_total{lost_to="new"}'] == 16
    assert values["stepwell_readmissions_total"] == 1


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
