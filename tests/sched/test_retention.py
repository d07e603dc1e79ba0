"""Hints beside requests: pins and prefetches."""

from __future__ import annotations

import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.evict.make_room import demote
from stepwell.cache.hints import Status
from stepwell.cache.moves import LiveState, Tier
from stepwell.sched import retention
from stepwell.sched.request import Request, SamplingParams
from stepwell.sched.retention import Prefetched, Retention, Subject
from tests.cache.builders import join, numbers
from tests.sched.rig import LOADS, Rig

PROMPT = numbers(42)


def ask(rig: Rig, name: str, prompt: Ints = PROMPT) -> None:
    """Serve a prompt, and check its answer."""
    request = Request(name, prompt, SamplingParams(8))
    rig.loop.submit(request)
    rig.requests[name] = request
    rig.run()
    rig.cold(name)


def sink(rig: Rig) -> None:
    """All that is cached is in host alone."""
    while moves := demote(rig.directory, rig.directory.config.device_pages):
        rig.loop.queues.moves.extend(moves)
        rig.run()
    for node in reversed(list(rig.directory.tree.nodes())):
        for item in node.items():
            if item.at[Tier.DEVICE] is not None:
                rig.directory.drop(item, Tier.DEVICE)
    rig.check()


def fetched(rig: Rig, subject: Subject) -> Prefetched:
    rig.loop.prefetch(7, subject)
    rig.run()
    (done,) = rig.loop.prefetched()
    assert done.number == 7
    return done


def test_a_prefetched_prompt_is_resumed_from_the_device() -> None:
    rig = Rig()
    ask(rig, "a")
    sink(rig)
    done = fetched(rig, Subject("", PROMPT))
    assert (done.status, done.tokens, done.device, done.host, done.disk) == (Status.LOADED, 40, 0, 40, 0)
    again = rig.ask("b", PROMPT)
    assert (again.device, again.loaded) == (40, False)
    assert not any(isinstance(move.target, LiveState) for move in rig.mover.pending.values())


def test_a_conversation_is_prefetched_up_to_its_last_answer() -> None:
    rig = Rig()
    ask(rig, "a")
    sink(rig)
    so_far = join(PROMPT, rig.answer("a"))
    assert fetched(rig, Subject("", so_far)).tokens == 48
    assert rig.ask("b", join(so_far, numbers(9, 1))).device == 48


def test_a_prefetch_needs_no_live_slot_and_takes_none() -> None:
    rig = Rig(seqs=1)
    ask(rig, "a")
    sink(rig)
    rig.submit("long", numbers(30, 3), 30)
    rig.step()
    assert not rig.loop.queues.slots
    rig.loop.prefetch(1, Subject("", PROMPT))
    for _ in range(6):
        rig.land()
        rig.step()
    assert [done.status for done in rig.loop.prefetched()] == [Status.LOADED]
    assert "long" in {running.job.request.id for running in rig.loop.queues.running}
    rig.run()
    rig.cold("long")


def test_a_prefetch_that_fails_costs_nobody_anything() -> None:
    rig = Rig()
    ask(rig, "a")
    sink(rig)
    rig.loop.prefetch(1, Subject("", PROMPT))
    rig.step()
    assert rig.land(ok=False)
    rig.run()
    assert [done.status for done in rig.loop.prefetched()] == [Status.FAILED]
    assert rig.ask("b", PROMPT).recomputed == len(PROMPT)


def test_what_is_unknown_or_too_much_is_answered_at_once() -> None:
    rig = Rig()
    ask(rig, "a")
    sink(rig)
    assert fetched(rig, Subject("", numbers(42, 9))) == Prefetched(7, Status.UNKNOWN)
    assert fetched(rig, Subject("other", PROMPT)).status == Status.UNKNOWN, "salts share nothing"
    rig.loop.prefetch(1, Subject("", PROMPT))
    rig.loop.prefetch(2, Subject("", PROMPT))
    (busy,) = rig.loop.prefetched()
    assert (busy.number, busy.status) == (2, Status.BUSY), "it is on its way"
    rig.run()
    assert [done.number for done in rig.loop.prefetched()] == [1]


def test_only_so_many_are_open_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MOST_ORDERS", 4)
    rig = Rig()
    prompts = [numbers(10, seed) for seed in range(5)]
    for seed, prompt in enumerate(prompts):
        rig.ask(f"r{seed}", prompt)
    sink(rig)
    for number, prompt in enumerate(prompts, 1):
        rig.loop.prefetch(number, Subject("", prompt))
    (busy,) = rig.loop.prefetched()
    assert (busy.number, busy.status) == (5, Status.BUSY)
    rig.run()
    assert {done.status for done in rig.loop.prefetched()} == {Status.LOADED}


def test_room_is_made_for_it_by_copies_and_by_nothing_else() -> None:
    rig = Rig(pages=26, host=100, clean=0.0, idle=False)
    ask(rig, "a")
    sink(rig)
    other = numbers(62, 4)
    rig.ask("other", other)
    assert rig.directory.room().instant < 11
    assert fetched(rig, Subject("", PROMPT)).status == Status.LOADED
    assert rig.ask("again", other).cached == 60, "nothing was lost"


def test_what_will_have_no_room_waits_for_no_copies() -> None:
    rig = Rig(pages=20, host=100, interval=20, clean=0.0, idle=False)
    ask(rig, "a")
    sink(rig)
    rig.ask("y", numbers(6, 5))
    rig.submit("x", numbers(38, 3), 20)
    rig.step()
    *others, last = demote(rig.directory, 20)
    rig.loop.queues.moves.extend([*others, last])
    rig.step()
    rig.land(lambda move: move.ticket != last.ticket)
    rig.step()
    assert 6 <= rig.directory.room().instant < 11, "room for the rung at 20; never for that at 40"
    rig.loop.prefetch(1, Subject("", PROMPT))
    rig.run()
    (done,) = rig.loop.prefetched()
    assert (done.status, done.tokens) == (Status.PARTIAL, 20)


def test_it_waits_for_no_copies_that_begin_later() -> None:
    rig = Rig(pages=40, host=100, clean=0.0, idle=False)
    ask(rig, "a")
    sink(rig)
    rig.ask("other", numbers(80, 4))
    rig.ask("more", numbers(42, 5))
    rig.loop.prefetch(1, Subject("", PROMPT))
    assert rig.loop.retention.busy and not rig.loop.prefetched()
    rig.step()
    rig.land()
    later = demote(rig.directory, 40)
    assert later, "the device is never without a copy that reads it"
    rig.step()
    rig.land(LOADS)
    rig.step()
    assert [done.status for done in rig.loop.prefetched()] == [Status.LOADED]
    rig.loop.queues.moves.extend(later)
    rig.run()


def test_a_prefetch_whose_copies_are_not_reported_is_answered_in_the_end() -> None:
    rig = Rig()
    ask(rig, "a")
    sink(rig)
    rig.loop.retention = Retention(rig.directory, patience=3.0)
    rig.loop.prefetch(1, Subject("", PROMPT))
    for _ in range(5):
        rig.step()
    assert [done.status for done in rig.loop.prefetched()] == [Status.FAILED]
    rig.run()
    assert rig.ask("b", PROMPT).device == 40, "the copies came after all"


def test_a_pin_outlives_what_came_later() -> None:
    rig = Rig(pages=30, host=0)
    ask(rig, "a")
    assert rig.loop.pin(Subject("", PROMPT), 1000.0) == 40
    for number in range(5):
        rig.ask(f"x{number}", numbers(42, 10 + number))
    assert rig.ask("b", PROMPT).device == 40
    assert rig.loop.unpin(Subject("", PROMPT)) == 40
    for number in range(5):
        rig.ask(f"y{number}", numbers(42, 20 + number))
    assert rig.ask("c", PROMPT).device == 0


def test_a_pin_ends_with_its_time() -> None:
    rig = Rig(pages=30, host=0)
    ask(rig, "a")
    rig.loop.pin(Subject("", PROMPT), 5.0)
    assert rig.loop.stats().tiers[0].pinned
    rig.clock.advance(5.0)
    rig.ask("x", numbers(8, 3))
    assert not rig.loop.stats().tiers[0].pinned


def test_hints_leave_no_trace_in_other_salts() -> None:
    rig = Rig()
    ask(rig, "a")
    assert rig.loop.pin(Subject("other", PROMPT), 9.0) == 0
    assert rig.loop.unpin(Subject("other", PROMPT)) == 0
    assert not rig.directory.pins.known


def test_a_session_is_a_name_and_decides_nothing() -> None:
    """Two runs of the same prompts, one with session ids: the same steps, answers and copies."""
    rigs = Rig(pages=30), Rig(pages=30)
    for rig, session in zip(rigs, (None, "s"), strict=True):
        for number in range(6):
            request = Request(f"r{number}", numbers(42, number % 4), SamplingParams(8), session=session)
            rig.loop.submit(request)
            rig.requests[request.id] = request
            rig.run()
    one, other = (rig.loop.stats() for rig in rigs)
    assert one.tiers == other.tiers and one.tally == other.tally and one.steps == other.steps
