"""Seconds of steps and copies."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepwell.base.errors import ConfigError
from stepwell.cache.moves import Extent, LiveState, Move, Tier
from stepwell.replay.cost import CostModel, decodes, direction
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Carry, FromImage, Sample, Step, Work

COSTS = CostModel(
    prefill_tokens_per_s=1000.0,
    attention_s_per_pair=1e-6,
    weights_s=0.01,
    sequence_s=0.001,
    kv_s_per_token=1e-5,
    overhead_s=0.002,
    to_device=1000.0,
    to_host=500.0,
    from_disk=100.0,
    to_disk=50.0,
    copy_latency_s=0.5,
)


def work(start: int, tokens: int, draw: int | None) -> Work:
    sample = None if draw is None else Sample(SamplingParams(), draw)
    return Work("r", 0, 0, start, np.zeros(tokens, np.int32), np.zeros(1, np.int32), start, Carry(), (), sample)


def move(source: Tier, target: Tier | None, slots: int) -> Move:
    ids = np.arange(slots, dtype=np.int32)
    return Move(1, "kv", Extent(source, ids), LiveState(0) if target is None else Extent(target, ids), 0)


def test_a_prefill_pays_for_its_tokens_and_for_what_they_attend_to() -> None:
    cold = COSTS.step_seconds(Step((work(0, 200, None),)))
    assert cold == pytest.approx(0.003 + 0.2 + 200 * 100 * 1e-6)
    resumed = COSTS.step_seconds(Step((work(5000, 200, 0),)))
    assert resumed - cold == pytest.approx(200 * 5000 * 1e-6)


def test_a_decode_pays_for_the_weights_and_its_context() -> None:
    decode = work(999, 1, 3)
    assert decodes(decode)
    assert not decodes(work(999, 1, 0)), "the last token of a prompt is prefill"
    assert COSTS.step_seconds(Step((decode,))) == pytest.approx(0.003 + 0.01 + 1000 * 1e-5)
    both = COSTS.step_seconds(Step((decode, work(1999, 1, 1))))
    assert both == pytest.approx(0.004 + 0.01 + 3000 * 1e-5)


def test_prompts_beside_decodes_may_take_a_pass_of_their_own() -> None:
    dearer = replace(COSTS, apart_s=0.25)
    prompt, decode = work(0, 200, None), work(999, 1, 3)
    for step in (Step((prompt,)), Step((decode, decode))):
        assert dearer.step_seconds(step) == COSTS.step_seconds(step)
    assert dearer.step_seconds(Step((prompt, decode))) == pytest.approx(
        COSTS.step_seconds(Step((prompt, decode))) + 0.25
    )
    assert dearer.pass_seconds([(0, 200)], 1, 1000) == pytest.approx(COSTS.pass_seconds([(0, 200)], 1, 1000) + 0.25)
    assert dearer.pass_seconds([(0, 200)], 0, 0) == COSTS.pass_seconds([(0, 200)], 0, 0)


def test_prompts_that_were_loaded_may_cost_more() -> None:
    dearer = replace(COSTS, load_s=0.25)
    cold, resumed = work(0, 200, None), work(5000, 200, 0)
    later = replace(resumed, known=300)
    on_device = replace(resumed, state=FromImage(np.zeros(1, np.int32)))
    for other in (cold, later, on_device, work(999, 1, 3)):
        assert dearer.step_seconds(Step((other,))) == COSTS.step_seconds(Step((other,)))
    both = Step((resumed, resumed))
    assert dearer.step_seconds(both) == pytest.approx(COSTS.step_seconds(both) + 0.5)


def test_repeated_decodes_cost_what_the_single_ones_do() -> None:
    singly = sum(COSTS.step_seconds(Step((work(999 + i, 1, 1 + i), work(50 + i, 1, 1 + i)))) for i in range(20))
    at_once = COSTS.step_seconds(Step((work(999, 1, 1), work(50, 1, 1))), passes=20)
    assert at_once == pytest.approx(singly)


def test_a_pass_costs_what_the_step_of_the_same_works_does() -> None:
    step = Step((work(5000, 200, None), work(0, 30, 0), work(999, 1, 3), work(1999, 1, 1)))
    assert COSTS.pass_seconds([(5000, 200), (0, 30)], 2, 3000) == pytest.approx(COSTS.step_seconds(step))
    assert COSTS.pass_seconds([], 2, 3000) == COSTS.decode_seconds(2, 3000)


@pytest.mark.parametrize(
    ("source", "target", "speed"),
    [
        (Tier.HOST, Tier.DEVICE, 1000.0),
        (Tier.HOST, None, 1000.0),
        (Tier.DEVICE, Tier.HOST, 500.0),
        (Tier.DISK, Tier.HOST, 100.0),
        (Tier.DISK, Tier.DEVICE, 100.0),
        (Tier.HOST, Tier.DISK, 50.0),
        (Tier.DEVICE, Tier.DEVICE, float("inf")),
    ],
)
def test_a_copy_pays_for_its_direction(source: Tier, target: Tier | None, speed: float) -> None:
    copy = move(source, target, 4)
    assert COSTS.copy_seconds(copy, page_bytes=25) == pytest.approx(0.5 + 100 / speed)
    assert direction(copy) == (source, Tier.DEVICE if target is None else target)


@pytest.mark.parametrize("bad", [{"to_device": 0.0}, {"weights_s": -1.0}, {"prefill_tokens_per_s": float("nan")}])
def test_costs_that_cannot_be_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        CostModel(**bad)  # type: ignore[arg-type]
