"""What one step takes: decodes first, prompts on the grid up to the budget, rungs where there is room."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.cache.tree import RungKind
from stepwell.sched.request import SamplingParams
from tests.cache.builders import join, numbers
from tests.sched.rig import Rig


def rungs(rig: Rig, tokens: np.ndarray) -> dict[int, RungKind]:
    return {n.end: n.rung.kind for n in rig.directory.survey("", tokens).path if n.rung is not None}


class TestBudget:
    def test_every_decode_is_in_every_step_and_prompts_fill_the_rest(self) -> None:
        rig = Rig(seqs=4, budget=32, grid=8)
        for number in range(3):
            rig.submit(f"{number}", numbers(24, number), 40)
        for _ in range(4):
            rig.step()
        rig.submit("long", numbers(300, 9), 4)
        while not rig.ended("long"):
            rig.land()
            decoding = [r.job.request.id for r in rig.loop.queues.running if r.remaining == 1]
            rig.step()
            step = rig.steps[-1]
            assert step.tokens <= 32
            assert [w.request_id for w in step.works][: len(decoding)] == decoding
        rig.run()
        rig.cold("0", "1", "2", "long")

    @pytest.mark.parametrize("budget", [11, 16, 17, 33, 64, 500])
    def test_prefill_is_cut_on_the_grid_and_nowhere_else(self, budget: int) -> None:
        rig = Rig(seqs=4, budget=budget, grid=8)
        for number, count in enumerate((100, 37, 64, 9)):
            rig.submit(f"{number}", numbers(count, number), 3)
        rig.run()
        for step in rig.steps:
            assert step.tokens <= budget
            for work in step.works:
                end = work.start + len(work.tokens)
                prompt = len(rig.requests[work.request_id].prompt)
                assert end % 8 == 0 or end >= prompt
        rig.cold("0", "1", "2", "3")

    def test_the_oldest_prompt_is_served_first(self) -> None:
        rig = Rig(seqs=4, budget=16, grid=8)
        for number in range(3):
            rig.submit(f"{number}", numbers(60, number), 2)
        firsts = []
        while not rig.ended("2"):
            rig.step()
            firsts += [w.request_id for w in rig.steps[-1].works if len(w.tokens) > 1][:1]
        assert firsts == sorted(firsts)

    def test_the_hit_does_not_depend_on_budget_or_company(self) -> None:
        prompt, suffix = numbers(561 // 4, 1), numbers(30, 2)
        for budget in (16, 24, 64, 400):
            for company in (0, 3):
                rig = Rig(256, seqs=4, budget=budget, grid=8)
                for number in range(company):
                    rig.submit(f"{number}", numbers(90, 5 + number), 30)
                rig.submit("a", prompt, 1)
                rig.run()
                assert rig.ask("b", join(prompt, suffix)).boundary == 136

    def test_a_repeated_prompt_hits_the_last_grid_boundary_below_its_end_every_time(self) -> None:
        for length in range(1, 90):
            rig = Rig(grid=8)
            prompt = numbers(length)
            rig.ask("first", prompt, 2)
            for number in range(3):
                assert rig.ask(f"{number}", prompt, 2).boundary == (length - 1) // 8 * 8
            shorter = rig.ask("shorter", prompt[: max(1, length - 3)], 2)
            assert shorter.cached <= shorter.prompt - 1
            rig.drained()

    def test_too_short_for_a_rung_is_said(self) -> None:
        rig = Rig(grid=8)
        rig.ask("a", numbers(8))
        assert rig.ask("b", numbers(8)).reason is Reason.TOO_SHORT


class TestPromptRungs:
    def test_prompt_end_and_intervals_at_no_extra_pass(self) -> None:
        rig = Rig(grid=8, interval=32, budget=500)
        rig.submit("a", numbers(101), 1)
        rig.run()
        assert len(rig.steps) == 1
        assert [c.position for c in rig.steps[0].works[0].cuts] == [32, 64, 96]
        assert rungs(rig, numbers(101)) == {
            32: RungKind.INTERVAL,
            64: RungKind.INTERVAL,
            96: RungKind.PROMPT_END,
        }

    def test_a_divergence_leaves_one_besides_the_prompt_end(self) -> None:
        rig = Rig(grid=8, budget=500)
        stem = numbers(77)
        rig.ask("a", join(stem, numbers(40, 1)), 1)
        other = join(stem, numbers(40, 2))
        assert rig.ask("b", other, 1).boundary == 0, "nothing to resume from before the divergence yet"
        assert rungs(rig, other) == {72: RungKind.BRANCH, 112: RungKind.PROMPT_END}
        third = rig.ask("c", join(stem, numbers(40, 3)), 1)
        assert (third.boundary, third.diverged_at) == (72, 77)

    def test_prompts_that_part_near_a_point_soon_resume_close_to_it(self) -> None:
        rig = Rig(512, 512, grid=8, budget=500)
        text = numbers(400)
        before: list[int] = []
        for number, common in enumerate((310, 298, 325, 301, 290, 318, 305, 299, 322, 311)):
            boundary = rig.ask(f"{number}", join(text[:common], numbers(60, 10 + number)), 1).boundary
            if len(before) > 1 and common >= min(before):
                assert boundary >= min(before) - 8, "someone parted earlier, and left a rung where"
            before.append(common)

    def test_a_rewritten_last_message_costs_no_more_than_what_follows_it(self) -> None:
        """The client renders the history again and changes the few tokens before the end of the prompt."""
        rig = Rig(grid=8, budget=500)
        history = numbers(203)
        rig.ask("a", join(history, [1, 2, 3]), 6)
        changed = rig.ask("b", join(history, [7, 8, 9, 10]), 6)
        again = rig.ask("c", join(history, [11, 12]), 6)
        assert changed.diverged_at == 203 and again.boundary == 200
        assert changed.boundary == 200

    def test_a_chunk_that_ends_inside_a_prompt_leaves_a_rung_until_the_next_one(self) -> None:
        rig = Rig(grid=8, budget=32)
        prompt = numbers(150)
        rig.submit("a", prompt, 1)
        seen = []
        while rig.loop.busy:
            rig.step()
            seen.append(sorted(rungs(rig, prompt)))
            rig.land()
        assert seen[:5] == [[32], [64], [96], [128], [144]]


class TestRollingRungs:
    @pytest.mark.parametrize("answer", [1, 7, 8, 9, 20, 30])
    def test_the_next_turn_resumes_past_the_end_of_the_last_prompt(self, answer: int) -> None:
        rig = Rig(grid=8, rolling=8)
        rig.ask("a", numbers(40), answer)
        turn = rig.ask("b", join(rig.history("a"), numbers(15, 1)))
        assert turn.boundary == (40 + answer - 1) // 8 * 8
        rig.drained()

    def test_there_is_one_at_a_time(self) -> None:
        rig = Rig(grid=8, rolling=8, host=0)
        rig.submit("a", numbers(40), 64)
        while rig.loop.busy:
            rig.step()
            rolling = [p for p, kind in rungs(rig, rig.history("a")).items() if kind is RungKind.ROLLING]
            assert len(rolling) <= 1
        assert rungs(rig, rig.history("a")) == {
            32: RungKind.INTERVAL,
            40: RungKind.PROMPT_END,
            96: RungKind.ROLLING,
        }

    def test_the_prompt_end_is_not_taken_for_superseded_by_it(self) -> None:
        rig = Rig(grid=8, rolling=8, host=0)
        rig.submit("a", numbers(41), 64)
        rig.run()
        path = rig.directory.survey("", rig.history("a")).path
        assert [n.rung.superseded for n in path if n.rung is not None] == [False, False]

    def test_a_request_that_writes_nothing_leaves_none(self) -> None:
        rig = Rig()
        rig.ask("a", numbers(40), 30, write=False)
        assert rig.loop.stats().rungs_left == 0 and rig.directory.use(Tier.DEVICE).cached == 0


class TestRungsAndRoom:
    @pytest.mark.parametrize("pages", range(10, 22))
    def test_without_room_a_rung_is_skipped_and_nobody_is_preempted_for_it(self, pages: int) -> None:
        rig = Rig(pages=pages, host=0, image=8, seqs=1)
        rig.submit("a", numbers(35), 4)
        rig.run()
        rig.cold("a")
        stats = rig.loop.stats()
        assert stats.preemptions == 0
        assert (stats.rungs_skipped > 0) == (stats.rungs_left == 0)
        if pages < 9 + 8:
            assert stats.rungs_skipped == 1
        rig.drained()

    def test_a_rung_never_takes_a_page_that_was_promised(self) -> None:
        rig = Rig(pages=40, host=0, image=6, seqs=4, budget=16, grid=8, interval=8)
        for number in range(4):
            rig.submit(f"{number}", numbers(30 + number, number), 8)
        rig.run()
        rig.cold("0", "1", "2", "3")
        assert rig.loop.stats().rungs_skipped > 0
        rig.drained()


class TestStops:
    def test_an_end_token_ends_the_answer_and_is_its_last(self) -> None:
        rig = Rig()
        rig.ask("free", numbers(40), 12)
        token = rig.answer("free")[5]
        first = rig.answer("free").index(token)
        rig.submit("a", numbers(40), params=SamplingParams(12, stop_token_ids=(token,)))
        rig.run()
        assert rig.answer("a") == rig.answer("free")[: first + 1] and rig.end("a").reason == "stop"

    def test_ignoring_eos_and_min_tokens(self) -> None:
        rig = Rig()
        rig.ask("free", numbers(40), 12)
        eos = rig.answer("free")[2]
        rig = Rig(eos=(eos,))
        rig.submit("stops", numbers(40), 12)
        rig.submit("ignores", numbers(40), params=SamplingParams(12, ignore_eos=True))
        rig.submit("at least", numbers(40), params=SamplingParams(12, min_tokens=5))
        rig.run()
        assert len(rig.answer("stops")) <= 3 and rig.end("stops").reason == "stop"
        assert len(rig.answer("ignores")) == 12 and rig.end("ignores").reason == "length"
        assert len(rig.answer("at least")) >= 5
        rig.cold("stops", "ignores", "at least")
