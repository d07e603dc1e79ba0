"""What may be found, and when: only what a step has written, both halves of it, and nothing of what went wrong."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.testing.faults import FaultPlan, Where
from stepwell.testing.harness import Harness
from stepwell.testing.laws import LawBroken
from stepwell.testing.telltale import TellTaleRunner
from tests.cache.builders import join, numbers
from tests.cases.serving import PROMPT, ask, engine, outcome, rules, served, submit
from tests.sched.test_resume import example

IMAGE_DOWN = Where("image", target=Tier.HOST)
KV_DOWN = Where("kv", target=Tier.HOST)


def _to_host(harness: Harness) -> None:
    harness.flush(Tier.DEVICE, demote_first=True)


class TestHalfOfASave:
    """Host gets one half of an entry, the other fails on its way."""

    def test_kv_without_any_state_is_no_hit_however_long_it_is(self) -> None:
        harness = engine(faults=FaultPlan().fail(IMAGE_DOWN))
        ask(harness, "first", PROMPT)
        _to_host(harness)
        assert harness.loop.directory.use(Tier.HOST).cached > 0
        how = ask(harness, "again", PROMPT)
        assert (how.cached, how.state_tier) == (0, None)

    def test_the_last_boundary_that_has_both_is_used(self) -> None:
        harness = engine(rules(clean=0.0))
        ask(harness, "first", PROMPT[:21], 1)
        _to_host(harness)
        harness.faults.fail(IMAGE_DOWN)
        ask(harness, "second", PROMPT, 1)
        _to_host(harness)
        how = ask(harness, "again", PROMPT)
        assert (how.boundary, how.host, how.state_tier) == (20, 20, Tier.HOST)

    def test_a_state_without_its_kv_is_no_hit(self) -> None:
        harness = engine(faults=FaultPlan().fail(KV_DOWN))
        ask(harness, "first", PROMPT)
        _to_host(harness)
        assert ask(harness, "again", PROMPT).cached == 0


@pytest.mark.parametrize("low", [False, True])
def test_only_boundaries_at_which_a_state_was_kept_are_resumed_at(low: bool) -> None:
    """One pass over many blocks keeps few states. Every other boundary has its KV and no state, in any tier."""
    harness = engine(rules(200, 200, grid=8, interval=32), budget=200)
    prompt = numbers(101)
    ask(harness, "first", prompt, 1)
    if low:
        _to_host(harness)
    kept = (0, 32, 64, 96)
    for count in range(2, 102):
        how = ask(harness, f"{count}", prompt[:count], 1, write_cache=False)
        assert how.boundary == max(at for at in kept if at < count), count


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("steps", range(9))
def test_a_prefill_that_is_broken_off_leaves_what_it_has_computed_and_no_more(steps: int, flushed: bool) -> None:
    harness = engine(rules(100, 200, grid=8), budget=20)
    prompt = numbers(110)
    submit(harness, "a", prompt, 6)
    for _ in range(steps):
        harness.step()
    computed = min(16 * steps, 104)
    harness.abort("a")
    if flushed:
        harness.step()
        _to_host(harness)
    how = ask(harness, "retry", prompt, 6)
    assert how.boundary == computed
    assert (how.host if flushed else how.device) == computed
    served(harness, "retry")


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("steps", range(1, 8))
def test_a_twin_that_follows_a_step_behind_finds_only_finished_work(steps: int, waits: bool) -> None:
    """All that there is when it comes; or, where it may wait, all that there is when the first has its prompt."""
    harness = engine(rules(100, 200, grid=8), budget=40, coalesce=waits)
    prompt = numbers(110)
    submit(harness, "a", prompt, 6)
    for _ in range(steps):
        harness.step()
    running = harness.loop.queues.find_running("a")
    done = running.computed if running is not None else 200
    submit(harness, "twin", prompt, 6)
    harness.drain()
    served(harness, "a", "twin")
    how = outcome(harness, "twin")
    assert how.boundary == 104 if waits else how.boundary <= done
    assert how.coalesced == (max(0, 104 - done) if waits else 0)


def test_what_is_copied_down_in_the_turn_that_computed_it_is_whole() -> None:
    """Copies that are carried out at once see the bytes of that very step; what host holds is compared after each."""
    harness = engine(rules(100, 200, grid=8, clean=1.0), budget=20)
    submit(harness, "a", numbers(110), 6)
    kept = []
    while harness.loop.busy:
        harness.step()
        kept.append(harness.loop.directory.use(Tier.HOST).cached)
    assert sum(more > less for less, more in itertools.pairwise(kept)) > 2, "host has grown with the prompt"


@pytest.mark.parametrize("what", ["images", "KV"])
def test_pages_that_were_set_aside_and_never_written_are_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control: a runner that says it wrote what it did not."""
    real = TellTaleRunner._forward

    def forgetful(self: Any, memory: Any, work: Any, tokens: Any, start: int) -> None:
        change = {"cuts": ()} if what == "images" else {"write_from": start + len(tokens)}
        real(self, memory, replace(work, **change), tokens, start)

    monkeypatch.setattr(TellTaleRunner, "_forward", forgetful)
    with pytest.raises(LawBroken, match="law 3" if what == "images" else "law 10"):
        ask(engine(), "a", PROMPT)


@pytest.mark.parametrize("chunk", range(1, 6))
def test_a_prefill_that_goes_wrong_half_way_starts_again_from_clean_ground(chunk: int) -> None:
    """The runner has written part of a chunk when it fails. The chunks before stand; nothing of this one does."""
    harness = engine(rules(100, 200, grid=8), budget=20)
    ask(harness, "stem", PROMPT[:17], 1)
    prompt = join(PROMPT[:17], numbers(90, 3))
    submit(harness, "a", prompt, 6)
    for _ in range(chunk - 1):
        harness.step()
    harness.spoil("a")
    harness.drain()
    end = harness.told["a"].finished
    assert end is not None and end.reason == "error"
    how = ask(harness, "retry", prompt, 6)
    assert how.boundary == 16 * chunk
    served(harness, "retry")


@pytest.mark.parametrize("bad", [(0,), (1,), (2,), (3,), (1, 3), (0, 1, 2, 3)])
@pytest.mark.parametrize("backwards", [False, True])
def test_whichever_pieces_of_a_load_fail_the_start_is_the_hit(
    bad: tuple[int, ...], backwards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long KV leg goes in pieces, then the state: any of them may fail, and they may end in any order."""
    monkeypatch.setattr("stepwell.cache.reuse.admission.COPY_PAGES", dict.fromkeys(Tier, 1))
    rig = example()
    rig.submit("a", PROMPT)
    rig.step()
    tickets = [move.ticket for move in rig.loading("a").moves]
    assert len(tickets) == 4, "three blocks and a state"
    for index in reversed(range(4)) if backwards else range(4):
        if index in bad:
            rig.mover.fail(tickets[index])
        else:
            rig.mover.finish(tickets[index])
        rig.step()
    rig.run()
    how = rig.outcome("a")
    assert (how.boundary, how.device, how.host) == (20, 20, 0)
    assert how.reason is (Reason.LOAD_FAILED_STATE if bad == (3,) else Reason.LOAD_FAILED_KV)
    rig.cold("a")
    assert rig.ask("again", PROMPT).boundary == 36, "what was computed instead is found"
    rig.drained()
