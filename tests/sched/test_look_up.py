"""What an earlier process left on disk is looked up a few records a turn, while others are served."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from stepwell.cache.disk.archive import Lookups
from stepwell.cache.hints import Status
from stepwell.sched import retention
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.sched.retention import Subject
from stepwell.testing.harness import Harness
from stepwell.testing.shelf import Shelf
from tests.cache.builders import numbers
from tests.cases.serving import DEAR, rules

LONG = numbers(199)
RECORDS = 15
"""Of LONG: twelve chunks of 16 tokens, and three rungs."""
RULES = SchedConfig(max_num_seqs=2, max_num_batched_tokens=64, records_a_turn=4)
ONCE = SamplingParams(max_tokens=1)
FOR_EVER = 10**9


def left_on_disk(config: SchedConfig = RULES, host: int = 200, write_idle: bool = True) -> Harness:
    """A new engine, after another has served LONG and ended."""
    sizes = rules(100, host, disk=300, grid=8, interval=64, clean=0.3 if write_idle else 1.0)
    harness = Harness(sizes, config, costs=DEAR)
    harness.submit(Request("first", LONG, ONCE))
    harness.drain()
    harness.restart()
    harness.loop.directory.config = replace(sizes, write_idle=write_idle)
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


def test_prompts_of_which_nothing_is_held_use_up_a_turn_too(asked: Counter[str]) -> None:
    harness = left_on_disk()
    for i in range(10):
        harness.submit(Request(f"r{i}", numbers(40, i), ONCE, "other"))
    asked.clear()
    left = [10]
    while harness.loop.queues.asking:
        harness.step()
        left.append(len(harness.loop.queues.asking))
    assert left == [10, 6, 2, 0]
    harness.drain()


def test_others_are_admitted_meanwhile() -> None:
    harness = left_on_disk(replace(RULES, records_a_turn=1))
    harness.submit(Request("again", LONG, ONCE))
    harness.submit(Request("other", numbers(20, 7), ONCE, read_cache=False))
    while harness.told["other"].finished is None:
        harness.step()
    assert harness.loop.queues.asking and harness.told["again"].outcome is None
    harness.drain()


def test_a_compaction_is_not_waited_for_and_one_that_never_ends_not_for_ever() -> None:
    harness = left_on_disk(replace(RULES, load_timeout=0.05))
    harness.shelf.compacting = FOR_EVER
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


WHOLE = Subject("", LONG)


def kept(harness: Harness) -> list[int]:
    """Where the paths that are kept end."""
    return [pin.tip.end for pin in harness.loop.directory.pins.known.values()]


def test_hints_look_up_so_many_records_a_turn_together() -> None:
    harness = left_on_disk()
    left = [RECORDS]
    assert harness.loop.pin(WHOLE, 1000.0) == 0, "no rung is known so soon"
    harness.loop.prefetch(1, WHOLE)
    left.append(len(harness.shelf.dormant))
    while left[-1]:
        assert not harness.loop.prefetched() and harness.loop.serving
        harness.step()
        left.append(len(harness.shelf.dormant))
    # an image is told of with the KV that follows it, so one record may go beyond
    assert len(left) > 3 and all(before - after <= 5 for before, after in pairwise(left)), left
    harness.drain()
    (done,) = harness.loop.prefetched()
    assert (done.status, done.tokens) == (Status.LOADED, 192)
    assert kept(harness) == [192]


def test_hints_wait_for_a_compaction_beside_whatever_runs(asked: Counter[str]) -> None:
    harness = left_on_disk()
    asked.clear()
    harness.shelf.compacting = FOR_EVER
    assert harness.loop.pin(WHOLE, 1000.0) == 0
    harness.loop.prefetch(1, WHOLE)
    for _ in range(5):
        harness.step()
    assert not asked and not harness.loop.prefetched() and not kept(harness)
    harness.shelf.compacting = 0
    harness.drain()
    assert [done.status for done in harness.loop.prefetched()] == [Status.LOADED] and kept(harness) == [192]


def test_a_prefetch_is_answered_though_a_compaction_never_ends() -> None:
    harness = left_on_disk(replace(RULES, load_timeout=0.05))
    harness.shelf.compacting = FOR_EVER
    harness.loop.pin(WHOLE, 1000.0)
    harness.loop.prefetch(1, WHOLE)
    harness.drain()
    assert [done.status for done in harness.loop.prefetched()] == [Status.UNKNOWN] and not kept(harness)


def test_a_pin_that_has_ended_is_looked_up_no_more() -> None:
    harness = left_on_disk()
    harness.loop.pin(WHOLE, 1000.0)
    harness.loop.unpin(WHOLE)
    assert not harness.loop.serving
    harness.drain()
    assert not kept(harness)


def test_only_so_many_prefetches_wait_for_the_index_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MOST_ORDERS", 2)
    harness = left_on_disk()
    for number in (1, 2, 3):
        harness.loop.prefetch(number, WHOLE)
    assert [(done.number, done.status) for done in harness.loop.prefetched()] == [(3, Status.BUSY)]
    harness.drain()
    assert {done.number for done in harness.loop.prefetched()} == {1, 2}


def unread(harness: Harness) -> None:
    """LONG is computed again by a request that reads nothing: what the disk has of it is found out before it is written."""
    harness.submit(Request("again", LONG, ONCE, read_cache=False))
    while harness.told["again"].finished is None:
        harness.step()
    assert len(harness.shelf.dormant) == RECORDS


def test_before_it_writes_a_turn_looks_up_so_many_records() -> None:
    harness = left_on_disk()
    unread(harness)
    left = [RECORDS]
    while harness.loop.busy:
        harness.step()
        left.append(len(harness.shelf.dormant))
    assert all(before - after <= 5 for before, after in pairwise(left)) and left[-1] == 0, left
    assert len(harness.shelf.records) == RECORDS, "nothing is written twice"


def test_writes_do_not_wait_for_a_compaction_but_are_put_off() -> None:
    harness = left_on_disk()
    unread(harness)
    harness.shelf.compacting = 40
    while harness.shelf.compacting:
        harness.step()
        assert len(harness.shelf.dormant) == RECORDS and not harness.shelf.records
    harness.drain()
    assert not harness.shelf.dormant and len(harness.shelf.records) == RECORDS


def test_a_turn_rests_where_only_a_compaction_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = left_on_disk()
    waited: list[float] = []

    def refuse(self: Shelf, seconds: float = 0.0) -> bool:
        waited.append(seconds)
        return False

    monkeypatch.setattr(Shelf, "hold", refuse)
    harness.loop.submit(Request("again", LONG, ONCE))
    for _ in range(3):
        harness.loop.step(wait=0.25)
    assert waited == [0.0, 0.25] * 3
    harness.loop.submit(Request("other", numbers(20, 7), ONCE, read_cache=False))
    waited.clear()
    harness.loop.step(wait=0.25)
    assert waited == [0.0], "another computes"


def short(harness: Harness, name: str = "short", seed: int = 9) -> None:
    """Serve a prompt that nobody has asked for before, up to the turn that tells of its end."""
    harness.submit(Request(name, numbers(33, seed), ONCE, read_cache=False))
    while harness.told[name].finished is None:
        harness.step()


@pytest.mark.parametrize("host", [0, 200])
@pytest.mark.parametrize("turn", range(4))
def test_the_last_write_of_all_is_put_off_and_not_forgotten(host: int, turn: int) -> None:
    """A compaction begins in the first turns after a request: only one question is refused."""
    harness = left_on_disk(host=host)
    short(harness)
    for _ in range(turn):
        harness.step()
    harness.shelf.compacting = 1
    harness.drain()
    assert harness.shelf.records and harness.loop.directory.candidates.backlog.empty


def test_patience_counts_turns_that_follow_one_another() -> None:
    """Else a write that was put off in the last turn before a pause would not be put off in the first one after it."""
    lookups = Lookups()
    lookups.turn(64, 0.0, 3.0)
    lookups.put_off_write()
    lookups.rest()
    for now, waits in ((100.0, True), (102.0, True), (103.0, False)):
        lookups.turn(64, now, 3.0)
        lookups.put_off_write()
        assert lookups.put_off == waits


def test_no_write_counts_as_put_off_while_the_engine_rests() -> None:
    """Nothing is written while idle, but for what brings back the clean share: that waits for the next request."""
    harness = left_on_disk(replace(RULES, load_timeout=5.0), host=0, write_idle=False)
    harness.shelf.compacting = FOR_EVER
    short(harness)
    put_off = False
    while harness.loop.busy:
        harness.step()
        put_off = put_off or not harness.loop.busy
    lookups = harness.loop.directory.archive.lookups
    assert lookups.held and not lookups.put_off
    harness.clock.advance(100.0)
    harness.submit(Request("next", numbers(33, 10), ONCE, read_cache=False))
    harness.step()
    assert lookups.put_off, "the first turn after a pause is a patient one"
