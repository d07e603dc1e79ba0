"""Numbers that must add up: one record a request, every token to the tier it came from, every loss to its reason."""

from __future__ import annotations

import random

import pytest

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionCounts, Loss, Reason
from stepwell.testing.faults import LIVE, FaultPlan, Where
from stepwell.testing.harness import Harness
from tests.cache.builders import forget, join, numbers
from tests.cases.serving import PROMPT, ask, copy_down, engine, example, rules, served, submit

HOST = Where(source=Tier.HOST)


def recounted(harness: Harness) -> AdmissionCounts:
    """The tally as the callers' own records give it."""
    tally = AdmissionCounts()
    for told in harness.told.values():
        if told.outcome is not None:
            tally.add(told.outcome)
    return tally


def counted(harness: Harness) -> AdmissionCounts:
    tally = harness.stats().tally
    tally.readmissions = 0  # nobody is told of these
    return tally


@pytest.mark.parametrize("seed", range(3))
def test_every_counter_is_the_sum_of_what_callers_were_told(seed: int) -> None:
    """Loads that are late, fail, or end after their request; preemptions; requests that pass the cache by."""
    rng = random.Random(seed)
    faults = FaultPlan(rng).delay(HOST, polls=2, chance=0.5).fail(HOST, chance=0.2).duplicate(chance=0.2)
    harness = engine(rules(36, 120, clean=0.5), faults, seqs=3)
    for number in range(24):
        stem = numbers(rng.choice((16, 33)), number % 4)
        submit(harness, f"{number}", join(stem, numbers(6, number)), 6, read_cache=rng.random() < 0.9)
        for _ in range(rng.randrange(4)):
            harness.step()
        if rng.random() < 0.2:
            harness.abort(f"{rng.randrange(number + 1)}")
        if rng.random() < 0.2:
            harness.preempt(f"{rng.randrange(number + 1)}")
        if rng.random() < 0.2:
            harness.flush(Tier.DEVICE, demote_first=True)
    harness.drain()
    assert counted(harness) == recounted(harness)
    assert harness.stats().tally.boundaries > 0


@pytest.mark.parametrize("ok", [True, False])
def test_a_load_is_recorded_once_and_only_when_it_has_ended(ok: bool) -> None:
    """Not as nothing when it begins and as everything when it lands: that would halve every rate."""
    harness = example()
    before = harness.stats().tally
    harness.faults.delay(HOST, polls=4)
    if not ok:
        harness.faults.fail(Where(target=LIVE))
    submit(harness, "a", PROMPT)
    while harness.told["a"].outcome is None:
        assert harness.stats().tally == before, "planning and parking count nothing"
        harness.step()
    harness.drain()
    after = harness.stats().tally
    assert (after.admissions, after.prompt) == (before.admissions + 1, before.prompt + 40)
    assert after.boundaries - before.boundaries == ok
    assert after.host - before.host == (12 if ok else 0)
    assert after.device - before.device == 20
    assert after.reasons[Reason.LOAD_FAILED_STATE] == (not ok) and after.reasons[Reason.LOAD_FAILED_KV] == 0


def test_a_request_that_waits_is_recorded_once_however_often_it_was_planned() -> None:
    harness = engine(rules(24, 0), seqs=4)
    submit(harness, "large", numbers(60, 1), 20)
    harness.step()
    submit(harness, "waits", PROMPT)
    for _ in range(5):
        harness.step()
    assert harness.told["waits"].outcome is None and harness.stats().tally.admissions == 1
    harness.drain()
    served(harness, "large", "waits")
    assert harness.stats().tally.admissions == 2


def test_requests_that_pass_the_cache_by_are_no_misses() -> None:
    harness = engine()
    ask(harness, "first", PROMPT)
    for number in range(3):
        ask(harness, f"cold {number}", PROMPT, read_cache=False)
    ask(harness, "warm", PROMPT)
    tally = harness.stats().tally
    assert tally.reasons[Reason.NOT_READ] == 3 and tally.lost[Loss.NOT_READ] == 3 * 40
    assert sum(tally.lost.values()) - tally.lost[Loss.NOT_READ] == 40 + 4, "the first, and the tail of the last"
    assert tally.device == 36


class TestWhyNotMore:
    """A workload that cannot be helped and a cache that does not work look different."""

    def test_prompts_too_short_for_a_rung(self) -> None:
        harness = engine(rules(grid=8))
        ask(harness, "first", PROMPT[:8])
        how = ask(harness, "again", PROMPT[:8])
        assert (how.cached, how.reason, how.diverged_at) == (0, Reason.TOO_SHORT, None)

    def test_kv_without_its_state(self) -> None:
        harness = engine(rules(host=0))
        ask(harness, "first", PROMPT, 1)
        forget(harness.loop.directory, PROMPT, Tier.DEVICE, None, (36,))
        how = ask(harness, "again", PROMPT)
        assert (how.cached, how.reason) == (0, Reason.NO_RUNG)
        assert dict(how.lost) == {Loss.EVICTED_RUNG: 36, Loss.NEW: 4}

    def test_a_state_without_its_kv(self) -> None:
        harness = engine(rules(host=0))
        ask(harness, "first", PROMPT, 1)
        forget(harness.loop.directory, PROMPT, Tier.DEVICE, 0)
        how = ask(harness, "again", PROMPT)
        assert how.cached == 0 and dict(how.lost) == {Loss.EVICTED_KV: 36, Loss.NEW: 4}

    def test_everything_evicted(self) -> None:
        harness = engine(rules(host=0))
        ask(harness, "first", PROMPT, 1)
        harness.flush(Tier.DEVICE)
        how = ask(harness, "again", PROMPT)
        assert how.cached == 0 and dict(how.lost)[Loss.EVICTED_KV] >= 32

    def test_a_prompt_that_went_another_way(self) -> None:
        harness = engine(rules(host=0))
        ask(harness, "first", PROMPT, 1)
        how = ask(harness, "other", join(PROMPT[:18], numbers(22, 5)), 1)
        assert (how.cached, how.diverged_at) == (0, 18)
        assert dict(how.lost) == {Loss.NO_RUNG: 16, Loss.NEW: 24}

    @pytest.mark.parametrize("leg", ["kv", "state"])
    def test_a_leg_that_failed_by_its_name(self, leg: str) -> None:
        harness = example()
        harness.faults.fail(Where("kv", Tier.HOST) if leg == "kv" else Where(target=LIVE), count=1)
        how = ask(harness, "a", PROMPT)
        assert how.reason == f"load_failed({leg})" and dict(how.lost)[Loss.FAILED_LEG] == 12

    def test_all_that_there_was(self) -> None:
        harness = engine()
        ask(harness, "first", PROMPT)
        assert ask(harness, "again", PROMPT).reason is Reason.COMPLETE


@pytest.mark.parametrize("whole", [False, True], ids=["native", "whole-chunk"])
@pytest.mark.parametrize("hit", [16, 20, 24, 28, 32])
def test_a_tier_is_credited_with_what_came_from_it_wherever_the_hit_lies_in_a_chunk(whole: bool, hit: int) -> None:
    """The resident part of a chunk that is read whole came from the device, and nothing is ever less than nothing."""
    harness = engine(rules(whole=whole, clean=0.0))
    ask(harness, "first", PROMPT[: hit + 1], 1)
    ask(harness, "second", join(PROMPT, numbers(9, 3))[:49], 1)
    copy_down(harness)
    forget(harness.loop.directory, join(PROMPT, numbers(9, 3)), Tier.DEVICE, hit, (48,))
    prompt = join(PROMPT, numbers(9, 3), numbers(5, 4))
    moved = harness.loop.directory.tickets
    how = ask(harness, "a", prompt, 1)
    assert (how.boundary, how.device, how.host, how.disk) == (48, hit, 48 - hit, 0)
    assert how.state_tier is Tier.HOST and how.loaded
    assert harness.loop.directory.tickets > moved


def test_host_that_reaches_no_further_than_the_device_is_asked_for_nothing() -> None:
    harness = engine(rules(clean=1.0))
    ask(harness, "first", PROMPT)
    copy_down(harness)
    for number in range(5):
        how = ask(harness, f"{number}", join(PROMPT, numbers(3, number)), 1)
        assert how.host == how.disk == 0 and not how.loaded and how.state_tier is Tier.DEVICE
    tally = harness.stats().tally
    assert (tally.boundaries, tally.host) == (0, 0)
