"""One step's logits become tokens, scores and errors, each row by itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.engine.compute.batching import Layout, lay_out  # noqa: E402
from stepwell.engine.compute.sampler import Sampler, score_targets, scored  # noqa: E402
from stepwell.engine.compute.wishes import Wishes  # noqa: E402
from stepwell.model.backend import Output  # noqa: E402
from stepwell.ops.sampling import Draw, sample  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.sched.step import Fresh, Sample, Score, Step, StepResult, Work  # noqa: E402


def sent(arrays: Sequence[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def choose(step: Step, rows: torch.Tensor, eos: tuple[int, ...] = ()) -> StepResult:
    laid = lay_out(step, Layout(4, 9, False), Wishes(4))
    d = laid.batch.draws

    def draw(logits: torch.Tensor) -> torch.Tensor:
        return sample(
            logits, [Draw(*row) for row in zip(d.temperature, d.top_k, d.top_p, d.seed, d.index, strict=True)]
        )

    output = Output(rows[:, :0], rows, draw(rows) if laid.batch.plain else None)
    chosen = Sampler(eos).choose(laid.asked, output, draw, sent)
    return chosen.result(len(step), chosen.tokens.tolist())


ONE = np.zeros(1, np.int32)


def work(name: str, params: SamplingParams, answer: list[int], score: Score | None = None) -> Work:
    history = np.array([7, *answer], np.int32) if params.looks_back else None
    sample = Sample(params, len(answer), history)
    slot = {"b": 1, "good": 1, "c": 2, "no grammar here": 2, "silent": 3}.get(name, 0)  # each has its own
    return Work(name, slot, 0, 0, ONE, ONE, 0, Fresh(), (), sample, score)


def logits(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


def test_penalties_count_the_answer_and_repetition_the_prompt_too() -> None:
    works = (
        work("a", SamplingParams(presence_penalty=2), [1]),
        work("b", SamplingParams(frequency_penalty=0.6), [1, 1]),
        work("c", SamplingParams(presence_penalty=2), []),
    )
    row = [0.0, 2.0, 1.0]
    assert choose(Step(works), logits(row, row, row)).sampled == ((2,), (2,), (1,))
    seen = work("d", SamplingParams(repetition_penalty=3), [])
    tall = [0.0] * 7 + [3.0, 2.0]
    assert choose(Step((seen,)), logits(tall)).sampled == ((8,),)


def test_one_rows_trouble_is_not_the_others() -> None:
    works = (
        work("nan", SamplingParams(logprobs=1), []),
        work("good", SamplingParams(logprobs=1), []),
        work("no grammar here", SamplingParams(grammar="start: /a/"), []),
        work("silent", SamplingParams(), []),
    )
    row = [0.0, 1.0]
    result = choose(Step(works), logits([float("nan"), 1.0], row, row, row))
    assert result.sampled == ((), (1,), (), (1,))
    assert [index for index, _ in result.errors] == [0, 2]
    assert [index for index, _ in result.scores] == [1]


def test_scores_are_of_the_logits_as_they_came() -> None:
    forced = work("a", SamplingParams(logprobs=1, logit_bias=((0, 100.0),)), [])
    result = choose(Step((forced,)), logits([0.0, 0.0]))
    assert result.sampled == ((0,),)
    ((_, (scored,)),) = result.scores
    assert scored.logprob == pytest.approx(np.log(0.5))


def test_answers_do_not_end_before_their_least_length() -> None:
    wanted = SamplingParams(min_tokens=3, stop_token_ids=(2,))
    tall = [0.0, 3.0, 2.0, 1.0]
    early, late = work("a", wanted, [5, 5]), work("b", wanted, [5, 5, 5])
    assert choose(Step((early, late)), logits(tall, tall), eos=(1,)).sampled == ((3,), (1,))
    ignoring = work("a", SamplingParams(min_tokens=3, ignore_eos=True), [])
    assert choose(Step((ignoring,)), logits(tall), eos=(1,)).sampled == ((1,),)


def test_words_that_must_not_be_and_tokens_that_must() -> None:
    bad = work("a", SamplingParams(bad_words=((4, 1), (5, 2))), [4])
    only = work("b", SamplingParams(allowed=(0, 3)), [])
    tall = [0.0, 3.0, 2.0, 1.0]
    assert choose(Step((bad, only)), logits(tall, tall)).sampled == ((2,), (3,))


def test_targets_are_scored_in_slices_as_in_one_piece() -> None:
    counts = (300, 5)
    hidden = torch.randn(sum(counts), 4, generator=torch.Generator().manual_seed(1))
    weight = torch.randn(9, 4, generator=torch.Generator().manual_seed(2))
    targets = [np.arange(count, dtype=np.int32) % 9 for count in counts]
    works = [work("w", SamplingParams(), [], Score(target, 2)) for target in targets]
    scores = [scored(parts) for parts in score_targets(works, hidden, lambda rows: rows @ weight.T, sent)]
    expected = (hidden @ weight.T).log_softmax(-1)
    flat = [one for per_work in scores for one in per_work]
    assert [len(s) for s in scores] == list(counts)
    for row, target, one in zip(expected, np.concatenate(targets), flat, strict=True):
        assert one.logprob == pytest.approx(float(row[target]), abs=1e-5)
        assert one.top[0][1] == pytest.approx(float(row.max()), abs=1e-5)
