"""The life of requests: aborts in every state, preemption at every step, refusals, and everything ending."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.errors import CapacityError, RequestError
from stepwell.cache.moves import Report, Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.sched.build import preempt
from stepwell.sched.request import Finished, SamplingParams
from stepwell.testing.telltale import answer
from tests.cache.builders import content, join, numbers
from tests.sched.rig import KV, LOADS, STATE, VOCAB, Rig
from tests.sched.test_resume import PROMPT, example


def abort(rig: Rig, name: str) -> None:
    rig.loop.abort(name)
    rig.check()


class TestAbort:
    """In every state: the caller hears it once, nothing leaks, and whatever was computed is still right."""

    def over(self, rig: Rig, name: str = "a") -> None:
        rig.run()
        assert rig.end(name).reason == "abort"
        rig.drained()

    def test_while_waiting(self) -> None:
        rig = Rig(seqs=1)
        rig.submit("running", numbers(20, 1), 20)
        rig.step()
        rig.submit("a", PROMPT)
        rig.step()
        assert rig.loop.stats().waiting == 1
        abort(rig, "a")
        self.over(rig)
        rig.cold("running")

    def test_before_the_first_step(self) -> None:
        rig = Rig()
        for number in range(64):
            rig.submit(f"{number}", numbers(100, number))
        for number in range(64):
            abort(rig, f"{number}")
        rig.run()
        rig.ask("after", PROMPT)
        rig.drained()

    @pytest.mark.parametrize("ok", [True, False])
    @pytest.mark.parametrize("reports", [0, 1])
    @pytest.mark.parametrize("first", [KV, STATE])
    def test_while_parked(self, first: object, reports: int, ok: bool) -> None:
        rig = example()
        rig.submit("a", PROMPT)
        rig.step()
        if reports:
            rig.land(first, ok)  # type: ignore[arg-type]
            rig.step()
        abort(rig, "a")
        rig.step()
        assert rig.loop.stats().draining == 1, "its pages are still being written"
        pages = {p for private, _ in rig.tables() for p in private.tolist()}
        assert pages and pages.isdisjoint(rig.directory.pools[Tier.DEVICE].free_slots.tolist())
        self.over(rig)
        assert rig.ask("again", PROMPT).boundary >= 20

    def test_again_while_draining(self) -> None:
        rig = example()
        rig.submit("a", PROMPT)
        rig.step()
        abort(rig, "a")
        abort(rig, "a")
        rig.step()
        abort(rig, "a")
        self.over(rig)

    def test_while_draining_the_same_id_may_come_back(self) -> None:
        rig = example()
        rig.submit("a", PROMPT)
        rig.step()
        abort(rig, "a")
        rig.step()
        rig.loop.submit(rig.requests["a"])
        rig.run()
        assert rig.answer("a") == answer(PROMPT, 4, VOCAB)
        assert [e.reason for e in rig.events if isinstance(e, Finished) and e.request_id == "a"] == ["abort", "length"]

    def test_while_another_waits_for_the_same_load(self) -> None:
        rig = example()
        rig.submit("a", PROMPT)
        rig.submit("b", PROMPT)
        rig.step()
        abort(rig, "a")
        self.over(rig)
        rig.cold("b")
        assert rig.outcome("b").boundary == 32

    def test_after_a_failed_leg_while_the_fallback_loads(self) -> None:
        rig = Rig()
        rig.ask("first", PROMPT[:25], 1)
        rig.ask("second", PROMPT[:37], 1)
        rig.drop(PROMPT, 28, (24, 36))
        rig.submit("a", PROMPT)
        rig.step()
        rig.land(LOADS, ok=False)
        rig.step()
        assert rig.loading("a").option.boundary == 24
        abort(rig, "a")
        self.over(rig)

    @pytest.mark.parametrize("turns", range(1, 7))
    def test_while_prefilling_and_the_retry_resumes_from_what_was_computed(self, turns: int) -> None:
        prompt = numbers(200)
        rig = Rig(budget=32, grid=8)
        rig.submit("a", prompt)
        for _ in range(turns):
            rig.step()
        computed = rig.loop.queues.running[0].computed
        abort(rig, "a")
        retry = rig.ask("retry", prompt)
        assert retry.boundary == computed == 32 * turns
        self.over(rig)

    @pytest.mark.parametrize("turns", range(1, 12))
    def test_while_decoding(self, turns: int) -> None:
        rig = Rig()
        rig.submit("a", PROMPT, 20)
        for _ in range(turns):
            rig.step()
        said = rig.answer("a")
        abort(rig, "a")
        self.over(rig)
        assert said == answer(PROMPT, len(said), VOCAB)
        rig.ask("next", join(PROMPT, np.array(said, np.int32), numbers(9, 3)))
        rig.drained()

    def test_between_its_admission_and_its_first_token(self) -> None:
        """The budget goes to an older prompt: the image it is to start from is held, and let go."""
        rig = Rig(budget=16, grid=8)
        rig.ask("first", PROMPT, 1)
        rig.submit("old", numbers(100, 1), 2)
        rig.submit("a", PROMPT)
        rig.step()
        running = rig.loop.queues.find_running("a")
        assert running is not None and running.image is not None
        abort(rig, "a")
        self.over(rig)
        rig.cold("old")

    def test_after_preemption(self) -> None:
        rig = Rig()
        rig.submit("other", numbers(20, 1), 20)
        rig.submit("a", PROMPT, 20)
        for _ in range(4):
            rig.step()
        preempt(rig.loop.queues, rig.directory, rig.loop.queues.find_running("a"))  # type: ignore[arg-type]
        abort(rig, "a")
        self.over(rig)
        rig.cold("other")

    def test_of_what_nobody_knows(self) -> None:
        rig = Rig()
        abort(rig, "nobody")
        rig.ask("a", PROMPT)
        abort(rig, "a")
        assert not rig.loop.busy
        rig.drained()

    @pytest.mark.parametrize("order", ["report-abort", "abort-report"])
    def test_reports_that_come_late_or_twice_find_nobody(self, order: str) -> None:
        rig = example()
        rig.submit("a", PROMPT)
        rig.step()
        tickets = [m.ticket for m in rig.mover.pending.values() if LOADS(m)]
        if order == "report-abort":
            rig.land(LOADS)
            abort(rig, "a")
        else:
            abort(rig, "a")
            rig.land(LOADS)
        rig.step()
        for ticket in tickets * 2:
            rig.report(Report(ticket, True), Report(ticket, False))
        self.over(rig)


def interrupted(turn: int, budget: int = 64, length: int = 40, **sizes: int) -> Rig:
    """An answer of 24 tokens, preempted by hand after `turn` turns."""
    rig = Rig(budget=budget, **sizes)  # type: ignore[arg-type]
    rig.submit("a", numbers(length), 24)
    for _ in range(turn):
        rig.step()
    running = rig.loop.queues.find_running("a")
    if running is not None:
        preempt(rig.loop.queues, rig.directory, running)
        rig.check()
    return rig


class TestPreemption:
    @pytest.mark.parametrize("turn", range(1, 25))
    def test_at_every_token_of_an_answer_the_answer_stays_the_same(self, turn: int) -> None:
        rig = interrupted(turn)
        computed = 40 + turn - 1
        rig.step()
        if rig.steps[-1].works and turn < 24:
            resumed = rig.steps[-1].works[0].start
            assert 36 <= resumed <= computed
            assert computed - resumed < 8 + 4, "from the rolling rung, no more than a rung back"
        rig.run()
        rig.cold("a")
        assert len(rig.answer("a")) == 24
        rig.drained()

    @pytest.mark.parametrize("turn", range(1, 7))
    def test_in_the_middle_of_a_prompt_it_goes_on_from_what_was_published(self, turn: int) -> None:
        rig = interrupted(turn, budget=32, length=200, grid=8)
        rig.step()
        assert rig.steps[-1].works[0].start == 32 * turn
        rig.run()
        rig.cold("a")
        rig.drained()

    @pytest.mark.parametrize("turn", range(1, 12))
    def test_with_its_content_evicted_meanwhile_it_starts_again(self, turn: int) -> None:
        rig = interrupted(turn, host=0)
        while (item := rig.directory.candidates.drops[Tier.DEVICE].pop()) is not None:
            rig.directory.drop(item, Tier.DEVICE)
        rig.check()
        rig.step()
        assert rig.steps[-1].works[0].start == 0
        rig.run()
        rig.cold("a")
        rig.drained()

    def test_twice_in_a_row_and_more(self) -> None:
        rig = Rig()
        rig.submit("a", PROMPT, 24)
        while not rig.ended("a"):
            rig.step()
            running = rig.loop.queues.find_running("a")
            if running is not None:
                preempt(rig.loop.queues, rig.directory, running)
        rig.run()
        rig.cold("a")
        assert len(rig.answer("a")) == 24
        rig.drained()

    def test_growing_answers_preempt_the_youngest_and_all_end_as_if_alone(self) -> None:
        rig = Rig(pages=40, seqs=4, rolling=8)
        for number in range(4):
            rig.submit(f"{number}", numbers(24, number), 60)
        oldest_left = False
        while rig.loop.busy:
            rig.land()
            rig.step()
            running = [r.job.request.id for r in rig.loop.queues.running]
            oldest_left |= bool(running) and not rig.ended("0") and "0" not in running
        assert rig.loop.stats().preemptions > 0 and not oldest_left, "the oldest is never a victim"
        rig.cold("0", "1", "2", "3")
        rig.drained()

    def test_a_readmission_is_not_counted_as_a_hit(self) -> None:
        rig = interrupted(6)
        rig.run()
        tally = rig.loop.queues.tally
        assert (tally.admissions, tally.readmissions, tally.prompt, tally.device) == (1, 1, 40, 0)
        assert rig.outcome("a").cached == 0

    def test_a_preempted_request_comes_back_before_those_who_came_after_it(self) -> None:
        rig = Rig(seqs=2)
        for number in range(4):
            rig.submit(f"{number}", numbers(24, number), 30)
        rig.step()
        preempt(rig.loop.queues, rig.directory, rig.loop.queues.running[1])
        assert [w.job.request.id for w in rig.loop.queues.waiting] == ["1", "2", "3"]
        rig.run()
        rig.cold("0", "1", "2", "3")

    def test_one_that_does_not_read_the_cache_starts_over_without_it(self) -> None:
        rig = Rig()
        rig.ask("first", PROMPT)
        rig.submit("a", PROMPT, 24, read=False)
        for _ in range(7):
            rig.step()
        preempt(rig.loop.queues, rig.directory, rig.loop.queues.running[0])
        rig.step()
        assert rig.steps[-1].works[0].start == 0
        rig.run()
        rig.cold("a")
        rig.drained()


class TestRefusals:
    def test_a_prompt_that_can_never_fit_is_refused_with_both_numbers(self) -> None:
        rig = Rig(pages=10)
        assert rig.loop.longest == 40
        with pytest.raises(CapacityError, match=r"40 tokens.*at most 40") as error:
            rig.submit("a", PROMPT)
        assert (error.value.needed, error.value.available) == (41, 40)
        rig.ask("fits", PROMPT[:39], 5)
        assert len(rig.answer("fits")) == 1, "the answer is cut where the pool ends"
        rig.drained()

    def test_the_length_of_prompt_and_answer_is_the_models_or_the_pools(self) -> None:
        rig = Rig(longest=44)
        rig.ask("a", PROMPT, 100)
        assert len(rig.answer("a")) == 4 and rig.end("a").reason == "length"
        rig.submit("b", PROMPT, params=SamplingParams(max_tokens=None))
        rig.run()
        assert len(rig.answer("b")) == 4

    @pytest.mark.parametrize(
        ("prompt", "max_tokens", "param"),
        [
            ([], 4, "prompt"),
            ([1000], 4, "prompt"),
            ([-1], 4, "prompt"),
            ([1], 0, "max_tokens"),
            ([1], -3, "max_tokens"),
        ],
    )
    def test_what_makes_no_sense_names_its_field(self, prompt: list[int], max_tokens: int, param: str) -> None:
        rig = Rig()
        with pytest.raises(RequestError) as error:
            rig.submit("a", np.array(prompt, np.int32), max_tokens)
        assert error.value.param == param
        assert not rig.loop.busy

    @pytest.mark.parametrize("state", ["waiting", "running", "parked"])
    def test_an_id_can_be_in_use_once(self, state: str) -> None:
        rig = example()
        rig.submit("a", PROMPT if state == "parked" else numbers(30, 5), 9)
        if state != "waiting":
            rig.step()
        with pytest.raises(RequestError, match="being served already"):
            rig.loop.submit(rig.requests["a"])
        rig.run()
        rig.cold("a")

    def test_a_request_whose_numbers_go_wrong_ends_alone(self) -> None:
        rig = Rig(budget=128)
        rig.runner.fail.add("b")
        for name, seed in (("a", 1), ("b", 2), ("c", 3)):
            rig.submit(name, numbers(30, seed))
        rig.run()
        rig.cold("a", "c")
        assert rig.end("b").reason == "error" and "not a number" in rig.end("b").message
        assert rig.directory.survey("", numbers(30, 2)).matched == 0, "nothing of it is kept"
        rig.drained()


class TestProgress:
    def test_a_wait_that_nothing_will_end_is_refused_with_its_reason(self) -> None:
        """Pages that never come back: the request is told what it needs and what there is, and the engine goes on."""
        rig = Rig(pages=12, host=0)
        rig.ask("first", numbers(24, 1), 1)
        path = rig.directory.survey("", numbers(24, 1)).path
        lease = rig.directory.lease(path[-1].kv, Tier.DEVICE)
        rig.submit("a", PROMPT)
        rig.run()
        assert rig.end("a").reason == "error"
        assert rig.end("a").message.startswith("40 tokens need 10 pages, an idle engine offers 6: shorten the prompt")
        rig.directory.release(lease)
        rig.ask("b", PROMPT)

    def test_a_large_request_at_the_head_does_not_stop_the_engine(self) -> None:
        """Others hold what it needs; they finish, it starts, everything ends in a bounded number of turns."""
        rig = Rig(pages=68, host=400, seqs=8, budget=64, rolling=8)
        stem, long = numbers(100, 1), numbers(204, 2)
        rig.ask("seen", long[:201], 1)
        rig.drop(long, 0, (200,))
        rig.submit("s", stem, 30)
        rig.step()
        rig.submit("l", long, 4)
        rig.submit("h", join(stem, numbers(100, 3)), 4)
        rig.submit("w", numbers(40, 4), 4)
        assert rig.run(limit=300) < 300
        rig.cold("s", "l", "h", "w")
        rig.drained()

    def test_something_is_computed_or_moving_while_anything_waits(self) -> None:
        rig = Rig(pages=24, host=40, seqs=3)
        for number in range(6):
            rig.submit(f"{number}", numbers(30 + number, number % 4), 20)
        while rig.loop.busy:
            steps = len(rig.steps)
            rig.step()
            if rig.loop.queues.waiting or rig.loop.queues.parked:
                assert len(rig.steps) > steps or rig.mover.pending
            rig.land()
        rig.cold(*(str(number) for number in range(6)))
        rig.drained()

    @pytest.mark.parametrize("pages", range(10, 20))
    @pytest.mark.parametrize("host", [0, 12, 60])
    def test_the_smallest_pools_serve_everything(self, pages: int, host: int) -> None:
        rig = Rig(pages=pages, host=host, seqs=3, budget=32)
        for number in range(6):
            rig.submit(f"{number}", join(numbers(8), numbers(20 + number, number)), 6)
        rig.run()
        rig.cold(*(str(number) for number in range(6)))
        rig.submit("again", join(numbers(8), numbers(20, 0)), 6)
        rig.run()
        rig.cold("again")
        rig.drained()

    def test_an_idle_engine_comes_to_rest(self) -> None:
        """Copies ahead of need end: nothing goes down and up, or down and down again, when nobody asks for anything."""
        for host in (8, 20, 60, 200):
            for clean in (0.05, 0.5, 1.0):
                rig = Rig(pages=60, host=host, clean=clean)
                for number in range(6):
                    rig.ask(f"{number}", numbers(40, number), 4)
                moved = len(rig.directory.in_flight)
                for _ in range(50):
                    rig.land()
                    rig.step()
                before, tickets = content(rig.directory), rig.directory.tickets
                for _ in range(20):
                    rig.land()
                    rig.step()
                assert moved == 0 and rig.directory.tickets == tickets and content(rig.directory) == before
                assert not rig.loop.busy
                rig.drained()

    def test_a_stream_of_newcomers_does_not_starve_the_oldest(self) -> None:
        rig = Rig(pages=60, seqs=3, budget=32)
        rig.submit("old", numbers(150, 1), 10)
        for number in range(60):
            if not rig.ended("old"):
                rig.submit(f"{number}", numbers(20, 50 + number), 3)
            rig.land()
            rig.step()
        assert rig.ended("old")
        rig.run()
        rig.cold("old", *(n for n in rig.requests if n != "old"))
        rig.drained()


class TestRecords:
    def test_one_record_a_request_however_it_started(self) -> None:
        rig = example()
        rig.submit("a", PROMPT)
        rig.step()
        rig.land(LOADS, ok=False)
        rig.run()
        tally = rig.loop.queues.tally
        assert tally.admissions == 3 and tally.boundaries == 0 and tally.reasons[Reason.LOAD_FAILED_KV] == 1
        assert tally.device + tally.host + tally.disk + tally.recomputed == tally.prompt

    def test_a_state_leg_that_fails_is_called_that(self) -> None:
        rig = example()
        rig.submit("a", PROMPT)
        rig.step()
        rig.land(STATE, ok=False)
        rig.land(KV)
        rig.run()
        tally = rig.loop.queues.tally
        assert tally.reasons[Reason.LOAD_FAILED_STATE] == 1 and tally.reasons[Reason.LOAD_FAILED_KV] == 0

    def test_many_requests_pin_nothing_for_good(self) -> None:
        rig = Rig(pages=64, host=64)
        for number in range(60):
            rig.ask(f"{number}", join(numbers(24), numbers(8, number)), 2)
        rig.drained()
        assert rig.directory.use(Tier.HOST).leased == 0


def test_paths_that_were_used_last_are_shown_with_how_their_last_request_resumed() -> None:
    rig = Rig(pages=64)
    prompt = numbers(40)
    rig.submit("a", prompt, max_tokens=4)
    rig.run()
    rig.submit("b", join(prompt, numbers(20, 1)), max_tokens=4)
    rig.run()
    rig.submit("cold", numbers(24, 2), max_tokens=4, write=False)
    rig.run()
    (told,) = rig.loop.ladders(9)
    assert told.outcome.request_id == "b" and told.outcome.boundary == 40 and told.known >= 60
    assert 40 in {rung.position for rung in told.rungs if rung.tier == "device"}
    assert told.kv[0] == ("device", 0, told.known)
