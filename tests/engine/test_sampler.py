"""One step's logits become tokens, scores and errors, each row by itself."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.engine.sampler import Sampler, score_targets, scored  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.sched.step import Fresh, Sample, Score, Step, StepResult, Work  # noqa: E402


def choose(step: Step, sampling: tuple[int, ...], rows: torch.Tensor) -> StepResult:
    chosen = Sampler().choose(step.works, sampling, rows)
    return chosen.result(chosen.tokens.tolist())


NONE = np.empty(0, np.int32)


def work(name: str, params: SamplingParams, answer: list[int], score: Score | None = None) -> Work:
    history = np.array([7, *answer], np.int32) if params.looks_back else None
    sample = Sample(params, len(answer), history)
    return Work(name, 0, 0, 0, NONE, NONE, 0, Fresh(), (), sample, score)


def logits(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


def test_penalties_count_the_answer_and_repetition_the_prompt_too() -> None:
    works = (
        work("a", SamplingParams(presence_penalty=2), [1]),
        work("b", SamplingParams(frequency_penalty=0.6), [1, 1]),
        work("c", SamplingParams(presence_penalty=2), []),
    )
    row = [0.0, 2.0, 1.0]
    assert choose(Step(works), (0, 1, 2), logits(row, row, row)).sampled == ((2,), (2,), (1,))
    seen = work("d", SamplingParams(repetition_penalty=3), [])
    tall = [0.0] * 7 + [3.0, 2.0]
    assert choose(Step((seen,)), (0,), logits(tall)).sampled == ((8,),)


def test_one_rows_trouble_is_not_the_others() -> None:
    works = (
        work("nan", SamplingParams(logprobs=1), []),
        work("good", SamplingParams(logprobs=1), []),
        work("no grammar here", SamplingParams(grammar="start: /a/"), []),
        work("silent", SamplingParams(), []),
    )
    row = [0.0, 1.0]
    result = choose(Step(works), (0, 1, 2, 3), logits([float("nan"), 1.0], row, row, row))
    assert result.sampled == ((), (1,), (), (1,))
    assert [index for index, _ in result.errors] == [0, 2]
    assert [index for index, _ in result.scores] == [1]


def test_scores_are_of_the_logits_as_they_came() -> None:
    forced = work("a", SamplingParams(logprobs=1, logit_bias=((0, 100.0),)), [])
    result = choose(Step((forced,)), (0,), logits([0.0, 0.0]))
    assert result.sampled == ((0,),)
    ((_, (scored,)),) = result.scores
    assert scored.logprob == pytest.approx(np.log(0.5))


def test_targets_are_scored_in_slices_as_in_one_piece() -> None:
    counts = (300, 5)
    hidden = torch.randn(sum(counts), 4, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(9, 4, generator=torch.Generator().manual_seed(2))
    targets = [np.arange(count, dtype=np.int32) % 9 for count in counts]
    works = [work("w", SamplingParams(), [], Score(target, 2)) for target in targets]
    scores = [scored(parts) for parts in score_targets(works, hidden, lambda rows: rows @ weight.T)]
    expected = (hidden @ weight.T).log_softmax(-1)
    flat = [one for per_work in scores for one in per_work]
    assert [len(s) for s in scores] == list(counts)
    for row, target, one in zip(expected, np.concatenate(targets), flat, strict=True):
        assert one.logprob == pytest.approx(float(row[target]), abs=1e-5)
        assert one.top[0][1] == pytest.approx(float(row.max()), abs=1e-5)
