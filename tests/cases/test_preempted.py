"""A request that is interrupted, wherever it was, goes on as if it had not been."""

from __future__ import annotations

import pytest

from stepwell.cache.moves import Tier
from stepwell.testing.faults import LIVE, Where
from stepwell.testing.harness import Harness
from tests.cache.builders import numbers
from tests.cases.serving import ask, copy_down, engine, rules, served, submit


def _interrupted(turns: int) -> Harness:
    """A prompt whose first half host has as well, and an answer of twelve tokens, beside another; sent back to waiting."""
    harness = engine(rules(80, 200, grid=8), budget=20)
    ask(harness, "before", numbers(70, 1)[:35], 1)
    copy_down(harness)
    submit(harness, "other", numbers(21, 2), 25)
    submit(harness, "a", numbers(70, 1), 12)
    for _ in range(turns):
        harness.step()
    harness.preempt("a")
    return harness


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("turns", range(1, 13))
def test_after_any_turn_and_from_any_tier(turns: int, low: bool) -> None:
    harness = _interrupted(turns)
    if low:
        harness.flush(Tier.DEVICE)
    harness.drain()
    served(harness, "a", "other")
    assert harness.stats().tally.readmissions == 1


@pytest.mark.parametrize("leg", [Where("kv", Tier.HOST), Where(target=LIVE)])
@pytest.mark.parametrize("turns", [1, 3, 6, 11])
def test_with_its_way_back_failing(turns: int, leg: Where) -> None:
    harness = _interrupted(turns)
    harness.flush(Tier.DEVICE)
    harness.faults.fail(leg)
    harness.drain()
    assert harness.mover.tally["failed"] > 0
    served(harness, "a", "other")


def test_its_live_state_serves_others_meanwhile() -> None:
    """The slot it had has gone to somebody else by the time it comes back."""
    harness = engine(rules(80, 200, grid=8), seqs=1, budget=20)
    submit(harness, "a", numbers(40, 1), 12)
    for _ in range(5):
        harness.step()
    harness.preempt("a")
    harness.abort("a")
    submit(harness, "stranger", numbers(33, 2), 12)
    submit(harness, "same again", numbers(40, 1), 12)
    harness.drain()
    served(harness, "stranger", "same again")
