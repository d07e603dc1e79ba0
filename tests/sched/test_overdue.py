"""A load that is never reported: its request is served all the same, and nothing is let go that a copy may still write."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.config import CacheConfig
from stepwell.cache.evict.make_room import demote
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Loss, Reason
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing import telltale
from stepwell.testing.faults import LIVE, Where
from stepwell.testing.harness import Harness

TIMEOUT = 0.05
"""Of a virtual clock: fifty steps."""


def numbers(count: int, start: int = 1) -> Ints:
    return np.arange(start, start + count, dtype=np.int32)


def harness(pages: int = 80, seqs: int = 4, timeout: float = TIMEOUT) -> Harness:
    cache = CacheConfig(
        telltale.geometry(), device_pages=pages, host_slots=160, chunk=16, interval=8, min_load_tokens=4
    )
    rules = SchedConfig(max_num_seqs=seqs, max_num_batched_tokens=64, load_timeout=timeout)
    return Harness(cache, rules)


def ask(engine: Harness, name: str, prompt: Ints) -> None:
    engine.submit(Request(name, prompt, SamplingParams(max_tokens=6)))


def in_host(engine: Harness, prompt: Ints, keep: int = 0) -> None:
    """Have `prompt` cached in host, and its first `keep` tokens on the device too."""
    ask(engine, "base", prompt)
    engine.drain()
    engine.flush(Tier.DEVICE, demote_first=True, keep=keep)


def step_until_ended(engine: Harness, *names: str, steps: int = 200) -> int:
    """Turns until these have ended, lost reports staying lost; how many."""
    for turn in range(steps):
        if all(engine.told[name].finished for name in names):
            return turn
        engine.step()
    raise AssertionError(f"{names} have not ended after {steps} steps: {engine.stats()}")


def outcome(engine: Harness, name: str) -> AdmissionOutcome:
    found = engine.told[name].outcome
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("lost", "reason"),
    [
        (Where("kv", Tier.HOST), Reason.LOAD_FAILED_KV),
        (Where("image", Tier.HOST), Reason.LOAD_FAILED_STATE),
        (Where(None, Tier.HOST), Reason.LOAD_FAILED_KV),
    ],
)
@pytest.mark.parametrize("keep", [0, 24])
def test_a_request_whose_load_is_not_reported_starts_again_from_what_is_left(
    lost: Where, reason: Reason, keep: int
) -> None:
    engine = harness()
    prompt = numbers(50)
    in_host(engine, prompt, keep)
    engine.faults.drop(lost, count=2)
    ask(engine, "late", prompt)
    ask(engine, "other", numbers(30, start=500))
    assert step_until_ended(engine, "other") < 12  # it is held up by nobody
    step_until_ended(engine, "late")
    got = outcome(engine, "late")
    assert got.reason is reason and keep <= got.boundary < 48
    assert dict(got.lost).get(Loss.FAILED_LEG, 0) > 0
    stats = engine.stats()
    assert stats.draining and stats.leases  # the lost copy's pages stay held
    engine.deliver()
    engine.drain()
    assert not engine.stats().leases
    ask(engine, "again", prompt)
    engine.drain()
    assert outcome(engine, "again").cached == 48


def test_copies_that_begin_after_the_request_has_given_up_write_nobodys_pages() -> None:
    engine = harness()
    prompt = numbers(50)
    in_host(engine, prompt)
    engine.faults.delay(Where(None, Tier.HOST), seconds=3 * TIMEOUT)
    ask(engine, "late", prompt)
    step_until_ended(engine, "late")
    for i in range(4):
        ask(engine, f"more {i}", numbers(40, start=100 * i + 100))
    step_until_ended(engine, *(f"more {i}" for i in range(4)))
    engine.drain()  # with every law judged as the copies begin


def test_a_report_in_time_and_one_after_another_keep_a_load_alive() -> None:
    engine = harness()
    prompt = numbers(50)
    in_host(engine, prompt)
    engine.faults.delay(Where("kv", Tier.HOST), seconds=0.8 * TIMEOUT).delay(
        Where(None, Tier.HOST, LIVE), seconds=1.6 * TIMEOUT
    )
    ask(engine, "slow", prompt)
    step_until_ended(engine, "slow")
    assert outcome(engine, "slow").host == 48 and outcome(engine, "slow").reason is Reason.COMPLETE


def test_without_a_timeout_it_waits() -> None:
    engine = harness(timeout=0)
    in_host(engine, numbers(50))
    engine.faults.drop(Where(None, Tier.HOST), count=2)
    ask(engine, "late", numbers(50))
    for _ in range(150):
        engine.step()
    assert engine.stats().parked == 1
    engine.drain()
    assert outcome(engine, "late").host == 48


def test_a_request_that_only_a_lost_copy_could_let_start_is_refused_with_the_reason() -> None:
    engine = harness(seqs=1)  # the one live slot is the target of the lost copy
    in_host(engine, numbers(50))
    engine.faults.drop(Where(None, Tier.HOST), count=2)
    ask(engine, "late", numbers(50))
    turns = step_until_ended(engine, "late")
    end = engine.told["late"].finished
    assert turns >= 2 * TIMEOUT / 0.001 and end is not None and end.reason == "error"
    assert "not reported" in end.message and "restart" in end.message
    engine.drain()
    ask(engine, "again", numbers(50))
    engine.drain()
    assert engine.told["again"].finished and engine.told["again"].finished.reason == "length"


def test_an_aborted_request_is_not_started_again() -> None:
    engine = harness()
    in_host(engine, numbers(50))
    engine.faults.drop(Where(None, Tier.HOST), count=2)
    ask(engine, "late", numbers(50))
    engine.step()
    engine.abort("late")
    for _ in range(120):
        engine.step()
    assert not engine.stats().waiting and engine.stats().draining == 1
    engine.drain()


def test_reports_that_are_lost_at_random_lose_no_request_and_no_page() -> None:
    engine = harness(pages=60)
    engine.faults.drop(Where(None, Tier.HOST), chance=0.3)
    prompts = [numbers(40 + 3 * i, start=1 if i % 2 else 300) for i in range(5)]
    for turn, prompt in enumerate(prompts * 2):
        ask(engine, f"r{turn}", prompt)
        for _ in range(70):
            engine.step()
        if turn % 2:
            engine.flush(Tier.DEVICE, demote_first=True)
            engine.deliver()
    engine.drain()
    assert all(told.finished and told.finished.reason == "length" for told in engine.told.values())
    assert engine.mover.tally["dropped"] > 0


# ---- copies downwards ------------------------------------------------------------------------------------------------


def three_tiers(pages: int, host: int, timeout: float = TIMEOUT, disk: int = 400) -> Harness:
    cache = CacheConfig(
        telltale.geometry(),
        device_pages=pages,
        host_slots=host,
        disk_slots=disk,
        chunk=16,
        interval=8,
        min_load_tokens=4,
        write_idle=False,
    )
    rules = SchedConfig(max_num_seqs=2, max_num_batched_tokens=64, load_timeout=timeout)
    return Harness(cache, rules)


def ask_in_turn(engine: Harness, count: int, length: int = 40) -> None:
    """One prompt after another, each of its own; lost reports stay lost."""
    for turn in range(count):
        ask(engine, f"turn {turn}", numbers(length, start=1 + turn * length))
        step_until_ended(engine, f"turn {turn}", steps=400)


@pytest.mark.parametrize("what", ["kv", "image", None])
def test_writes_that_are_not_reported_stop_no_prompt_though_host_is_full(what: str | None) -> None:
    engine = three_tiers(pages=30, host=24)
    engine.faults.drop(Where(what, target=Tier.DISK))
    ask_in_turn(engine, 12)
    assert engine.mover.tally["dropped"] > 0
    assert all(told.finished and told.finished.reason == "length" for told in engine.told.values())
    engine.drain()


@pytest.mark.parametrize("what", ["kv", "image", None])
def test_copies_to_host_that_are_not_reported_stop_no_prompt(what: str | None) -> None:
    engine = three_tiers(pages=60, host=60)
    engine.faults.drop(Where(what, Tier.DEVICE, Tier.HOST), count=4)
    ask_in_turn(engine, 12)
    assert engine.mover.tally["dropped"] == 4
    engine.drain()


def test_a_write_that_is_reported_late_is_found_all_the_same() -> None:
    engine = three_tiers(pages=30, host=24)
    engine.faults.drop(Where(target=Tier.DISK), count=2)
    ask_in_turn(engine, 8)
    before = engine.stats().tiers[Tier.DISK].cached
    assert engine.loop.directory.overdue
    engine.deliver()
    engine.step()
    assert engine.stats().tiers[Tier.DISK].cached > before and not engine.loop.directory.overdue
    engine.drain()


def test_without_a_timeout_a_write_is_waited_for() -> None:
    engine = three_tiers(pages=30, host=24, timeout=0)
    engine.faults.drop(Where(target=Tier.DISK))
    for turn in range(12):
        ask(engine, f"turn {turn}", numbers(40, start=1 + turn * 40))
    for _ in range(150):
        engine.step()
    assert engine.stats().waiting + engine.stats().running > 0
    engine.drain()


def test_a_running_request_whose_promised_pages_are_held_by_lost_copies_ends_with_the_reason() -> None:
    engine = three_tiers(pages=24, host=60)
    ask(engine, "first", numbers(40))
    step_until_ended(engine, "first")
    engine.faults.drop(Where(source=Tier.DEVICE))
    ask(engine, "second", numbers(64, start=500))
    engine.step()
    engine.loop.queues.moves.extend(demote(engine.loop.directory, 24))  # of pages that its reservation counts on
    step_until_ended(engine, "second")
    end = engine.told["second"].finished
    assert end is not None and end.reason == "error" and "not reported" in end.message
    engine.drain()


def test_an_aborted_load_keeps_its_pages_but_no_reservation() -> None:
    engine = harness(pages=40)
    in_host(engine, numbers(50))
    engine.faults.drop(Where(None, Tier.HOST), count=2)
    engine.submit(Request("late", np.append(numbers(50), numbers(90, 700)), SamplingParams(max_tokens=6)))
    engine.step()
    assert engine.stats().parked == 1 and engine.loop.directory.reserved > 0
    engine.abort("late")
    assert engine.loop.directory.reserved == 0 and engine.stats().draining == 1
    ask(engine, "next", numbers(80, start=300))  # fits beside what the copies may still write
    assert step_until_ended(engine, "next") < 20
    engine.drain()
