"""Prompts beside answers: a step that holds decodes is bounded in time, and still cut on the grid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stepwell.cache.config import Costs
from stepwell.sched.step import Step
from tests.cache.builders import numbers
from tests.sched.rig import Rig

SLOW = Costs(prefill_tokens_per_s=1000.0, decode_s=0.004)


def rig(max_step_s: float, costs: Costs = SLOW, **options: int) -> Rig:
    made = Rig(pages=400, grid=8, budget=200, seqs=6, **options)  # type: ignore[arg-type]
    made.loop.config = replace(made.loop.config, max_step_s=max_step_s)
    made.loop.meter.costs = costs
    made.loop.meter._frozen = True
    return made


def parts(step: Step) -> list[tuple[int, int]]:
    return [(work.start, work.start + len(work.tokens)) for work in step.parts]


def with_a_stream(made: Rig) -> Rig:
    made.submit("stream", numbers(10, 7), max_tokens=80)
    made.step()
    return made


def test_a_prompt_beside_a_stream_comes_in_parts_of_the_time_that_is_left() -> None:
    made = with_a_stream(rig(0.030))
    made.submit("long", numbers(100), max_tokens=2)
    made.run()
    assert [parts(step) for step in made.steps[1:6]] == [[(0, 24)], [(24, 48)], [(48, 72)], [(72, 96)], [(96, 100)]]
    made.cold("stream", "long")


def test_a_step_that_takes_long_before_its_first_token_leaves_less_time_for_tokens() -> None:
    made = with_a_stream(rig(0.030, replace(SLOW, prompt_step_s=0.008)))
    made.submit("long", numbers(100), max_tokens=2)
    made.run()
    assert [parts(step) for step in made.steps[1:4]] == [[(0, 16)], [(16, 32)], [(32, 48)]]


def test_decodes_that_are_thought_to_take_for_ever_leave_prompts_a_quarter() -> None:
    made = with_a_stream(rig(0.064, replace(SLOW, decode_s=3.0)))
    made.submit("long", numbers(100), max_tokens=2)
    made.run()
    assert [parts(step) for step in made.steps[1:4]] == [[(0, 16)], [(16, 32)], [(32, 48)]]


def test_alone_it_has_all_the_time() -> None:
    made = rig(0.030)
    made.submit("long", numbers(100), max_tokens=2)
    made.run()
    assert parts(made.steps[0]) == [(0, 100)]


def test_without_a_bound_it_has_the_whole_budget_of_tokens() -> None:
    made = with_a_stream(rig(0.0))
    made.submit("long", numbers(100), max_tokens=2)
    made.run()
    assert parts(made.steps[1]) == [(0, 100)]


@pytest.mark.parametrize("seconds", [1e-9, 0.003])
def test_one_grid_is_computed_however_little_time_there_is(seconds: float) -> None:
    made = with_a_stream(rig(seconds))
    made.submit("long", numbers(30), max_tokens=2)
    made.submit("other", numbers(30, 3), max_tokens=2)
    made.run()
    assert [parts(step) for step in made.steps[1:5]] == [[(0, 8)], [(8, 16)], [(16, 24)], [(24, 30)]]
    made.cold("stream", "long", "other")


def test_attention_makes_parts_smaller_as_the_context_grows() -> None:
    made = with_a_stream(rig(0.050, replace(SLOW, attention_s_per_pair=2e-5)))
    made.submit("long", numbers(150), max_tokens=2)
    made.run()
    sizes = [end - start for step in made.steps[1:] for start, end in parts(step)]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[-2] and all(size % 8 == 0 for size in sizes[:-1])


def test_what_the_first_prompt_leaves_is_the_next_ones() -> None:
    made = with_a_stream(rig(0.0605))
    made.submit("short", numbers(20), max_tokens=2)
    made.submit("long", numbers(100, 3), max_tokens=2)
    made.run()
    assert [parts(step) for step in made.steps[1:3]] == [[(0, 20), (0, 32)], [(32, 88)]]


def test_plan_explain_and_commit_of_a_turn_see_one_value() -> None:
    made = rig(0.0)
    made.step()
    before = made.loop.costs
    made.loop.meter.costs = Costs(1.0)
    assert made.loop.costs is before, "what has been measured meanwhile waits for the next turn"
    made.step()
    assert made.loop.costs == Costs(1.0)
