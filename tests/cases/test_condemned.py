"""Quarantine at any time: under a running reader, a load, a copy down, a suspended request. Nobody comes to read what is condemned."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.account import Lease
from stepwell.cache.evict.make_room import free_pages
from stepwell.cache.life import ABSENT
from stepwell.cache.moves import Tier
from stepwell.cache.publish import publish
from stepwell.cache.reuse.plan import Plan
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import Node
from stepwell.sched.config import SchedConfig
from stepwell.sched.retention import Subject
from stepwell.testing import telltale
from stepwell.testing.faults import FaultPlan, Where
from stepwell.testing.harness import Harness
from tests.cache.builders import COSTS, copy_down, directory, keep, node_ending, numbers
from tests.cases.serving import VOCAB, ask, engine, history, outcome, rules, served, submit

PROMPT = numbers(60)


def audited(faults: FaultPlan) -> Harness:
    """An engine that checks every resume."""
    sched = SchedConfig(4, 64, 1 << 20, 8, vocab=VOCAB)
    return Harness(rules(120, 200, clean=1.0), sched, faults, vocab=VOCAB, audit=1.0)


def until_ended(harness: Harness, name: str) -> None:
    for _ in range(400):
        if harness.told[name].finished is not None:
            return
        harness.step()
    raise AssertionError(f"{name} has not ended")


def condemn(harness: Harness, prompt: Ints = PROMPT) -> int:
    copies = harness.quarantine("", prompt)
    assert harness.loop.directory.survey("", prompt).path == ()
    return copies


def forked(seed: int) -> Ints:
    return np.concatenate([PROMPT, numbers(9, seed)])


@pytest.mark.parametrize("polls", [1, 2, 4, 10, 20, 40])
def test_an_entry_condemned_while_it_is_copied_down_is_computed_anew(polls: int) -> None:
    faults = FaultPlan().delay(Where(target=Tier.HOST), polls=polls)
    harness = audited(faults)
    submit(harness, "first", PROMPT)
    until_ended(harness, "first")
    top = next(harness.loop.directory.tree.nodes())
    slots = top.kv.at[Tier.DEVICE]
    assert slots is not None
    harness.corrupt(Tier.DEVICE, int(slots[0]))
    submit(harness, "misled", PROMPT)
    until_ended(harness, "misled")
    while harness.loop.auditor.busy:
        harness.step()
    assert harness.loop.auditor.counts.mismatches == 1
    assert ask(harness, "anew", PROMPT).cached == 0
    assert ask(harness, "again", PROMPT).cached == 56
    assert not harness.loop.directory.tree.condemned
    served(harness, "anew", "again")


def computed_elsewhere(harness: Harness, tokens: Ints) -> Lease:
    """As if another request had just computed these tokens and still held them."""
    directory, memory = harness.loop.directory, harness.memory
    blocks = len(tokens) // 4
    table = BlockTable(np.empty(0, np.int32))
    assert free_pages(directory, blocks, force=True)
    directory.grow(table, blocks)
    memory.arenas[Tier.DEVICE][table.pages] = telltale.content(tokens[: 4 * blocks])[1].reshape(blocks, -1)
    lease = directory.lease(directory.tree.root("", 0.0).kv, Tier.DEVICE)
    publish(directory, lease, tokens, 4 * blocks, table, 0.0)
    directory.close(table)
    return lease


def test_what_a_reader_goes_on_to_compute_is_found_by_nobody() -> None:
    harness = engine(rules(120, 200, clean=1.0))
    ask(harness, "first", PROMPT, 3)
    submit(harness, "reader", forked(1), 40)
    for _ in range(8):
        harness.step()
    assert condemn(harness) > 0
    for _ in range(4):
        harness.step()
        assert harness.loop.directory.survey("", history(harness, "reader")).path == ()
    harness.drain()
    served(harness, "reader")
    assert not harness.loop.directory.tree.condemned
    assert harness.loop.directory.use(Tier.DEVICE).cached == harness.loop.directory.use(Tier.HOST).cached == 0
    assert ask(harness, "after", history(harness, "reader")).cached == 0


def test_pages_computed_anew_take_the_place_of_condemned_ones_that_are_still_read() -> None:
    harness = engine(rules(120, 200, clean=1.0))
    ask(harness, "first", PROMPT, 3)
    submit(harness, "reader", forked(1), 60)
    for _ in range(4):
        harness.step()
    (reader,) = harness.loop.queues.running
    condemned = set(reader.table.pages.tolist())
    condemn(harness)
    submit(harness, "anew", PROMPT)
    until_ended(harness, "anew")
    assert harness.told["reader"].finished is None
    found = harness.loop.directory.survey("", PROMPT)
    pages = harness.loop.directory.pages_of(found.path[-1], found.device)
    assert len(pages) and condemned.isdisjoint(pages.tolist())
    assert outcome(harness, "anew").cached == 0
    assert ask(harness, "again", PROMPT).cached == 56


@pytest.mark.parametrize("keep_tokens", [0, 20])
def test_a_request_whose_load_is_condemned_meanwhile_starts_over(keep_tokens: int) -> None:
    faults = FaultPlan()
    harness = engine(rules(120, 200, clean=1.0), faults)
    ask(harness, "first", PROMPT)
    harness.flush(Tier.DEVICE, demote_first=True, keep=keep_tokens)
    faults.delay(Where(source=Tier.HOST), polls=4)
    submit(harness, "loading", PROMPT)
    harness.step()
    assert "loading" in harness.loop.queues.parked
    condemn(harness)
    harness.drain()
    served(harness, "loading")
    assert outcome(harness, "loading").cached == 0
    assert ask(harness, "again", PROMPT).cached == 56


def test_a_suspended_request_whose_state_has_read_what_is_condemned_starts_at_a_rung_again() -> None:
    harness = engine(rules(120, 200, clean=1.0))
    ask(harness, "first", PROMPT, 3)
    submit(harness, "suspended", forked(1), 12)
    for _ in range(4):
        harness.step()
    (running,) = harness.loop.queues.running
    so_far = running.job.tokens.view.copy()
    harness.preempt("suspended")
    (waiting,) = harness.loop.queues.waiting
    assert waiting.suspended is not None
    condemn(harness)
    lease = computed_elsewhere(harness, so_far)
    assert harness.loop.directory.survey("", so_far).device >= waiting.suspended.computed // 4 * 4
    harness.loop.directory.release(lease)
    harness.drain()
    served(harness, "suspended")
    assert harness.loop.queues.returns == 0
    tally = harness.loop.queues.tally
    assert tally.readmissions == 1


def test_a_prefetch_of_what_is_condemned_meanwhile_brings_nothing() -> None:
    faults = FaultPlan()
    harness = engine(rules(120, 200, clean=1.0), faults)
    ask(harness, "first", PROMPT)
    harness.flush(Tier.DEVICE, demote_first=True)
    faults.delay(Where(source=Tier.HOST), polls=4)
    harness.loop.prefetch(1, Subject("", PROMPT))
    harness.step()
    assert harness.loop.retention.busy
    condemn(harness)
    harness.drain()
    (done,) = harness.loop.prefetched()
    assert done.tokens == 0
    assert ask(harness, "again", PROMPT).cached == 0


def test_readers_at_any_point_of_their_answers_bear_a_quarantine() -> None:
    for seed in range(20):
        rng = random.Random(seed)
        harness = engine(rules(120, 200, clean=1.0), FaultPlan(rng).delay(polls=rng.randint(0, 6)), seqs=3)
        ask(harness, "first", PROMPT, 3)
        for index in range(3):
            cut = rng.randint(1, len(PROMPT))
            submit(harness, f"r{index}", np.concatenate([PROMPT[:cut], numbers(9, index)]), rng.randint(2, 40))
        for _ in range(rng.randint(0, 30)):
            harness.step()
        condemn(harness)
        for _ in range(rng.randint(0, 10)):
            harness.step()
        ask(harness, "after", PROMPT)
        served(harness, "r0", "r1", "r2", "after")
        assert not harness.loop.directory.tree.condemned


def _take_from_device(node: Node) -> None:
    node.kv.life[Tier.DEVICE], node.kv.at[Tier.DEVICE] = ABSENT, None


def test_kv_on_the_device_below_a_gap_is_not_planned_for() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 60, rungs=(20, 40, 60))
    copy_down(shelf)
    _take_from_device(node_ending(shelf, PROMPT, 40))
    answer = shelf.plan("", forked(1), COSTS)
    assert isinstance(answer, Plan)
    assert [source.tier for source in answer.aim.leg] == [Tier.HOST]
    assert (answer.aim.shared, answer.aim.boundary, answer.hit) == (20, 60, 20)


def test_kv_that_only_the_device_has_below_a_gap_is_out_of_reach() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 60, rungs=(20, 40, 60))
    _take_from_device(node_ending(shelf, PROMPT, 40))
    found = shelf.survey("", forked(1))
    assert (found.device, found.union) == (20, 20)
