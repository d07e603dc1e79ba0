"""What could be left behind: by storms of aborts, by copies that end for a request that is gone, by thousands of requests."""

from __future__ import annotations

import gc
import random
import tracemalloc

import pytest

from stepwell.cache.moves import Report, Tier
from stepwell.sched.request import Finished
from stepwell.testing.faults import FaultPlan, Where
from tests.cache.builders import join, numbers
from tests.cases.serving import PROMPT, Bare, ask, copy_down, engine, example, outcome, rules, served, submit
from tests.sched.rig import KV, SAVES, STATE, Rig
from tests.sched.test_resume import example as rigged

HOST = Where(source=Tier.HOST)


@pytest.mark.parametrize("turns", (0, 1, 2, 3, 5, 8))
def test_a_storm_of_aborts_leaves_an_engine_as_good_as_new(turns: int) -> None:
    """All callers hang up at once, whatever state their requests are in: waiting, parked, running, preempted."""
    harness = example(24, clean=0.3)
    harness.faults.delay(HOST, polls=2)
    names = [f"{number}" for number in range(64)]
    for number, name in enumerate(names):
        stem = PROMPT[:33] if number % 3 == 0 else numbers(20, number % 7)
        submit(harness, name, join(stem, numbers(12, 100 + number)), 20)
    for _ in range(turns):
        harness.step()
    for name in names:
        harness.abort(name)
    harness.step()
    ends = [harness.told[name].finished for name in names]
    assert all(end is not None and end.reason == "abort" for end in ends)
    ask(harness, "fresh", numbers(50, 9), 8)
    served(harness, "fresh")


def test_aborts_between_other_peoples_steps_leave_the_others_alone() -> None:
    rng = random.Random(5)
    harness = example(30, clean=0.3)
    harness.faults.delay(HOST, polls=2)
    stay, go = [], []
    for number in range(40):
        name = f"{number}"
        submit(harness, name, join(PROMPT[: rng.choice((13, 21, 33))], numbers(10, number)), 6)
        (go if number % 2 else stay).append(name)
        harness.step()
        if go and rng.random() < 0.6:
            harness.abort(go.pop(rng.randrange(len(go))))
    for name in go:
        harness.abort(name)
    harness.drain()
    served(harness, *stay)


class TestEndsOfCopies:
    """Reports for requests that are gone, in both orders, and again."""

    @pytest.mark.parametrize("order", [(KV, STATE), (STATE, KV)], ids=["kv-first", "state-first"])
    @pytest.mark.parametrize("before", [0, 1, 2])
    @pytest.mark.parametrize("ok", [True, False])
    def test_of_a_load(self, order: tuple[object, object], before: int, ok: bool) -> None:
        """`before` of the two have been reported when the caller leaves."""
        rig = rigged()
        rig.submit("a", PROMPT)
        rig.step()
        tickets = []
        for index, which in enumerate(order):
            if index == before:
                rig.loop.abort("a")
            tickets += [t for t, move in rig.mover.pending.items() if which(move)]  # type: ignore[operator]
            rig.land(which, ok)  # type: ignore[arg-type]
            if before < 2:
                rig.step()
        rig.loop.abort("a")
        assert len(tickets) == 2
        for ticket in [*tickets, *reversed(tickets)]:
            rig.report(Report(ticket, True), Report(ticket, False))
            rig.check()
        rig.run()
        assert [type(e) for e in rig.events if e.request_id == "a"][-1] is Finished
        rig.drained()
        rig.ask("again", PROMPT)

    @pytest.mark.parametrize("ok", [True, False])
    @pytest.mark.parametrize("gone", ["aborted", "finished", "preempted and aborted"])
    def test_of_a_save(self, gone: str, ok: bool) -> None:
        rig = Rig()
        rig.submit("a", PROMPT, 3 if gone == "finished" else 40)
        for _ in range(4):
            rig.step()
        tickets = [t for t, move in rig.mover.pending.items() if SAVES(move)]
        assert tickets
        rig.loop.abort("a")
        rig.step()
        rig.land(SAVES, ok)
        rig.step()
        for ticket in [*tickets, *reversed(tickets)]:
            rig.report(Report(ticket, not ok), Report(ticket, ok))
            rig.check()
        rig.run()
        assert rig.directory.use(Tier.HOST).cached >= (len(tickets) if ok else 0)
        rig.drained()

    def test_a_stale_end_does_not_end_the_copy_that_has_its_slots_now(self) -> None:
        """A save fails, its slots go to the next one, and then the first is reported again, as good."""
        rig = Rig(pages=64, host=9, clean=1.0)
        rig.submit("a", PROMPT[:33], 1)
        rig.step()
        first = {t: set(m.target.slots.tolist()) for t, m in rig.mover.pending.items()}  # type: ignore[union-attr]
        assert first
        rig.land(SAVES, ok=False)
        rig.step()
        rig.submit("b", numbers(33, 6), 1)
        rig.step()
        second = {t: set(m.target.slots.tolist()) for t, m in rig.mover.pending.items()}  # type: ignore[union-attr]
        assert set().union(*first.values()) & set().union(*second.values()), "slots are used again"
        before = rig.directory.use(Tier.HOST)
        for ticket in first:
            rig.report(Report(ticket, True))
        assert rig.directory.use(Tier.HOST) == before, "nothing has landed"
        rig.check()
        rig.run()
        rig.cold("a", "b")
        rig.drained()


def test_hits_that_use_nothing_of_host_hold_nothing_there() -> None:
    """Hundreds of requests that the device serves, though host has the same; then host is filled with something else."""
    harness = engine(rules(64, 40, clean=1.0))
    ask(harness, "first", PROMPT, 1)
    copy_down(harness)
    for number in range(60):
        how = ask(harness, f"{number}", join(PROMPT, numbers(3, number)), 1)
        assert how.host == 0 and how.device >= 36
    assert harness.loop.directory.use(Tier.HOST).leased == 0
    harness.flush(Tier.DEVICE)
    for number in range(4):
        ask(harness, f"new {number}", numbers(33, 50 + number), 1)
        harness.flush(Tier.DEVICE, demote_first=True)
        assert ask(harness, f"new {number} again", numbers(33, 50 + number), 1).host == 32


def test_a_chain_that_lost_its_end_in_host_is_computed_and_copied_again() -> None:
    """Three turns go to host, the last is dropped there, asked for once more, and then everything must go."""
    harness = engine(rules(64, 80, clean=1.0))
    x, y, z = numbers(17, 1), numbers(16, 2), numbers(16, 3)
    for name, prompt in (("x", x), ("xy", join(x, y)), ("xyz", join(x, y, z))):
        ask(harness, name, prompt, 1)
    harness.flush(Tier.DEVICE, demote_first=True)
    harness.flush(Tier.HOST, keep=32)
    again = ask(harness, "again", join(x, y, z), 1)
    assert (again.boundary, again.host) == (32, 32)
    harness.flush(Tier.DEVICE, demote_first=True)
    assert ask(harness, "once more", join(x, y, z, numbers(4)), 1).host == 48
    harness.flush(Tier.DEVICE)
    harness.flush(Tier.HOST)
    for tier in (Tier.DEVICE, Tier.HOST):
        use = harness.loop.directory.use(tier)
        assert use.free == use.total


def test_callers_who_share_a_prefix_on_a_tiny_device_all_end() -> None:
    """Two dozen, arriving while others run, with host copies late: what is claimed stays below the prompt throughout."""
    harness = engine(rules(34, 200, grid=8, clean=0.5), seqs=6, budget=48)
    harness.faults.delay(polls=2, chance=0.5)
    stem = numbers(56, 1)
    names = []
    for number in range(24):
        name = f"{number}"
        submit(harness, name, join(stem[: 56 - number % 5], numbers(9, 100 + number)), 10)
        names.append(name)
        for _ in range(number % 3):
            harness.step()
    harness.drain()
    served(harness, *names)
    assert any(outcome(harness, name).cached >= 48 for name in names)
    assert harness.stats().tally.boundaries > 0


def test_after_many_failed_loads_everything_is_served_as_if_none_had_failed() -> None:
    faults = FaultPlan(random.Random(3)).fail(HOST, chance=0.2, copied="half")
    harness = engine(rules(40, 200, clean=1.0), faults)
    stems = [numbers(32, seed) for seed in range(5)]
    for number in range(24):
        ask(harness, f"{number}", join(stems[number % 5], numbers(1 + number % 9, 100 + number)), 3)
        if number % 4 == 0:
            harness.flush(Tier.DEVICE, demote_first=True)
    assert harness.mover.tally["failed"] > 2
    for number in range(8):
        ask(harness, f"short {number}", numbers(2 + number % 3, 300 + number), 6)
        ask(harness, f"warm {number}", join(stems[number % 5], numbers(2, 400 + number)), 6)
    served(harness, *harness.told)


@pytest.mark.long
def test_hundreds_of_small_conversations_take_no_more_memory_than_the_first() -> None:
    """All bytes that the interpreter knows of, arrays included: a view that keeps its base alive would show."""
    engine = Bare(rules(48, 96, grid=8, clean=0.3, ghosts=60))
    rng = random.Random(1)
    stems = [numbers(24, seed) for seed in range(6)]

    def serve(count: int) -> int:
        for _ in range(count):
            history = join(stems[rng.randrange(6)], numbers(rng.randrange(2, 12), rng.randrange(1 << 30)))
            for _ in range(2):
                _, history = engine.ask(history)
                history = join(history, numbers(5, rng.randrange(1 << 30)))
        candidates = engine.loop.directory.candidates
        candidates.settle()
        for ranking in (*candidates.drops.values(), *candidates.dirty.values()):
            ranking._rebuild()  # stale candidates are bounded by themselves; here they would only blur the figure
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start(1)
    try:
        serve(220)
        before = max(serve(40) for _ in range(3))  # it goes up and down by a twentieth
        after = min(serve(40) for _ in range(3))
    finally:
        tracemalloc.stop()
    for node in engine.loop.directory.tree.nodes():
        for array in (slots for item in node.items() for slots in item.at if slots is not None):
            assert array.base is None or array.base.nbytes == array.nbytes, f"{node!r} keeps more than its own alive"
    assert after - before < 5_000, f"{after - before} bytes more after 240 requests more"
