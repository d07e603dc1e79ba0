"""Conversations as agents and people hold them, and how much of each prompt is computed again."""

from __future__ import annotations

import random

import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Tier
from stepwell.testing.harness import Harness
from tests.cache.builders import join, numbers
from tests.cases.serving import Bare, ask, engine, history, outcome, rules, submit

GRID = 8
INTERVAL = 64


def talker(pages: int = 600, budget: int = 256, clean: float = 0.1) -> Harness:
    return engine(rules(pages, 2000, grid=GRID, image=2, interval=INTERVAL, clean=clean), budget=budget)


class TestTwelveTurns:
    """A chat with tools: what is computed again is what changed, and at most a stretch between rungs before it."""

    def turn(self, number: int) -> Ints:
        """What a user or a tool adds: from a few tokens to many."""
        return numbers((9, 31, 4, 70)[number % 4], 100 + number)

    def test_where_history_is_only_ever_appended_to(self) -> None:
        harness, prompt = talker(), numbers(75, 1)
        for number in range(12):
            how = ask(harness, f"{number}", prompt, 11)
            if number:
                new = len(prompt) - len(history(harness, f"{number - 1}"))
                assert how.recomputed <= new + 1 + GRID + GRID, "the answer is reused too, to its last rung"
            prompt = join(history(harness, f"{number}"), self.turn(number))

    @pytest.mark.sampled(1)
    @pytest.mark.parametrize("kept", [0, 7])
    def test_where_the_last_answers_reasoning_is_left_out(self, kept: int) -> None:
        """Of an answer of 16 tokens the client sends back the last few."""
        harness, prompt = talker(), numbers(75, 1)
        for number in range(12):
            how = ask(harness, f"{number}", prompt, 16)
            if number:
                assert how.recomputed <= kept + len(self.turn(number - 1)) + GRID
                assert how.diverged_at is not None or not kept
            answer = history(harness, f"{number}")[len(prompt) :]
            prompt = join(prompt, answer[len(answer) - kept :], self.turn(number))

    @pytest.mark.parametrize("trimmed", [1, 9])
    def test_where_an_old_tool_output_is_cut_short(self, trimmed: int) -> None:
        harness = talker()
        parts: list[Ints] = [numbers(75, 1)]
        for number in range(12):
            prompt = join(*parts)
            ask(harness, f"{number}", prompt, 5)
            parts += [history(harness, f"{number}")[len(prompt) :], self.turn(number)]
        at = 2 * trimmed
        before = len(join(*parts[:at]))
        parts[at] = parts[at][: len(parts[at]) // 2]
        edited = join(*parts)
        how = ask(harness, "edited", edited, 5)
        assert how.diverged_at is not None and how.diverged_at >= before
        assert how.recomputed <= len(edited) - how.diverged_at + INTERVAL
        again = ask(harness, "next turn", join(history(harness, "edited"), self.turn(0)), 5)
        assert again.recomputed <= len(self.turn(0)) + 1 + 2 * GRID, "once, and not every turn from then on"

    @pytest.mark.parametrize("lead", range(72, 81, 2))
    def test_where_the_end_of_each_prompt_is_rendered_anew(self, lead: int) -> None:
        """The last three tokens ask for an answer, and are not there once it has been given: wherever they fall on the grid, the
        next turn goes back no further than to the end of the prompt before."""
        harness, stem, marker = talker(), numbers(lead, 1), numbers(3, 2)
        starts = [0]
        for number in range(8):
            how = ask(harness, f"{number}", join(stem, marker), 6)
            if number:
                assert how.boundary >= min(starts[-1] // GRID * GRID, INTERVAL * (starts[-1] // INTERVAL))
                assert how.recomputed <= len(stem) + 3 - starts[-1] + INTERVAL
                assert number == 1 or how.diverged_at in (starts[-1], starts[-1] + 1, starts[-1] + 2, None)
            starts.append(len(stem))
            answer = history(harness, f"{number}")[len(stem) + 3 :]
            stem = join(stem, answer, self.turn(number))


ACROSS = pytest.mark.xfail(
    strict=True,
    reason="no rung is left before the tokens that ask for an answer where the grid's last boundary lies among them",
)


@pytest.mark.parametrize("lead", [69, pytest.param(78, marks=ACROSS), 80])
def test_a_first_prompt_whose_end_is_rendered_anew_is_not_all_computed_again(lead: int) -> None:
    """Its last three tokens ask for an answer; the second prompt goes on otherwise. There is no earlier turn to fall back on."""
    harness = engine(rules(600, 2000, grid=GRID, image=2), budget=256)
    ask(harness, "first", join(numbers(lead, 1), numbers(3, 2)), 6)
    how = ask(harness, "second", join(numbers(lead, 1), numbers(20, 3)), 6)
    assert how.diverged_at == lead
    assert how.boundary >= lead - 2 * GRID


@pytest.mark.parametrize("budget", [24, 400])
@pytest.mark.parametrize("company", [0, 3])
def test_how_prompts_are_cut_and_who_else_runs_makes_no_difference_to_the_next_turn(budget: int, company: int) -> None:
    """Two turns and their repetition, at every budget, alone and among others."""
    harness = engine(rules(600, 2000, grid=GRID, image=2), budget=budget)
    for number in range(company):
        submit(harness, f"{number}", numbers(90, 5 + number), 30)
    prompt = numbers(141, 1)
    submit(harness, "a", prompt, 1)
    harness.drain()
    assert ask(harness, "again", prompt, 20).boundary == 136
    assert ask(harness, "next", join(history(harness, "again"), numbers(30, 2)), 1).boundary == 160
    assert outcome(harness, "a").boundary == 0


@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize("answer", [1, 3, 7, 8, 20])
@pytest.mark.parametrize("prompt", [GRID, 64, 72])
def test_a_prompt_that_ends_on_the_grid_is_whole_at_the_next_turn(prompt: int, answer: int, flushed: bool) -> None:
    """Also where it was only warmed by a request for one token. The same prompt sent again computes its last stretch once more."""
    harness = engine(rules(600, 2000, grid=GRID, image=2), rolling=GRID)
    ask(harness, "first", numbers(prompt, 1), answer)
    if flushed:
        harness.flush(Tier.DEVICE, demote_first=True)
    how = ask(harness, "next", join(history(harness, "first"), numbers(30, 2)), 2)
    assert how.boundary == (prompt + answer - 1) // GRID * GRID
    assert ask(harness, "again", numbers(prompt, 1), 2).boundary == prompt - GRID


def test_an_edit_near_the_start_costs_one_prefill_and_no_second() -> None:
    harness, long = talker(), numbers(400, 1)
    ask(harness, "before", long, 10)
    edited = long.copy()
    edited[150] += 1
    submit(harness, "edited", edited, 10)
    harness.drain()
    how = outcome(harness, "edited")
    assert (how.boundary, how.diverged_at) == (128, 150)
    assert harness.stats().computed_tokens == 400 + 9 + 400 - 128 + 9, "each token was computed once"
    third = join(long[:150], numbers(60, 4))
    assert ask(harness, "edited once more", third, 2).boundary == 144, "from where the two had parted"
    assert ask(harness, "old again", join(long, numbers(4)), 2).boundary == 400, "the original is still there"
    assert ask(harness, "new again", join(edited, numbers(4)), 2).boundary == 400


@pytest.mark.parametrize("answer", [16, 50])
def test_an_answer_of_many_tokens_is_not_computed_again_with_the_next_turn(answer: int) -> None:
    harness, prompt = talker(), numbers(37, 1)
    ask(harness, "a", prompt, answer)
    for tier in (Tier.DEVICE, Tier.HOST):
        if tier is Tier.HOST:
            harness.flush(Tier.DEVICE, demote_first=True)
        how = ask(harness, f"next from {tier.name}", join(history(harness, "a"), numbers(9, 2)), 1)
        assert how.boundary >= (37 + answer - 1) // GRID * GRID > 37


def test_a_hit_refreshes_the_rung_it_used_and_so_many_chats_live_on_few_images() -> None:
    """Two dozen chats in random order, eight rounds each, on a device with room for their KV and about two images for each: were
    every rung on the way as good as new after a hit, old ones that nobody needs would push out the newest of others (.75, not .83)."""
    bare = Bare(rules(1000, 0, grid=GRID, image=4), budget=256)
    chats = [numbers(40 + seed, seed) for seed in range(24)]
    rng = random.Random(2)
    prompts = cached = 0
    for turn in range(8):
        order = list(range(24))
        rng.shuffle(order)
        for index in order:
            how, told = bare.ask(chats[index], 3)
            chats[index] = join(told, numbers(rng.randrange(6, 14), 1000 * turn + index))
            if turn:
                prompts += how.prompt
                cached += how.cached
    assert cached / prompts > 0.8


def test_a_first_line_that_changes_with_every_request_is_told_from_the_divergence() -> None:
    """Nothing can be reused, and the record says from where on."""
    harness = talker()
    body = numbers(100, 1)
    for number in range(3):
        how = ask(harness, f"{number}", join([number, 500 + number], body), 2)
        assert how.cached == 0
        assert number == 0 or (how.diverged_at is not None and how.diverged_at < 4)
    assert ask(harness, "stripped", body, 2).cached == 0
    assert ask(harness, "stripped again", body, 2).boundary == 96
