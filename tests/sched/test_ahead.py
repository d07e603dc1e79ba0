"""A step is built and launched while the one before computes: what that changes, and what it must not."""

from __future__ import annotations

import random

import numpy as np
import pytest

from stepwell.cache.config import CacheConfig
from stepwell.cache.moves import Tier
from stepwell.sched.audit import Auditor
from stepwell.sched.build import preempt
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Event, Finished, Request, SamplingParams, Tokens
from stepwell.sched.step import LAST_DRAW, Carry
from stepwell.sched.suspend import let_go_all
from stepwell.testing import telltale
from stepwell.testing.harness import Harness
from stepwell.testing.telltale import answer
from tests.cache.builders import join, numbers
from tests.sched.rig import KV, LOADS, VOCAB, Rig
from tests.sched.test_resume import PROMPT, example


def of(rig: Rig, name: str) -> list[tuple[int, int]]:
    """(start, first token) of each of the request's works."""
    return [(w.start, int(w.tokens[0])) for step in rig.steps for w in step.works if w.request_id == name]


class TestTwoPhases:
    def test_a_token_is_told_once_the_next_step_is_launched(self) -> None:
        rig = Rig(ahead=True)
        rig.submit("a", numbers(10), max_tokens=3)
        rig.step()
        assert len(rig.steps) == 1 and not rig.answer("a")
        rig.step()
        assert len(rig.steps) == 2 and len(rig.answer("a")) == 1
        rig.run()
        rig.cold("a")
        rig.drained()

    def test_a_decode_does_not_wait_for_its_input_token(self) -> None:
        rig = Rig(ahead=True)
        prompt = numbers(10)
        rig.submit("a", prompt, max_tokens=4)
        rig.run()
        assert of(rig, "a") == [(0, int(prompt[0])), *((start, LAST_DRAW) for start in (10, 11, 12))]
        assert [step.works[0].sample.index for step in rig.steps if step.works[0].sample] == [0, 1, 2, 3]
        rig.cold("a")

    def test_an_answer_at_its_limit_takes_no_further_step(self) -> None:
        rig = Rig(ahead=True)
        rig.submit("a", numbers(10), max_tokens=3)
        rig.submit("b", numbers(10, 1), max_tokens=6)
        rig.run()
        assert len(of(rig, "a")) == 3 and len(of(rig, "b")) == 6

    @pytest.mark.parametrize("budget", [8, 64])
    def test_pieces_of_a_prompt_follow_each_other_without_a_gap(self, budget: int) -> None:
        one, other = Rig(budget=budget, rolling=4), Rig(budget=budget, rolling=4, ahead=True)
        for rig in (one, other):
            rig.ask("a", numbers(50), max_tokens=9)
        assert [start for start, _ in of(one, "a")] == [start for start, _ in of(other, "a")]
        assert one.directory.use(Tier.DEVICE) == other.directory.use(Tier.DEVICE)

    def test_the_state_is_read_from_its_image_once(self) -> None:
        rig = Rig(ahead=True, budget=8)
        rig.ask("first", numbers(40))
        rig.submit("second", join(numbers(40), numbers(30, 1)))
        rig.step()
        rig.step()
        first, second = (step.works[0] for step in rig.steps[-2:])
        assert not isinstance(first.state, Carry) and isinstance(second.state, Carry)
        rig.run()
        rig.cold("second")
        rig.drained()

    def test_who_looks_back_joins_every_other_step_and_nobody_else_waits(self) -> None:
        rig = Rig(ahead=True)
        rig.submit("plain", numbers(10), max_tokens=8)
        rig.submit("penalised", numbers(10, 1), params=SamplingParams(8, presence_penalty=1.0))
        rig.run()
        turns = {
            name: [i for i, s in enumerate(rig.steps) if name in [w.request_id for w in s.works]]
            for name in rig.requests
        }
        assert turns["plain"] == list(range(8))
        assert turns["penalised"] == [0, 2, 4, 6, 8, 9, 10, 11], "in the end it is alone: every other turn has no step"
        assert all(token != LAST_DRAW for _, token in of(rig, "penalised"))
        histories = [w.sample.history for s in rig.steps for w in s.works if w.request_id == "penalised" and w.sample]
        assert [len(h) for h in histories if h is not None] == list(range(10, 18)), "each knows all tokens before it"
        rig.cold("plain", "penalised")


class TestEnds:
    def stopping(self, at: int = 5, rolling: int = 4) -> Rig:
        """An answer that ends at a token, with a step in flight."""
        prompt = numbers(11)
        eos = tuple(answer(prompt, at, VOCAB)[-1:])
        rig = Rig(ahead=True, eos=eos, rolling=rolling)
        rig.submit("a", prompt, max_tokens=40)
        while not rig.ended("a"):
            rig.step()
        return rig

    def test_an_end_that_only_the_token_tells_is_noticed_one_step_late_and_nobody_sees_it(self) -> None:
        rig = self.stopping()
        assert rig.end("a").reason == "stop" and len(rig.answer("a")) == 5
        assert len(of(rig, "a")) == 6, "the step after the last token was on its way"
        rig.run()
        rig.cold("a")
        assert rig.loop.stats().sampled_tokens == 6
        rig.drained()

    def test_what_it_holds_is_let_go_with_the_extra_step(self) -> None:
        rig = self.stopping()
        (leaving,) = rig.loop.queues.leaving
        table, slot = leaving.table, leaving.slot
        assert slot not in rig.loop.queues.slots and len(table.private)
        free = set(rig.directory.pools[Tier.DEVICE].free_slots.tolist())
        assert free.isdisjoint(table.pages.tolist())
        rig.step()
        assert not rig.loop.queues.leaving and slot in rig.loop.queues.slots
        rig.run()
        rig.drained()

    @pytest.mark.parametrize("at", range(1, 9))
    def test_the_rung_of_the_extra_token_is_not_published(self, at: int) -> None:
        """After 11 + at tokens; the extra step folds one more, which is a boundary for some of these."""
        rig = self.stopping(at)
        rig.run()
        ends = {node.end for node in rig.directory.tree.nodes()}
        assert max(ends) <= 11 + at - 1, "the token that ended it was never computed for others"
        rig.drained()

    def test_numbers_that_go_wrong_take_the_step_in_flight_with_them(self) -> None:
        rig = Rig(ahead=True)
        rig.submit("a", numbers(10), max_tokens=9)
        rig.submit("b", numbers(10, 1), max_tokens=9)
        rig.step()
        rig.runner.fail.add("a")
        rig.run()
        assert rig.end("a").reason == "error" and len(rig.answer("a")) == 1
        assert len(of(rig, "a")) == 3
        rig.cold("b")
        rig.drained()

    @pytest.mark.parametrize("ahead", [False, True])
    def test_a_calm_row_that_draws_nothing_ends_its_request_alone(self, ahead: bool) -> None:
        """Two answers amid their decodes, in which nothing but a token each happens."""
        rig = Rig(ahead=ahead)
        rig.submit("a", numbers(10), max_tokens=20)
        rig.submit("b", numbers(10, 1), max_tokens=20)
        for _ in range(6):
            rig.step()
        said = rig.answer("a")
        rig.runner.fail.add("a")
        rig.run()
        assert rig.end("a").reason == "error" and rig.answer("a")[: len(said)] == said
        rig.cold("b")
        rig.drained()

    def test_a_row_may_draw_nothing_after_its_request_was_aborted(self) -> None:
        rig = Rig(ahead=True)
        rig.submit("a", numbers(10), max_tokens=20)
        rig.submit("b", numbers(10, 1), max_tokens=20)
        for _ in range(6):
            rig.step()
        rig.runner.fail.add("a")
        rig.step()  # launches a step in which it draws nothing, and does not collect it
        rig.loop.abort("a")
        rig.run()
        assert rig.end("a").reason == "abort"
        rig.cold("b")
        rig.drained()

    @pytest.mark.parametrize("seed", range(10))
    def test_whatever_goes_wrong_whenever_all_others_are_answered(self, seed: int) -> None:
        """With tokens that end answers, aborts, and more requests than slots."""
        chance = random.Random(seed)
        rig = Rig(ahead=bool(seed % 2), eos=tuple(range(0, VOCAB, 12)), budget=24)
        names = [f"r{i}" for i in range(10)]
        for i, name in enumerate(names):
            rig.submit(name, numbers(chance.randint(3, 30), i), max_tokens=chance.randint(1, 40))
        for _ in range(60):
            if chance.random() < 0.1:
                rig.runner.fail.add(chance.choice(names))
            if chance.random() < 0.05:
                rig.loop.abort(chance.choice(names))
            rig.land()
            rig.step()
        rig.run()
        for name in names:
            assert rig.end(name).reason in ("length", "stop", "abort") or name in rig.runner.fail
        rig.cold(*(name for name in names if rig.end(name).reason in ("length", "stop")))
        rig.drained()


class TestAbort:
    def test_between_launch_and_collect(self) -> None:
        rig = Rig(ahead=True)
        rig.submit("a", numbers(30), max_tokens=9)
        rig.step()
        rig.loop.abort("a")
        assert rig.loop.busy and rig.loop.serving
        pages = rig.loop.queues.leaving[0].table.pages
        assert not set(pages.tolist()) & set(rig.directory.pools[Tier.DEVICE].free_slots.tolist())
        rig.run()
        assert rig.answer("a") == [] and rig.end("a").reason == "abort"
        assert rig.directory.use(Tier.DEVICE).cached == 0
        rig.drained()

    def test_its_id_can_be_used_again_at_once(self) -> None:
        rig = Rig(ahead=True)
        rig.submit("a", numbers(30), max_tokens=9)
        rig.step()
        rig.loop.abort("a")
        rig.step()
        rig.events.clear()
        rig.submit("a", numbers(30, 5), max_tokens=4)
        rig.run()
        rig.cold("a")

    def test_its_slot_goes_to_nobody_before(self) -> None:
        rig = Rig(ahead=True, seqs=1)
        rig.submit("a", numbers(30), max_tokens=9)
        rig.step()
        rig.loop.abort("a")
        rig.submit("b", numbers(30, 5), max_tokens=4)
        rig.step()
        assert not of(rig, "b"), "the only slot is still written"
        rig.run()
        rig.cold("b")

    def test_where_nothing_else_runs_whoever_waits_is_not_refused(self) -> None:
        rig = Rig(pages=8, ahead=True, seqs=2)
        rig.submit("a", numbers(26), max_tokens=4)
        rig.step()
        rig.loop.abort("a")
        rig.submit("b", numbers(26, 5), max_tokens=4)
        rig.run()
        rig.cold("b")
        rig.drained()


class TestPreemption:
    def test_it_collects_the_launched_step_first(self) -> None:
        rig = Rig(pages=12, host=0, ahead=True)
        rig.submit("a", numbers(16), max_tokens=24)
        rig.submit("b", numbers(16, 1), max_tokens=24)
        rig.run()
        assert rig.loop.stats().preemptions
        rig.cold("a", "b")
        rig.drained()

    def test_one_that_was_drained_goes_on_where_it_was(self) -> None:
        rig = Rig(ahead=True)
        rig.submit("a", numbers(18), max_tokens=12)
        for _ in range(4):
            rig.step()
        rig.loop.drain()
        (running,) = rig.loop.queues.running
        assert running.computed == running.launched and running.drawn == running.job.tokens.count
        preempt(rig.loop.queues, rig.directory, running)
        before = rig.loop.stats().computed_tokens
        rig.run()
        rig.cold("a")
        assert rig.loop.stats().computed_tokens - before == 12 - 4, "no token was computed twice"
        rig.drained()

    @pytest.mark.parametrize("least", range(12, 26))
    def test_one_that_resumes_at_a_rung_repeats_the_tokens_that_it_knows(self, least: int) -> None:
        """Its last known token is decoded while the part before it is in flight, which draws nothing."""
        rig = Rig(ahead=True, budget=8, grid=8, seqs=1, rolling=64)
        rig.submit("a", numbers(10), max_tokens=20)
        while not rig.loop.queues.running or rig.loop.queues.running[0].job.tokens.count < least:
            rig.step()
        rig.loop.drain()
        (running,) = rig.loop.queues.running
        preempt(rig.loop.queues, rig.directory, running)
        assert let_go_all(rig.loop.queues, rig.directory)
        before, known = len(rig.steps), running.job.tokens.count
        rig.run()
        rig.cold("a")
        repeated = [work for step in rig.steps[before:] for work in step.works if work.start < known]
        assert repeated and all(LAST_DRAW not in work.tokens for work in repeated)
        rig.drained()


class TestBesides:
    def test_a_load_that_fails_while_a_step_is_in_flight_retreats(self) -> None:
        rig = example(ahead=True)
        rig.submit("other", numbers(12, 3), max_tokens=20)
        rig.step()
        rig.submit("a", PROMPT)
        rig.step()
        rig.land(KV, ok=False)
        rig.land(LOADS)
        assert list(rig.loop.launched())
        rig.step()
        assert (rig.outcome("a").boundary, rig.outcome("a").loaded) == (20, False)
        rig.run()
        rig.cold("a", "other")
        rig.drained()

    def test_pages_that_another_had_published_first_stay_until_the_step_that_reads_them_is_collected(self) -> None:
        rig = Rig(ahead=True, budget=128)
        prompt = numbers(40)
        for name in ("a", "b"):
            rig.submit(name, prompt, max_tokens=6)
        rig.step()
        own = rig.loop.queues.running[1].table.pages.copy()
        rig.step()
        later = rig.loop.queues.running[1].table
        replaced = np.setdiff1d(own, later.pages)
        free = rig.directory.pools[Tier.DEVICE].free_slots
        assert len(replaced) and not len(np.intersect1d(replaced, free)) and set(replaced) <= set(later.private)
        assert (next(rig.loop.launched()).step.works[1].pages[: len(own)] == own).all(), "a step owns its table"
        rig.step()
        assert len(np.intersect1d(replaced, rig.directory.pools[Tier.DEVICE].free_slots)) == len(replaced)
        rig.run()
        rig.cold("a", "b")

    def test_a_twin_waits_for_the_chunk_in_flight(self) -> None:
        rig = Rig(ahead=True, coalesce=True, budget=128)
        rig.submit("a", numbers(80), max_tokens=6)
        rig.step()
        rig.submit("b", numbers(80), max_tokens=6)
        rig.run()
        rig.cold("a", "b")
        assert rig.outcome("b").device == 76 and rig.loop.stats().computed_tokens == 80 + 4 + 5 + 5

    def audited(self) -> Harness:
        cache = CacheConfig(telltale.geometry(), 80, 160, chunk=16, interval=8, min_load_tokens=4)
        rules = SchedConfig(max_num_seqs=4, max_num_batched_tokens=16, async_scheduling=True)
        harness = Harness(cache, rules, audit=1.0)
        for name in ("first", "second"):
            harness.submit(Request(name, numbers(40), SamplingParams(3)))
            while harness.told[name].finished is None:
                harness.step()
        return harness

    def test_an_audit_that_is_cut_short_in_flight_judges_nothing(self) -> None:
        harness = self.audited()
        while not any(w.sample and w.sample.keep_logits for b in harness.loop.launched() for w in b.step.works):
            harness.step()
        harness.submit(Request("third", numbers(10, 5), SamplingParams(3)))
        harness.step()
        assert harness.stats().audits == 0 and not harness.loop.queues.leaving
        harness.drain()
        assert (harness.stats().audits, harness.stats().audit_mismatches) == (1, 0)

    def test_quarantine_while_a_step_is_in_flight(self) -> None:
        """A request that runs on wrong content holds it to its end; nobody else finds it."""
        harness = self.audited()
        harness.drain()
        node = next(node for node in harness.loop.directory.tree.nodes() if node.start == 0)
        pages = node.kv.at[Tier.DEVICE]
        assert pages is not None
        harness.corrupt(Tier.DEVICE, int(pages[0]))
        harness.loop.auditor = Auditor(1.0)
        harness.submit(Request("wrong", numbers(40), SamplingParams(3)))
        while harness.stats().audit_mismatches == 0:
            harness.step()
        harness.trust()
        harness.submit(Request("right", numbers(40), SamplingParams(3)))
        harness.drain()
        assert harness.told["right"].outcome is not None and harness.told["right"].outcome.cached == 0


def events_of(rig: Rig, name: str) -> list[Event]:
    return [event for event in rig.events if event.request_id == name]


def test_nothing_is_said_after_the_end() -> None:
    rig = Rig(ahead=True, eos=tuple(answer(numbers(11), 3, VOCAB)[-1:]))
    rig.submit("a", numbers(11), max_tokens=40)
    rig.run()
    told = events_of(rig, "a")
    assert isinstance(told[-1], Finished) and sum(isinstance(event, Tokens) for event in told) == 3
