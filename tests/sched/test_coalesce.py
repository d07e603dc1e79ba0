"""A prompt that another request is computing is waited for, once, by whoever shares it; nobody waits for nothing."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Loss
from stepwell.cache.tree import RungKind
from stepwell.sched.build import preempt
from stepwell.sched.coalesce import MOST_WAITS
from tests.cache.builders import join, numbers
from tests.sched.rig import LOADS, Rig

PROMPT = numbers(200)


def rig(**more: int | bool) -> Rig:
    """Blocks and grid of 4 tokens, 32 tokens a step."""
    return Rig(**{"pages": 400, "budget": 32, "coalesce": True, **more})  # type: ignore[arg-type]


def fork(at: int, seed: int, count: int = 200) -> Ints:
    """`PROMPT` up to `at`, then something else."""
    return join(PROMPT[:at], numbers(count - at, seed))


def followers(engine: Rig) -> list[str]:
    return [w.job.request.id for w in engine.loop.queues.waiting if w.following is not None]


@pytest.mark.parametrize("coalesce", [True, False])
def test_ten_at_once_compute_their_prompt_once(coalesce: bool) -> None:
    engine = rig(coalesce=coalesce)
    names = [f"{number}" for number in range(10)]
    for name in names:
        engine.submit(name, PROMPT, 1)
    engine.run()
    engine.cold(*names)
    assert (engine.loop.stats().computed_tokens == 200 + 9 * 4) == coalesce
    assert engine.loop.stats().tally.coalesced == (9 if coalesce else 0)
    assert engine.loop.stats().tally.coalesced_tokens == (9 * 196 if coalesce else 0)
    if coalesce:
        assert engine.outcome("9").coalesced == engine.outcome("9").device == 196
        assert "waited for another request to compute 196 of them" in engine.outcome("9").in_one_line()
        assert engine.outcome("0").coalesced == 0
    engine.drained()


def test_the_leader_leaves_a_rung_where_the_two_part() -> None:
    engine = rig()
    engine.submit("a", PROMPT)
    engine.step()
    engine.submit("b", fork(103, 1))
    engine.step()
    assert (100, RungKind.BRANCH) in engine.loop.queues.running[0].rungs
    engine.run()
    engine.cold("a", "b")
    assert engine.outcome("b").boundary == 100
    assert engine.loop.stats().computed_tokens == 200 + 100 + 3 + 3  # the last tokens of four are decoded
    engine.drained()


def test_it_waits_no_longer_than_to_the_rung() -> None:
    engine = rig()
    engine.submit("a", PROMPT, 50)
    engine.step()
    engine.submit("b", fork(64, 1))
    engine.step()
    assert followers(engine) == ["b"]
    engine.step()
    assert engine.loop.stats().running == 2
    engine.run()
    engine.cold("a", "b")


def test_a_follower_holds_nothing_and_may_be_overtaken() -> None:
    engine = rig(seqs=2)
    engine.submit("a", PROMPT, 50)
    engine.step()
    engine.submit("b", PROMPT)
    engine.submit("stranger", numbers(8, 9), 1)
    engine.step()
    assert followers(engine) == ["b"] and engine.loop.queues.find_running("stranger") is not None
    assert len(engine.tables()) == 2 and engine.loop.queues.slots == []
    engine.run()
    engine.cold("a", "b", "stranger")
    assert engine.outcome("b").boundary == 196
    engine.drained()


class TestNobodyWaits:
    def alone(self, engine: Rig) -> None:
        engine.step()
        assert followers(engine) == []
        engine.run()
        engine.cold("a", "b")

    @pytest.mark.parametrize("which", ["a foreign salt", "a leader that leaves nothing", "a reader of nothing"])
    def test_for_what_it_may_not_find(self, which: str) -> None:
        engine = rig()
        engine.submit("a", PROMPT, write=which != "a leader that leaves nothing")
        engine.step()
        salt = "other" if which == "a foreign salt" else ""
        engine.submit("b", PROMPT, salt=salt, read=which != "a reader of nothing")
        self.alone(engine)

    def test_for_another_prompt(self) -> None:
        engine = rig()
        engine.submit("a", PROMPT)
        engine.step()
        engine.submit("b", join(PROMPT[:3], numbers(100, 2)))
        self.alone(engine)

    def test_for_what_has_been_passed(self) -> None:
        """The leader is past the fork: the state there cannot be had from it any more."""
        engine = rig()
        engine.submit("a", PROMPT)
        engine.step()
        engine.step()
        engine.submit("b", fork(40, 1))
        self.alone(engine)
        outcome = engine.outcome("b")
        assert outcome.coalesced == 0 and outcome.lost[0] == (Loss.NO_RUNG, 40 - outcome.boundary)

    def test_for_one_that_comes_later_to_it(self) -> None:
        """The more urgent request has the budget; what the other has computed is less than it has to repeat."""
        engine = rig(seqs=3)
        engine.submit("first", PROMPT[:119], 1)
        engine.run()
        engine.submit("a", PROMPT, read=False)
        engine.step()
        engine.submit("b", PROMPT, priority=-900)
        self.alone(engine)
        assert engine.outcome("b").boundary == 116

    def test_for_a_load_that_is_overdue(self) -> None:
        """Nothing has been heard of it for more than a second: the next one loads for itself."""
        engine = rig()
        engine.ask("first", PROMPT[:101], 1)
        engine.drop(PROMPT, 20, (100,))
        engine.submit("a", PROMPT)
        engine.step()
        engine.submit("b", PROMPT)
        engine.step()
        assert followers(engine) == ["b"]
        engine.step()
        assert set(engine.loop.queues.parked) == {"a", "b"}
        engine.run()
        engine.cold("a", "b")


def test_what_another_loads_is_loaded_once() -> None:
    engine = rig()
    engine.ask("first", PROMPT[:101], 1)
    engine.drop(PROMPT, 20, (100,))
    names = ["a", "b", "c"]
    for name in names:
        engine.submit(name, PROMPT)
    engine.step()
    assert set(engine.loop.queues.parked) == {"a"} and followers(engine) == ["b", "c"]
    engine.land(LOADS)
    engine.run()
    engine.cold(*names)
    assert [engine.outcome(name).boundary for name in names] == [100, 196, 196]
    assert engine.outcome("a").host == 80 and engine.outcome("b").host == 0


def test_a_loading_leader_is_asked_for_the_rung_once_it_runs() -> None:
    engine = rig()
    engine.ask("first", PROMPT[:101], 1)
    engine.drop(PROMPT, 20, (100,))
    engine.submit("a", PROMPT)
    engine.submit("b", fork(150, 3))
    engine.step()
    assert followers(engine) == ["b"]
    engine.land(LOADS)
    engine.run()
    engine.cold("a", "b")
    assert engine.outcome("b").boundary == 148


@pytest.mark.parametrize("end", ["aborted", "failed", "preempted"])
def test_when_the_leader_goes_the_first_follower_leads(end: str) -> None:
    engine = rig()
    for name in ("a", "b", "c"):
        engine.submit(name, PROMPT)
    engine.step()
    assert followers(engine) == ["b", "c"]
    if end == "aborted":
        engine.loop.abort("a")
    elif end == "failed":
        engine.runner.fail.add("a")
        engine.step()
    else:
        preempt(engine.loop.queues, engine.directory, engine.loop.queues.running[0])
    engine.step()
    assert followers(engine) == (["b", "c"] if end == "preempted" else ["c"])
    engine.run()
    engine.cold("b", "c")
    assert engine.outcome("c").boundary == 196
    assert engine.loop.stats().computed_tokens < 300
    engine.drained()


def test_nobody_waits_for_one_who_waits_himself() -> None:
    """`c` has more in common with `b` than with `a`, whom both follow; then it follows `b`, who leads by then."""
    engine = rig()
    branch = fork(100, 1)
    engine.submit("a", PROMPT)
    engine.submit("b", branch)
    engine.submit("c", join(branch[:180], numbers(20, 2)))
    engine.step()
    running = engine.loop.queues.running
    assert followers(engine) == ["b", "c"] and len(running) == 1
    assert {w.following.position for w in engine.loop.queues.waiting if w.following is not None} == {100}
    engine.run()
    engine.cold("a", "b", "c")
    assert (engine.outcome("b").boundary, engine.outcome("c").boundary) == (100, 180)
    assert engine.outcome("c").coalesced == 180


def test_who_has_waited_often_waits_no_more() -> None:
    """Leader after leader is aborted: the last in the queue starts by itself in the end."""
    engine = rig(seqs=16)
    prompt = numbers(400)
    for number in range(MOST_WAITS + 1):
        engine.submit(f"{number}", prompt)
    engine.submit("last", prompt)
    for number in range(MOST_WAITS):
        engine.step()
        assert "last" in followers(engine)
        engine.loop.abort(f"{number}")
    engine.step()
    assert [r.job.request.id for r in engine.loop.queues.running] == [f"{MOST_WAITS}", "last"]
    engine.run()
    engine.cold("last")


def test_an_explanation_says_what_it_would_wait_for_and_changes_nothing() -> None:
    engine = rig()
    assert engine.loop.explain("", PROMPT).waits_for is None
    engine.submit("a", PROMPT)
    engine.step()
    rungs = engine.loop.queues.running[0].rungs
    assert engine.loop.explain("", fork(103, 1)).waits_for == 100
    assert engine.loop.explain("", fork(103, 1), read=False).waits_for is None
    assert engine.loop.queues.running[0].rungs == rungs
    engine.run()
    assert engine.loop.explain("", fork(103, 1)).waits_for is None


def test_a_full_device_keeps_nobody_waiting_for_a_rung_that_was_not_left() -> None:
    """The image at the fork finds no pages: the follower computes all of it, once it has room."""
    engine = rig(pages=60, host=0, image=12)
    engine.submit("a", PROMPT, 4)
    engine.step()
    engine.submit("b", fork(100, 1), 4)
    engine.run()
    engine.cold("a", "b")
    assert engine.directory.use(Tier.DEVICE).leased == 0
    assert np.isclose(engine.loop.stats().tally.prompt, 400)
    engine.drained()
