"""What an earlier process left on disk is looked up a few records a turn, while others are served."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing.harness import Harness
from stepwell.testing.shelf import Shelf
from tests.cache.builders import numbers
from tests.cases.serving import DEAR, rules

LONG = numbers(199)
RECORDS = 15
"""Of LONG: twelve chunks of 16 tokens, and three rungs."""
RULES = SchedConfig(max_num_seqs=2, max_num_batched_tokens=64, records_a_turn=4)
ONCE = SamplingParams(max_tokens=1)


def left_on_disk(config: SchedConfig = RULES) -> Harness:
    """A new engine, after another has served LONG and ended."""
    harness = Harness(rules(100, 200, disk=300, grid=8, interval=64), config, costs=DEAR)
    harness.submit(Request("first", LONG, ONCE))
    harness.drain()
    harness.restart()
    assert len(harness.shelf.dormant) == RECORDS
    return harness


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Questions to the catalogue."""
    count: Counter[str] = Counter()
    real = Shelf.under

    def counting(self: Shelf, *question: object) -> object:
        count["under"] += 1
        return real(self, *question)  # type: ignore[arg-type]

    monkeypatch.setattr(Shelf, "under", counting)
    return count


def test_a_request_is_taken_without_a_look_into_the_index(asked: Counter[str]) -> None:
    harness = left_on_disk()
    asked.clear()
    harness.loop.submit(Request("again", LONG, ONCE))
    assert not asked and harness.stats().waiting == 1


def test_a_turn_looks_up_so_many_records_and_the_request_starts_when_all_are_known() -> None:
    harness = left_on_disk()
    harness.submit(Request("again", LONG, ONCE))
    left = [RECORDS]
    while harness.loop.queues.asking:
        harness.step()
        left.append(len(harness.shelf.dormant))
    # an image is told of with the KV that follows it, so one record may go beyond
    assert all(before - after <= 5 for before, after in pairwise(left)), left
    assert len(left) > 3 and left[-1] == 0
    harness.drain()
    outcome = harness.told["again"].outcome
    assert outcome is not None and (outcome.boundary, outcome.disk) == (192, 192)


def test_others_are_admitted_meanwhile() -> None:
    harness = left_on_disk(replace(RULES, records_a_turn=1))
    harness.submit(Request("again", LONG, ONCE))
    harness.submit(Request("other", numbers(20, 7), ONCE, read_cache=False))
    while harness.told["other"].finished is None:
        harness.step()
    assert harness.loop.queues.asking and harness.told["again"].outcome is None
    harness.drain()


def test_a_compaction_is_not_waited_for_and_one_that_never_ends_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = left_on_disk(replace(RULES, load_timeout=0.05))
    monkeypatch.setattr(Shelf, "hold", lambda self: False)
    harness.submit(Request("again", LONG, ONCE))
    for _ in range(20):
        harness.step()
    assert harness.loop.queues.asking and len(harness.shelf.dormant) == RECORDS
    harness.drain()
    outcome = harness.told["again"].outcome
    assert outcome is not None and outcome.boundary == 0


def test_aborted_meanwhile_it_asks_no_more() -> None:
    harness = left_on_disk()
    harness.submit(Request("again", LONG, ONCE))
    harness.step()
    harness.abort("again")
    assert not harness.loop.queues.asking
    harness.drain()


def test_a_salt_that_holds_nothing_leaves_nothing_behind() -> None:
    harness = left_on_disk()
    harness.submit(Request("again", np.flip(LONG).astype(np.int32), ONCE, "other", write_cache=False))
    harness.drain()
    assert "other" not in harness.loop.directory.tree.roots and len(harness.shelf.dormant) == RECORDS
