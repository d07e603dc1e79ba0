"""What is measured while serving moves the costs, slowly; what says nothing does not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepwell.cache.config import Costs
from stepwell.cache.moves import Tier
from stepwell.sched.meter import LEAST_BYTES, Meter
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Decodes, Fresh, Step, Work

KNOWN = Costs(1000.0, (float("inf"), 1e9, 1e8), 0.0, attention_s_per_pair=1e-6, decode_s=0.01)
ONE = np.zeros(1, np.int32)
ANSWERS = Decodes(("a",), ONE, ONE.astype(np.int64), ONE + 9, ONE, (ONE,), ONE, (SamplingParams(),), ONE + 1)


def part(start: int, count: int) -> Work:
    return Work("p", 0, 0, start, np.zeros(count, np.int32), ONE, 0, Fresh(), (), None)


def test_prefill_behind_a_context_costs_more_and_the_reach_is_its_inverse() -> None:
    assert KNOWN.prefill_seconds(0, 1000) == pytest.approx(1.0 + 0.5)
    assert KNOWN.prefill_seconds(10_000, 11_000) == pytest.approx(1.0 + 10.5)
    for start in (0, 500, 100_000):
        for costs in (KNOWN, replace(KNOWN, attention_s_per_pair=0.0)):
            reach = costs.prefill_within(start, 2.0)
            assert costs.prefill_seconds(start, start + reach) <= 2.0 < costs.prefill_seconds(start, start + reach + 1)
    assert KNOWN.prefill_within(0, 0.0) == KNOWN.prefill_within(0, -1.0) == 0


def test_a_machine_that_is_slower_than_believed_is_believed_in_time() -> None:
    meter = Meter(KNOWN)
    for _ in range(100):
        meter.computed(Step((part(2000, 512),)), 3 * KNOWN.prefill_seconds(2000, 2512))
    assert meter.costs.prefill_seconds(0, 700) == pytest.approx(3 * KNOWN.prefill_seconds(0, 700), rel=0.01)
    for _ in range(100):
        meter.copied(Tier.HOST, LEAST_BYTES, LEAST_BYTES / 2e9)
    assert meter.costs.bytes_per_s[Tier.HOST] == pytest.approx(2e9, rel=0.01)
    assert meter.costs.bytes_per_s[Tier.DISK] == 1e8


def test_decodes_beside_a_prompt_are_not_counted_as_prefill() -> None:
    meter = Meter(KNOWN)
    meter.computed(Step((part(0, 512),), ANSWERS), KNOWN.prefill_seconds(0, 512) + KNOWN.decode_s)
    assert meter.costs.prefill_tokens_per_s == pytest.approx(KNOWN.prefill_tokens_per_s)
    meter.computed(Step((), ANSWERS), 0.03)
    assert 0.01 < meter.costs.decode_s < 0.03


def test_costs_stay_as_they_are_while_decodes_take_about_what_they_say() -> None:
    meter = Meter(KNOWN)
    for i in range(40):
        meter.computed(Step((), ANSWERS), KNOWN.decode_s * (1.05 if i % 2 else 0.95))
    assert meter.costs is KNOWN
    for _ in range(40):
        meter.computed(Step((), ANSWERS), KNOWN.decode_s * 1.05)
    assert meter.costs.decode_s == pytest.approx(1.05 * KNOWN.decode_s, rel=0.012)


def test_costs_that_are_set_are_where_measuring_goes_on() -> None:
    meter = Meter(KNOWN)
    meter.costs = replace(KNOWN, decode_s=0.09)
    meter.computed(Step((), ANSWERS), 0.09)
    assert meter.costs.decode_s == pytest.approx(0.09)


def test_what_a_step_takes_before_its_first_token_is_no_slow_prefill() -> None:
    known = replace(KNOWN, prompt_step_s=0.5)
    meter = Meter(known)
    meter.computed(Step((part(0, 512),)), 0.5 + known.prefill_seconds(0, 512))
    assert meter.costs.prefill_tokens_per_s == pytest.approx(known.prefill_tokens_per_s)
    for _ in range(100):
        meter.computed(Step((part(0, 512),)), 2 * (0.5 + known.prefill_seconds(0, 512)))
    assert meter.costs.prompt_step_s == pytest.approx(1.0, rel=0.01)


def test_a_step_shorter_than_its_decodes_were_thought_to_be_says_nothing_of_prompts() -> None:
    meter = Meter(KNOWN)
    meter.computed(Step((part(0, 512),), ANSWERS), KNOWN.decode_s / 2)
    assert meter.costs == KNOWN


def test_one_look_moves_little() -> None:
    meter = Meter(KNOWN)
    meter.computed(Step((part(0, 512),)), 1e6)
    assert meter.costs.prefill_tokens_per_s > KNOWN.prefill_tokens_per_s / 1.4


@pytest.mark.parametrize("seconds", [0.0, -1.0])
def test_what_takes_no_time_says_nothing(seconds: float) -> None:
    meter = Meter(KNOWN)
    meter.computed(Step((part(0, 512),)), seconds)
    meter.copied(Tier.HOST, LEAST_BYTES, seconds)
    assert meter.costs is KNOWN


def test_short_parts_and_small_copies_say_nothing() -> None:
    meter = Meter(KNOWN)
    meter.computed(Step((part(0, 64),)), 9.0)
    meter.copied(Tier.HOST, LEAST_BYTES - 1, 9.0)
    assert meter.costs is KNOWN


def test_frozen_costs_stay() -> None:
    meter = Meter(KNOWN, frozen=True)
    meter.computed(Step((part(0, 512),)), 9.0)
    meter.computed(Step((), ANSWERS), 9.0)
    meter.copied(Tier.HOST, LEAST_BYTES, 9.0)
    assert meter.costs is KNOWN
