"""What an engine expects of a prompt is what its admission then does, and asking changes nothing."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.cache.moves import Tier
from stepwell.sched.outlook import LOOKED_AT
from tests.interpreted import interpreted
from tests.sched.rig import Rig
from tests.sched.test_stats import PROMPT, example


def test_it_names_the_boundary_and_the_time_that_the_plan_weighs() -> None:
    rig = Rig()
    cold = rig.loop.outlook("", PROMPT)
    assert (cold.boundary, cold.tier, cold.load_s, cold.queue_s, cold.requests) == (0, Tier.DEVICE, 0.0, 0.0, 0)
    rig.ask("a", PROMPT)
    warm = rig.loop.outlook("", PROMPT)
    told = rig.loop.explain("", PROMPT)
    assert told.outcome is not None and warm.boundary == told.outcome.boundary > 0
    costs = rig.loop.costs
    assert warm.prefill_s == costs.prompt_step_s + costs.prefill_seconds(warm.boundary, len(PROMPT)) < cold.prefill_s
    assert warm.first_token_s == warm.queue_s + warm.work_s
    assert rig.loop.outlook("other salt", PROMPT).boundary == rig.loop.outlook("", PROMPT, read=False).boundary == 0


def test_a_load_from_host_is_told_with_what_it_takes() -> None:
    rig = example(seqs=2)
    told = rig.loop.outlook("", PROMPT)
    assert told.tier == Tier.HOST and told.load_s > 0 and told.boundary > 0
    rig.run()


@interpreted
def test_prompts_before_it_are_waited_for_and_only_a_few_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig()
    alone = rig.loop.outlook("", PROMPT)
    walks = []
    survey = type(rig.loop.directory).survey
    monkeypatch.setattr(type(rig.loop.directory), "survey", lambda *args: walks.append(1) or survey(*args))
    for name in range(4 * LOOKED_AT):
        rig.submit(str(name), np.full(40, name, np.int32))
    behind = rig.loop.outlook("", PROMPT)
    assert len(walks) == LOOKED_AT + 1
    assert behind.requests == 4 * LOOKED_AT and behind.queue_s > alone.queue_s == 0
    each = rig.loop.costs.prefill_seconds(0, 40)
    assert behind.queue_s >= 4 * LOOKED_AT * each * 0.999
    monkeypatch.undo()
    rig.run()


def test_asking_changes_nothing() -> None:
    rig = Rig()
    rig.ask("a", PROMPT)
    rig.submit("b", PROMPT)
    before = rig.loop.stats(), rig.loop.directory.epoch
    first = rig.loop.outlook("", PROMPT)
    assert rig.loop.outlook("", PROMPT) == first
    assert (rig.loop.stats(), rig.loop.directory.epoch) == before
    rig.run()
