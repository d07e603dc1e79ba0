"""Resumes checked against cold runs: what is wrong is found and taken out, what is right stays, and nobody notices."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.config import CacheConfig
from stepwell.cache.evict.make_room import demote
from stepwell.cache.moves import NATIVE, Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.cache.tree import Item
from stepwell.sched.audit import PENDING, Auditor, difference
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing import telltale
from stepwell.testing.harness import Harness


def numbers(count: int, start: int = 1) -> Ints:
    return np.arange(start, start + count, dtype=np.int32)


def harness(
    pages: int = 80, host: int = 160, audit: float = 1.0, seqs: int = 4, checked: bool = True, idle: bool = True
) -> Harness:
    cache = CacheConfig(
        telltale.geometry(),
        device_pages=pages,
        host_slots=host,
        chunk=16,
        interval=8,
        min_load_tokens=4,
        copy_idle=idle,
    )
    return Harness(cache, SchedConfig(max_num_seqs=seqs, max_num_batched_tokens=16), audit=audit, checked=checked)


def ask(engine: Harness, name: str, prompt: Ints, max_tokens: int = 6, **options: object) -> None:
    engine.submit(Request(name, prompt, SamplingParams(max_tokens=max_tokens), **options))  # type: ignore[arg-type]


def served(engine: Harness, name: str, prompt: Ints, **options: object) -> AdmissionOutcome:
    ask(engine, name, prompt, **options)
    engine.drain()
    outcome = engine.told[name].outcome
    assert outcome is not None
    return outcome


def served_by_hand(engine: Harness, name: str, prompt: Ints) -> None:
    """Serve it, and leave the audits for later."""
    ask(engine, name, prompt)
    for _ in range(60):
        if engine.told[name].finished is not None:
            return
        engine.step()
    raise AssertionError(f"{name} has not ended")


def items(engine: Harness) -> list[Item]:
    return [item for node in engine.loop.directory.tree.nodes() for item in node.items()]


def right(engine: Harness, name: str) -> bool:
    told = engine.told[name]
    return told.tokens == telltale.answer(told.request.prompt, 6, engine.vocab, told.request.salt)


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST])
@pytest.mark.parametrize("what", ["kv", "image"])
def test_a_wrong_byte_is_served_once_and_then_found_taken_out_and_computed_anew(
    tier: Tier, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    engine = harness(checked=False)
    prompt = numbers(50)
    served(engine, "first", prompt)
    if tier is Tier.HOST:
        engine.flush(Tier.DEVICE, demote_first=True)
    slots = next(item.at[tier] for item in items(engine) if item.what == what and item.node.end == 48)
    assert slots is not None
    engine.corrupt(tier, int(slots[0]), 1)
    outcome = served(engine, "wrong", prompt)
    assert outcome.cached and not right(engine, "wrong")
    stats = engine.stats()
    assert (stats.audits, stats.audit_mismatches) == (1, 1) and stats.quarantined > 0
    assert "wrong resumed 48 of 50 tokens" in caplog.text and "recomputed cold" in caplog.text
    engine.trust()  # whatever is cached now is what its tokens give, in every tier
    outcome = served(engine, "again", prompt)
    assert outcome.cached == 0 and right(engine, "again")
    assert served(engine, "after", prompt).cached == 48 and right(engine, "after")


def test_what_was_computed_from_the_wrong_byte_goes_too_and_other_prompts_stay() -> None:
    engine = harness()
    shared, other = numbers(32), numbers(40, start=500)
    served(engine, "base", shared)
    served(engine, "other", other)
    kv = next(item for item in items(engine) if item.what == "kv" and item.node.tokens[0] == 1)
    slots = kv.at[Tier.DEVICE]
    assert slots is not None
    engine.corrupt(Tier.DEVICE, int(slots[0]))
    served(engine, "branch", np.concatenate([shared, numbers(30, start=200)]))
    served(engine, "turn", np.concatenate([shared, numbers(30, start=300)]))
    engine.trust()
    assert right(engine, "turn")  # by then found out: computed anew
    assert served(engine, "again", np.concatenate([shared, numbers(30, start=200)])).cached == 32
    assert right(engine, "again")
    assert served(engine, "other again", other).cached > 0


def test_a_copy_under_way_of_what_is_taken_out_is_not_found_either() -> None:
    engine = harness(idle=False)
    prompt = numbers(50)
    served(engine, "first", prompt)
    slots = next(item.at[Tier.DEVICE] for item in items(engine) if item.what == "kv")
    assert slots is not None
    engine.corrupt(Tier.DEVICE, int(slots[0]))
    engine.faults.delay(polls=50)
    served_by_hand(engine, "wrong", prompt)
    engine.loop.queues.moves.extend(demote(engine.loop.directory, 80))
    for _ in range(10):
        engine.step()
    assert engine.stats().audit_mismatches == 1 and engine.loop.directory.in_flight
    engine.drain()
    engine.trust()
    assert not any(item.at[tier] is not None for item in items(engine) for tier in NATIVE)


def test_nothing_wrong_nothing_found() -> None:
    engine = harness(pages=60)
    rng = np.random.default_rng(0)
    prompt = numbers(20)
    for turn in range(8):
        assert turn == 0 or served(engine, f"turn {turn}", prompt).cached
        served(engine, f"base {turn}", prompt)
        prompt = np.concatenate([prompt, rng.integers(0, 1000, 11).astype(np.int32)])
    stats = engine.stats()
    assert stats.audits > 8 and not stats.audit_mismatches and not stats.quarantined
    assert stats.tally.admissions == len(engine.told)  # audits are no admissions


def test_a_request_that_arrives_ends_the_audit_which_begins_again_later() -> None:
    engine = harness(seqs=1)
    prompt = numbers(100)
    served(engine, "first", prompt)
    served_by_hand(engine, "second", prompt)
    for _ in range(3):
        assert engine.step() == []
    (audit,) = engine.loop.queues.running
    assert audit.job.internal and 0 < audit.computed < 100
    ask(engine, "third", numbers(10, start=700))
    assert not engine.loop.queues.running  # gone before a step could be built with it
    engine.step()
    assert [r.job.request.id for r in engine.loop.queues.running] == ["third"]
    assert not engine.stats().audits
    engine.drain()
    assert engine.stats().audits == 1 and not engine.stats().leases


def test_an_audit_that_is_always_cut_short_is_skipped_at_last() -> None:
    engine = harness(pages=200)
    prompt = numbers(100)
    served(engine, "first", prompt)
    served_by_hand(engine, "second", prompt)
    for i in range(3):
        for _ in range(3):
            engine.step()
        assert engine.loop.queues.running[0].job.internal
        served_by_hand(engine, f"new {i}", numbers(9, start=200 + 20 * i))
    engine.drain()
    assert (engine.stats().audits, engine.stats().audits_skipped) == (0, 1)


def test_an_audit_costs_no_only_copy_and_waits_for_copies_down_instead() -> None:
    engine = harness(pages=40, host=400)
    for i in range(4):
        served(engine, f"filler {i}", numbers(40, start=100 * i + 100))
    served(engine, "base", numbers(60))
    served(engine, "again", numbers(60))
    assert engine.stats().audits == 1
    for i in range(4):
        assert served(engine, f"filler {i} again", numbers(40, start=100 * i + 100)).cached == 32


def test_of_many_only_the_newest_wait() -> None:
    engine = harness(pages=400, host=0)
    prompt = numbers(20)
    served(engine, "base", prompt)
    ask(engine, "long", numbers(100, start=300), max_tokens=70)
    for i in range(PENDING + 4):
        ask(engine, f"short {i}", prompt, max_tokens=1)
    for _ in range(300):
        if engine.told["long"].finished is None:
            engine.step()
    assert engine.stats().audits_skipped == 4 and not engine.stats().audits
    engine.drain()
    assert engine.stats().audits == PENDING


def test_preempted_and_salted_requests() -> None:
    engine = harness(idle=False)
    prompt = numbers(50)
    served(engine, "base", prompt, salt="a")
    engine.flush(Tier.DEVICE, keep=24)
    ask(engine, "again", prompt, salt="a")
    engine.step()  # the first part of what it has to recompute
    assert engine.told["again"].outcome and not engine.told["again"].tokens
    engine.preempt("again")
    engine.drain()
    assert (engine.stats().audits, engine.stats().audits_skipped) == (0, 1)  # it began in two ways
    assert served(engine, "third", prompt, salt="a").cached
    assert engine.stats().audits == 1


def test_a_share_of_resumes_is_drawn_and_the_draws_repeat() -> None:
    counts = []
    for _ in range(2):
        engine = harness(audit=0.3)
        served(engine, "base", numbers(20))
        for i in range(40):
            served(engine, f"again {i}", numbers(20))
        counts.append(engine.stats().audits)
    assert counts[0] == counts[1] and 4 < counts[0] < 24
    assert not Auditor(0.0, rng=random.Random(1)).busy


@pytest.mark.parametrize(
    ("resumed", "cold", "off"),
    [([1.0, -4.0], [1.0, -4.0], 0.0), ([1.5, -4.0], [1.0, -4.0], 0.125), ([0.0, 0.0], [0.0, 0.0], 0.0)],
)
def test_a_difference_is_a_share_of_the_largest_logit(resumed: list[float], cold: list[float], off: float) -> None:
    assert difference(np.array(resumed, np.float32), np.array(cold, np.float32)) == off


def test_what_is_not_finite_agrees_with_nothing() -> None:
    good = np.ones(3, np.float32)
    for bad in (np.nan, np.inf):
        assert not difference(np.array([1, bad, 1], np.float32), good) <= 0.5
