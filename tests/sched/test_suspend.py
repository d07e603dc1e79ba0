"""A preempted request keeps its state and the last part of a block; the rest goes down and comes back. The harness judges the answers."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.copies import copy_landed
from stepwell.cache.evict.make_room import demote
from stepwell.cache.moves import Tier
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing import telltale
from stepwell.testing.faults import FaultPlan, Where
from stepwell.testing.harness import Harness

COSTS = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e9, 1e9), latency_s=1e-6)
PROMPT = np.arange(100, 150, dtype=np.int32)


def harness(
    pages: int = 64, seqs: int = 2, faults: FaultPlan | None = None, budget: int = 64, disk: int = 0
) -> Harness:
    cache = CacheConfig(telltale.geometry(), pages, 128, disk, chunk=16, interval=32)
    return Harness(cache, SchedConfig(seqs, budget, decode_rung_tokens=400), faults, costs=COSTS)


def suspended(engine: Harness, tokens: int = 7, prompt: Ints = PROMPT, name: str = "a") -> int:
    """Preempt a request after `tokens` tokens of its answer; how far it had got."""
    engine.submit(Request(name, prompt, SamplingParams(max_tokens=40)))
    while len(engine.told[name].tokens) < tokens:
        engine.step()
    running = engine.loop.queues.find_running(name)
    assert running is not None
    computed = running.computed
    engine.preempt(name)
    return computed


def down(engine: Harness) -> None:
    """All that is cached on the device goes to host, without a step that would let the request go on."""
    directory = engine.loop.directory
    while moves := demote(directory, 64):
        engine.mover.start(moves)
        assert all(copy_landed(directory, report) for report in engine.mover.poll())
    engine.flush(Tier.DEVICE)


def total(engine: Harness) -> int:
    return engine.stats().computed_tokens


@pytest.mark.sampled(8)
@pytest.mark.parametrize("tokens", range(1, 12))
@pytest.mark.parametrize("route", ["device", "host"])
def test_no_token_is_computed_twice_wherever_its_kv_went(tokens: int, route: str) -> None:
    engine = harness()
    suspended(engine, tokens)
    before = total(engine)
    if route != "device":
        down(engine)
    engine.drain()
    assert total(engine) - before == 40 - tokens
    assert engine.loop.queues.returns == 1 and len(engine.told["a"].tokens) == 40


def test_in_the_middle_of_a_prompt_too() -> None:
    engine = harness()
    prompt = np.arange(100, 240, dtype=np.int32)
    engine.submit(Request("a", prompt, SamplingParams(max_tokens=2)))
    engine.step()
    engine.preempt("a")
    engine.drain()
    assert total(engine) == 140 + 1 and engine.loop.queues.returns == 1


def test_its_kv_gone_it_resumes_at_a_rung() -> None:
    engine = harness()
    suspended(engine)
    engine.flush(Tier.DEVICE)
    engine.drain()
    assert engine.loop.queues.returns == 0 and engine.stats().tally.readmissions == 1


def test_a_load_that_fails_takes_it_back_to_a_rung() -> None:
    engine = harness(faults=FaultPlan().fail(Where("kv", Tier.HOST, Tier.DEVICE), count=1))
    suspended(engine)
    down(engine)
    engine.drain()
    assert engine.mover.tally["failed"] == 1 and engine.loop.queues.returns == 0


def test_back_at_a_rung_the_pages_it_had_kept_are_promised_to_it() -> None:
    engine = harness(faults=FaultPlan().fail(Where("kv", Tier.HOST, Tier.DEVICE), count=1), budget=16)
    assert suspended(engine, tokens=6) % 4
    down(engine)
    while (running := engine.loop.queues.find_running("a")) is None:
        engine.step()
    pages = engine.loop.directory.config.geometry.pages_for(len(running.job.tokens))
    assert 0 < running.table.promised == pages - len(running.table)
    engine.drain()


def test_a_decode_that_needs_a_page_does_not_wait_for_the_disk() -> None:
    """A copy from host to disk makes no room on the device: the youngest gives way."""
    engine = harness(pages=16, seqs=3, faults=FaultPlan().delay(Where(target=Tier.DISK), polls=200), disk=64)
    engine.submit(Request("early", np.arange(700, 720, dtype=np.int32), SamplingParams(max_tokens=1)))
    while engine.told["early"].finished is None:
        engine.step()
    down(engine)
    engine.step()
    assert {flight.lease.tier for flight in engine.loop.directory.in_flight.values()} == {Tier.HOST}
    engine.submit(Request("a", PROMPT[:30], SamplingParams(max_tokens=34)))
    engine.submit(Request("b", PROMPT[:10] + 500, SamplingParams(max_tokens=30)))
    for _ in range(40):
        engine.step()
    assert engine.loop.directory.in_flight and engine.stats().preemptions > 0
    assert engine.told["a"].finished is not None
    engine.drain()


def test_an_older_request_gets_its_slot() -> None:
    engine = harness(seqs=1)
    suspended(engine)
    older = engine.loop.queues.waiting[0].job
    older.order = (99.0, 0)  # as if it had come after the next one
    engine.submit(Request("b", np.arange(300, 330, dtype=np.int32), SamplingParams(max_tokens=4)))
    engine.loop.queues.waiting.sort(key=lambda waiting: waiting.job.order)
    engine.drain()
    assert engine.told["b"].finished and engine.told["a"].finished


def test_the_oldest_gets_the_pages_that_others_keep() -> None:
    """It fills the whole pool: the one page of a suspended request would be one too few."""
    engine = harness(pages=16, seqs=2)
    engine.submit(Request("a", PROMPT[:30], SamplingParams(max_tokens=34)))
    engine.submit(Request("b", PROMPT[:10] + 500, SamplingParams(max_tokens=30)))
    engine.drain()
    assert engine.stats().preemptions > 0
    assert len(engine.told["a"].tokens) == 34 and len(engine.told["b"].tokens) == 30


@pytest.mark.parametrize("parked", [False, True])
def test_aborted_meanwhile_it_keeps_nothing(parked: bool) -> None:
    engine = harness(faults=FaultPlan().delay(Where("kv", Tier.HOST, Tier.DEVICE), polls=3))
    suspended(engine)
    if parked:
        down(engine)
        engine.step()
        assert engine.loop.queues.parked
    engine.abort("a")
    engine.drain()  # finds every page and slot free or cached
    assert engine.loop.queues.returns == 0
