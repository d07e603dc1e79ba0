"""One look at the engine, which stays as it was."""

from __future__ import annotations

from stepwell.cache.moves import Tier
from tests.cache.builders import numbers
from tests.sched.rig import Rig
from tests.sched.test_resume import PROMPT, example


def test_a_look_counts_requests_by_state() -> None:
    rig = example(seqs=2)
    rig.submit("loads", PROMPT)
    rig.submit("runs", numbers(20, 1), 30)
    rig.submit("waits", numbers(20, 2), 30)
    rig.step()
    stats = rig.loop.stats()
    assert (stats.waiting, stats.parked, stats.running, stats.draining) == (1, 1, 1, 0)
    assert stats.moves_in_flight == len(rig.mover.pending) > 0 and stats.leases > 0
    rig.loop.abort("loads")
    assert rig.loop.stats().draining == 1
    rig.run()
    rig.drained()


def test_a_look_does_not_change_with_what_happens_after_it() -> None:
    rig = Rig()
    rig.ask("a", PROMPT)
    before = rig.loop.stats()
    reasons, admissions = dict(before.tally.reasons), before.admissions
    rig.ask("b", PROMPT)
    assert (before.tally.reasons, before.admissions) == (reasons, admissions)
    assert rig.loop.stats().admissions == admissions + 1


def test_work_done_is_counted() -> None:
    rig = Rig(budget=64)
    rig.ask("a", PROMPT, 5)
    stats = rig.loop.stats()
    assert (stats.computed_tokens, stats.sampled_tokens, stats.steps) == (44, 5, len(rig.steps))
    assert stats.tiers[Tier.DEVICE].total == 128 and stats.tiers[Tier.DISK].total == 0
    assert stats.joint.startswith("joint: boundaries=0")


def test_copies_are_counted_by_where_they_go() -> None:
    rig = example(seqs=2)
    rig.submit("loads", PROMPT)
    rig.step()
    copied = rig.loop.stats().pages_copied
    loaded = sum(len(move.source.slots) for move in rig.mover.pending.values() if move.source.tier == Tier.HOST)
    assert copied[Tier.HOST, Tier.DEVICE] == loaded > 0
    rig.run()
    rig.drained()


def test_loop_answers_questions_and_empties_its_cache() -> None:
    rig = Rig()
    rig.ask("a", PROMPT)
    told = rig.loop.explain("", PROMPT)
    assert told.outcome is not None and told.outcome.boundary == told.hit > 0
    assert rig.loop.reset()[Tier.DEVICE] > 0
    assert rig.loop.explain("", PROMPT).hit == 0
    rig.run()
    rig.drained()
