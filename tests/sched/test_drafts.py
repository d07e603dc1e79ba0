"""Answers that go on by several tokens a step: the same tokens, in fewer steps, and nothing that was rejected is left anywhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Ints
from stepwell.cache.config import CacheConfig
from stepwell.sched.build import preempt
from stepwell.sched.config import SchedConfig
from stepwell.sched.drafts import DraftCounts, Gain
from stepwell.sched.request import Request, SamplingParams
from stepwell.sched.step import Runner, Step
from stepwell.testing import telltale
from stepwell.testing.harness import Harness

PROMPT = np.arange(7, 40, dtype=np.int32)


def engine(
    drafts: int = 3,
    pages: int = 60,
    ahead: bool = False,
    acceptance: int = 60,
    gain: Gain | None = None,
    budget: int = 64,
    **rules: Any,
) -> Harness:
    sched = SchedConfig(
        max_num_seqs=4,
        max_num_batched_tokens=budget,
        decode_rung_tokens=4,
        drafts=drafts,
        async_scheduling=ahead,
        **rules,
    )
    harness = Harness(CacheConfig(telltale.geometry(), device_pages=pages, host_slots=80), sched, gain=gain)
    harness.runner.acceptance = acceptance
    return harness


def served(harness: Harness, *requests: Request) -> list[list[int]]:
    for request in requests:
        harness.submit(request)
    harness.drain()
    return [harness.told[request.id].tokens for request in requests]


def asking(name: str, prompt: Ints = PROMPT, **params: Any) -> Request:
    return Request(name, prompt, SamplingParams(**{"max_tokens": 20, **params}))


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("acceptance", [0, 60, 100])
def test_answers_are_those_without_drafts(ahead: bool, acceptance: int) -> None:
    prompts = [PROMPT, PROMPT[:9], PROMPT[::-1].copy()]
    harness = engine(ahead=ahead, acceptance=acceptance)
    answers = served(harness, *(asking(f"r{i}", prompt) for i, prompt in enumerate(prompts)))
    assert answers == [telltale.answer(prompt, 20, harness.vocab) for prompt in prompts]


def test_one_that_starts_over_has_no_drafts_before_its_first_draw() -> None:
    """Preempted after 25 tokens, of which a step computes 24: the last one is decoded, and nobody has drafted behind the part before it."""
    harness = engine(acceptance=0, budget=24)
    harness.submit(Request("r", PROMPT[:23], SamplingParams(max_tokens=20), read_cache=False))
    queues = harness.loop.queues
    while not queues.running or queues.running[0].job.tokens.count < 25:
        harness.step()
    preempt(queues, harness.loop.directory, queues.running[0])
    harness.drain()
    assert harness.told["r"].tokens == telltale.answer(PROMPT[:23], 20, harness.vocab)


class Turning:
    """Drafts in turns of three steps."""

    def __init__(self) -> None:
        self.steps = 0

    def wants(self, decodes: int) -> bool:
        return self.steps % 6 < 3

    def saw(self, step: object) -> None:
        self.steps += 1


@pytest.mark.parametrize("ahead", [False, True])
def test_drafts_may_be_turned_on_and_off_at_any_time(ahead: bool) -> None:
    prompts = [PROMPT, PROMPT[:9], PROMPT[::-1].copy()]
    harness = engine(ahead=ahead, gain=Turning())
    answers = served(harness, *(asking(f"r{i}", prompt, max_tokens=50) for i, prompt in enumerate(prompts)))
    assert answers == [telltale.answer(prompt, 50, harness.vocab) for prompt in prompts]
    assert harness.stats().drafts


@pytest.mark.parametrize(("acceptance", "steps"), [(0, 20), (100, 6)])
def test_as_many_steps_as_it_takes(acceptance: int, steps: int) -> None:
    """The first token comes of the prompt; 19 are left, up to four a step."""
    harness = engine(acceptance=acceptance)
    served(harness, asking("r"))
    assert harness.stats().steps == steps


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6])
def test_an_answer_ends_at_its_limit(count: int) -> None:
    harness = engine(acceptance=100)
    assert served(harness, asking("r", max_tokens=count)) == [telltale.answer(PROMPT, count, harness.vocab)]


def test_an_answer_ends_within_what_was_accepted() -> None:
    cold = telltale.answer(PROMPT, 20, 1000)
    harness = engine(acceptance=100)
    assert served(harness, asking("r", stop_token_ids=(cold[6],))) == [cold[:7]]


def test_an_exact_fit_is_served() -> None:
    """33 + 15 tokens fill twelve pages; there is no other page for drafts, and no rung."""
    harness = engine(pages=12, acceptance=100)
    assert served(harness, asking("r", max_tokens=15)) == [telltale.answer(PROMPT, 15, harness.vocab)]


def test_the_next_turn_finds_as_much_as_without_drafts() -> None:
    found = []
    for drafts in (0, 3):
        harness = engine(drafts)
        (answer,) = served(harness, asking("a"))
        whole = np.concatenate((PROMPT, np.array(answer, np.int32)))
        served(harness, asking("b", whole), asking("c", np.concatenate((whole, PROMPT))))
        outcomes = [harness.told[name].outcome for name in "abc"]
        found.append([o and (o.device, o.host, o.recomputed) for o in outcomes])
    assert found[0] == found[1]


def test_who_looks_back_has_no_drafts() -> None:
    seen: list[int] = []

    class Watching:
        def __init__(self, runner: Runner) -> None:
            self.runner = runner

        def launch(self, step: Step) -> Any:
            seen.extend(work.drafts for work in step.works)
            return self.runner.launch(step)

    harness = Harness(
        CacheConfig(telltale.geometry(), device_pages=60, host_slots=0),
        SchedConfig(max_num_seqs=4, max_num_batched_tokens=64, drafts=3),
        through=Watching,
    )
    served(harness, asking("r", presence_penalty=1.0))
    assert seen and not any(seen)
    served(harness, asking("s"))
    assert max(seen) == 3


def test_a_preempted_answer_goes_on_behind_what_was_accepted() -> None:
    harness = engine()
    harness.submit(asking("r"))
    for _ in range(4):
        harness.step()
    harness.preempt("r")
    harness.drain()
    assert harness.told["r"].tokens == telltale.answer(PROMPT, 20, harness.vocab)


@pytest.mark.parametrize(("drafts", "budget"), [(4, 64), (-1, 64), (3, 19)])
def test_what_a_step_cannot_hold_is_refused(drafts: int, budget: int) -> None:
    rules = SchedConfig(max_num_seqs=4, max_num_batched_tokens=budget, drafts=drafts)
    with pytest.raises(ConfigError, match=r"num_speculative_tokens|with 3 drafts"):
        rules.validate(telltale.geometry())


@pytest.mark.parametrize(("share", "told"), [(0.1, True), (0.3, False)])
def test_drafts_that_are_hardly_ever_right_are_told_once(
    share: float, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    counts = DraftCounts()
    for i in range(3000):
        counts.add(2, 2 if i % 100 < 100 * share else 1)
        counts.add(0, 1)
    assert counts.computed == {1: 3000, 2: 3000} and counts.accepted == {1: 3000 * share}
    assert [record.getMessage() for record in caplog.records] == (
        [
            "of the first 1000 drafts 100 were right: they are turned off where they cost more than they save; "
            "is this checkpoint's draft layer (mtp.*) trained?"
        ]
        * told
    )
