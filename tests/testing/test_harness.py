"""The harness: a whole engine in a few lines, its hooks, and that it complains."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.config import CacheConfig
from stepwell.cache.moves import Tier
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing import telltale
from stepwell.testing.faults import Where
from stepwell.testing.harness import Harness
from stepwell.testing.laws import LawBroken


def _prompt(count: int) -> Ints:
    return np.arange(1, count + 1, dtype=np.int32)


def _harness() -> Harness:
    cache = CacheConfig(telltale.geometry(), device_pages=40, host_slots=80, chunk=16, interval=8, min_load_tokens=4)
    return Harness(cache)


def _ask(harness: Harness, name: str, count: int = 30) -> None:
    harness.submit(Request(name, _prompt(count), SamplingParams(max_tokens=6)))


@pytest.mark.parametrize("flushed", [None, Tier.DEVICE, Tier.HOST])
def test_a_prompt_comes_from_the_tier_that_still_has_it(flushed: Tier | None) -> None:
    harness = _harness()
    _ask(harness, "a")
    harness.drain()
    harness.flush(Tier.DEVICE, demote_first=True) if flushed is not None else None
    harness.flush(Tier.HOST) if flushed is Tier.HOST else None
    _ask(harness, "b")
    harness.drain()
    outcome = harness.told["b"].outcome
    assert outcome is not None
    found = {None: (24, 0), Tier.DEVICE: (0, 24), Tier.HOST: (0, 0)}
    assert (outcome.device, outcome.host) == found[flushed]
    assert harness.told["b"].tokens == harness.told["a"].tokens == telltale.answer(_prompt(30), 6, harness.vocab)


def test_a_flush_can_keep_what_comes_first() -> None:
    harness = _harness()
    _ask(harness, "a")
    harness.drain()
    harness.flush(Tier.DEVICE, keep=16)
    _ask(harness, "b")
    harness.drain()
    outcome = harness.told["b"].outcome
    assert outcome is not None and (outcome.device, outcome.boundary) == (16, 24), "host had the rest"
    for tier in (Tier.DEVICE, Tier.HOST):
        harness.flush(tier, keep=16)
    _ask(harness, "c")
    harness.drain()
    outcome = harness.told["c"].outcome
    assert outcome is not None and outcome.boundary == 16


def test_a_preempted_request_goes_on() -> None:
    harness = _harness()
    _ask(harness, "a")
    for _ in range(3):
        harness.step()
        harness.preempt("a")
    harness.drain()
    assert harness.stats().preemptions == 3
    assert len(harness.told["a"].tokens) == 6


def test_a_spoiled_request_ends_and_nothing_of_it_is_found() -> None:
    harness = _harness()
    _ask(harness, "a")
    harness.spoil("a")
    harness.drain()
    end = harness.told["a"].finished
    assert end is not None and end.reason == "error"
    assert not list(harness.loop.directory.tree.nodes())


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST])
def test_one_wrong_word_is_noticed(tier: Tier) -> None:
    harness = _harness()
    _ask(harness, "a")
    harness.drain()
    harness.flush(Tier.DEVICE, demote_first=True) if tier is Tier.HOST else None
    node = next(iter(harness.loop.directory.tree.nodes()))
    slots = node.kv.at[tier]
    assert slots is not None
    harness.memory.arenas[tier][slots[0], 3] ^= np.uint64(1)
    with pytest.raises(LawBroken, match="law 3"):
        harness.check_all()


def test_slots_of_a_failed_load_may_come_back_in_the_same_step_with_what_another_prompt_left_on_disk() -> None:
    """Both prompts stand at the same positions, in the same slots: one before that step and the other after it."""
    cache = CacheConfig(
        telltale.geometry(), device_pages=40, host_slots=80, disk_slots=80, chunk=16, interval=8, min_load_tokens=4
    )
    harness = Harness(cache)
    for salt in ("a", "b"):
        harness.submit(Request(salt, _prompt(20), SamplingParams(max_tokens=2), salt))
    harness.drain()
    harness.restart()
    harness.faults.fail(Where("kv", Tier.DISK), count=1)
    harness.submit(Request("failing", _prompt(20), SamplingParams(max_tokens=2), "a"))
    harness.step()
    (parked,) = harness.loop.queues.parked.values()
    read = {int(slot) for move in parked.loading.moves for slot in move.source.slots}
    harness.submit(Request("other", _prompt(20), SamplingParams(max_tokens=2), "b"))
    harness.step()
    kv = harness.loop.directory.survey("b", _prompt(20)).path[0].kv.at[Tier.DISK]
    assert kv is not None and not read.isdisjoint(kv.tolist())
    harness.drain()
