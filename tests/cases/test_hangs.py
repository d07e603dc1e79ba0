"""What could keep an engine waiting for ever: holders behind the head of the queue, and copies that do not end."""

from __future__ import annotations

import itertools

import pytest

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.sched.job import Parked
from stepwell.testing.faults import LIVE, Where
from tests.amounts import long
from tests.cache.builders import join, numbers
from tests.cases.serving import PROMPT, ask, copy_down, engine, example, outcome, rules, served, submit

LOADS = Where(source=Tier.HOST)
SAVES = Where(target=Tier.HOST)


ORDERS = ["".join(order) for order in itertools.permutations("lhws")]


@pytest.mark.parametrize("order", [*ORDERS[::4], *(long(order) for order in ORDERS if order not in ORDERS[::4])])
def test_whoever_holds_what_the_head_of_the_queue_needs_everybody_ends(order: str) -> None:
    """`l` holds most of a small device once it has loaded; `s` and `h` together do not fit beside it; `w` is small."""
    harness = engine(rules(68, 400), seqs=8)
    stem, long = numbers(100, 1), numbers(204, 2)
    ask(harness, "seen", long[:201], 1)
    harness.flush(Tier.DEVICE, demote_first=True)
    harness.faults.delay(LOADS, polls=3)
    prompts = {"s": (stem, 30), "l": (long, 8), "h": (join(stem, numbers(100, 3)), 4), "w": (numbers(40, 4), 4)}
    for name in order:
        submit(harness, name, *prompts[name])
        harness.step()
    for _ in range(120):
        harness.step()
    assert not harness.loop.busy, harness.stats()
    served(harness, *order)
    assert outcome(harness, "l").boundary == 200


def test_a_load_that_does_not_end_holds_up_nobody_else() -> None:
    """The reports of its copies are lost. The next request for the same prompt loads for itself, strangers are served."""
    harness = example()
    harness.faults.drop(LOADS, count=2)
    submit(harness, "a", PROMPT)
    harness.step()
    for name, prompt in (("same", PROMPT), ("other", numbers(30, 1)), ("longer", join(PROMPT[:33], numbers(9, 2)))):
        submit(harness, name, prompt)
    for _ in range(40):
        harness.step()
    served(harness, "same", "other", "longer")
    assert outcome(harness, "same").boundary == 32
    assert isinstance(harness.loop.queues.parked["a"], Parked)
    harness.drain()
    served(harness, "a")


@pytest.mark.parametrize("late", [True, False])
def test_giving_up_on_a_load_that_does_not_end_strands_nobody(late: bool) -> None:
    """The first is aborted. Its pages come back with the reports of its copies and not before, whenever those are."""
    harness = example()
    harness.faults.drop(LOADS, count=2)
    submit(harness, "a", PROMPT)
    harness.step()
    submit(harness, "b", PROMPT)
    harness.step()
    harness.abort("a")
    if not late:
        harness.deliver()
    for _ in range(20):
        harness.step()
    served(harness, "b")
    assert harness.stats().draining == late
    assert outcome(harness, "b").boundary == 32
    harness.drain()


def test_a_save_that_does_not_end_keeps_its_source_and_stops_nothing() -> None:
    """What it reads stays on the device; everything else comes and goes."""
    harness = engine(rules(40, 80, clean=1.0))
    harness.faults.drop(SAVES, count=1)
    submit(harness, "a", PROMPT)
    for _ in range(10):
        harness.step()
    for number in range(8):
        submit(harness, f"{number}", numbers(60, 10 + number))
        for _ in range(12):
            harness.step()
    served(harness, *map(str, range(8)))
    submit(harness, "again", PROMPT)
    for _ in range(12):
        harness.step()
    served(harness, "again")
    harness.drain()


@pytest.mark.parametrize("meanwhile", ["resumed", "preempted", "preempted and its hit evicted"])
def test_a_state_that_fails_after_its_kv_has_come(meanwhile: str) -> None:
    """The request goes on from its hit; sent back to waiting it starts once more, and takes no page twice."""
    harness = example()
    harness.faults.delay(Where(target=LIVE), polls=3, count=1).fail(Where(target=LIVE), count=1)
    submit(harness, "a", PROMPT, 12)
    while harness.told["a"].outcome is None:
        harness.step()
    how = outcome(harness, "a")
    assert (how.boundary, how.reason, how.loaded) == (20, Reason.LOAD_FAILED_STATE, False)
    if meanwhile != "resumed":
        harness.step()
        harness.preempt("a")
    if meanwhile == "preempted and its hit evicted":
        harness.flush(Tier.DEVICE)
    harness.drain()
    served(harness, "a")
    assert harness.stats().tally.readmissions == (meanwhile != "resumed")
    assert harness.stats().tally.boundaries == 0
    found = harness.loop.directory.survey("", PROMPT)
    assert Tier.HOST not in [f.tier for f in found.resume_points if f.position == 32], "what failed is not advertised"


def test_one_failed_leg_touches_no_other_request() -> None:
    """Four at once: one load fails, one comes, two have none."""
    harness = example()
    copy_down(harness)
    harness.faults.fail(Where("kv", Tier.HOST), count=1, copied="half")
    submit(harness, "running", numbers(20, 3), 20)
    harness.step()
    for name, prompt in (("a", PROMPT), ("b", PROMPT), ("c", numbers(30, 4))):
        submit(harness, name, prompt, 8)
    harness.drain()
    served(harness, "running", "a", "b", "c")
    assert outcome(harness, "a").reason is Reason.LOAD_FAILED_KV
    assert outcome(harness, "b").boundary == 32
