"""What a runner says of tokens reaches the caller beside them, and what it needs to look back reaches the runner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepwell.sched.request import SamplingParams, Scored, Tokens
from stepwell.sched.step import Done, Step, StepResult
from tests.cache.builders import numbers
from tests.sched.rig import Rig


class Scoring:
    """A runner whose scores name the tokens that they are for."""

    def __init__(self, inner: object) -> None:
        self.inner = inner

    def launch(self, step: Step) -> Done:
        result: StepResult = self.inner.launch(step).result()  # type: ignore[attr-defined]
        sampled = tuple(
            (i, tuple(Scored(float(t)) for t in result.sampled[i]))
            for i, work in enumerate(step.works)
            if work.sample is not None and work.sample.params.logprobs is not None
        )
        targets = tuple(
            (i, tuple(Scored(float(t)) for t in work.score.targets))
            for i, work in enumerate(step.works)
            if work.score is not None
        )
        return Done(replace(result, scores=sampled, target_scores=targets))


def scoring(**options: int) -> Rig:
    rig = Rig(**options)  # type: ignore[arg-type]
    rig.runner.inner = Scoring(rig.runner.inner)  # type: ignore[assignment]
    return rig


def said(rig: Rig, name: str) -> list[Tokens]:
    return [event for event in rig.events if isinstance(event, Tokens) and event.request_id == name]


def test_each_token_comes_with_its_score_where_scores_are_asked_for() -> None:
    rig = scoring()
    rig.submit("with", numbers(20, 1), params=SamplingParams(5, logprobs=0))
    rig.submit("without", numbers(20, 2), params=SamplingParams(5))
    rig.run()
    assert sum(len(event.tokens) for event in said(rig, "with")) == 5
    for event in said(rig, "with"):
        assert [s.logprob for s in event.scores] == list(event.tokens)
    assert all(event.scores == () for event in said(rig, "without"))


@pytest.mark.parametrize("budget", [9, 24, 500])
def test_every_prompt_token_but_the_first_is_scored_once(budget: int) -> None:
    rig = scoring(budget=budget, grid=8, seqs=2)
    prompt = numbers(53, 3)
    rig.submit("r", prompt, read=False, params=SamplingParams(3, prompt_logprobs=2))
    rig.run()
    scored: list[float] = []
    for event in said(rig, "r"):
        if event.prompt_scores:
            assert event.prompt_from == 1 + len(scored)
            scored += [s.logprob for s in event.prompt_scores]
    assert scored == prompt[1:].tolist()
    rig.cold("r")


def test_prompt_of_one_token_has_nothing_to_score() -> None:
    rig = scoring()
    rig.submit("r", numbers(1, 3), read=False, params=SamplingParams(2, prompt_logprobs=0))
    rig.run()
    assert all(event.prompt_scores == () for event in said(rig, "r"))


def test_scores_of_a_prompt_that_starts_again_name_their_places() -> None:
    """After a preemption a request that reads no cache computes its prompt once more."""
    rig = scoring(pages=34, host=0, seqs=2, budget=64)
    prompt = numbers(40, 4)
    rig.submit("old", numbers(60, 5), 40)
    rig.submit("young", prompt, read=False, params=SamplingParams(40, prompt_logprobs=0))
    rig.run()
    assert rig.loop.queues.preemptions > 0
    scored = {}
    for event in said(rig, "young"):
        for i, s in enumerate(event.prompt_scores):
            assert scored.setdefault(event.prompt_from + i, s.logprob) == s.logprob
    assert [scored[i] for i in range(1, 40)] == prompt[1:].tolist()


def test_history_is_handed_out_only_to_whom_it_matters() -> None:
    rig = Rig()
    prompt = numbers(20, 6)
    rig.submit("plain", numbers(20, 7), params=SamplingParams(4))
    rig.submit("looks", prompt, params=SamplingParams(4, frequency_penalty=0.5))
    rig.run()
    for step in rig.steps:
        for work in step.works:
            if work.sample is None:
                continue
            if work.request_id == "plain":
                assert work.sample.history is None
            else:
                history = work.sample.history
                assert history is not None and len(history) == len(prompt) + work.sample.index
                assert np.array_equal(history[: len(prompt)], prompt)
    assert SamplingParams(grammar="x").looks_back and SamplingParams(repetition_penalty=1.1).looks_back
