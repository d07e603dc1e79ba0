"""Sampling: what a draw depends on, what it never chooses, and that it follows the distribution."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from stepwell.ops.adjust import forbid  # noqa: E402
from stepwell.ops.sampling import NO_TOKEN, Draw, sample, uniform  # noqa: E402

VOCAB = 50
LOGITS = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(0)) * 2
WARM = Draw(temperature=1.0, seed=5)


def told(tokens: torch.Tensor) -> list[int | None]:
    return [None if token == NO_TOKEN else token for token in tokens.tolist()]


def draws(logits: torch.Tensor, draw: Draw, count: int) -> list[int | None]:
    return told(sample(logits.expand(count, -1).clone(), [replace(draw, index=i) for i in range(count)]))


def test_greedy_takes_the_largest() -> None:
    assert told(sample(LOGITS.clone(), [Draw()] * 6)) == LOGITS.argmax(-1).tolist()
    assert told(sample(LOGITS.clone(), [replace(WARM, top_k=1)] * 6)) == LOGITS.argmax(-1).tolist()
    assert told(sample(LOGITS.clone(), [replace(WARM, top_p=1e-6)] * 6)) == LOGITS.argmax(-1).tolist()
    assert told(sample(LOGITS.clone(), [replace(WARM, temperature=1e-8)] * 6)) == LOGITS.argmax(-1).tolist()


def test_a_draw_depends_on_its_seed_and_index_alone() -> None:
    alone = draws(LOGITS[2], WARM, 20)
    for i in range(20):
        batch = [Draw(), replace(WARM, seed=99, index=3), replace(WARM, index=i), replace(WARM, top_p=0.5)]
        assert told(sample(LOGITS[[0, 1, 2, 3]].clone(), batch))[2] == alone[i]
    assert draws(LOGITS[2], replace(WARM, seed=6), 20) != alone


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "draw", [WARM, replace(WARM, temperature=0.5), replace(WARM, top_k=5), replace(WARM, top_p=0.7)]
)
def test_draws_follow_the_distribution(draw: Draw) -> None:
    chances = (LOGITS[0].double() / draw.temperature).softmax(-1)
    order = chances.argsort(descending=True)
    reached = chances[order].cumsum(0) - chances[order]
    kept = order[(reached < draw.top_p) & (torch.arange(VOCAB) < (draw.top_k or VOCAB))]
    count = 4000
    found = torch.bincount(torch.tensor(draws(LOGITS[0], draw, count)), minlength=VOCAB) / count
    expected = torch.zeros(VOCAB, dtype=torch.float64)
    expected[kept] = chances[kept] / chances[kept].sum()
    assert not found[expected == 0].any()
    assert float((found - expected).abs().max()) < 4 * (0.25 / count) ** 0.5


def test_equal_logits_are_cut_by_token_number() -> None:
    flat = torch.zeros(VOCAB)
    assert set(draws(flat, replace(WARM, top_k=4), 200)) == {0, 1, 2, 3}


def test_forbidden_tokens_are_never_chosen() -> None:
    best = LOGITS[0].topk(3).indices
    row = LOGITS[0].clone()
    forbid(row, best[:2])
    assert told(sample(row[None], [Draw()])) == [int(best[2])]
    assert not set(draws(row, WARM, 200)) & set(best[:2].tolist())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("draw", [Draw(), WARM])
def test_a_broken_row_is_none_and_the_others_stand(bad: float, draw: Draw) -> None:
    logits = LOGITS.clone()
    logits[1, 7] = bad
    found = told(sample(logits, [draw] * 6))
    assert found[1] is None
    intact = told(sample(LOGITS.clone(), [draw] * 6))
    assert [t for i, t in enumerate(found) if i != 1] == [t for i, t in enumerate(intact) if i != 1]


def test_a_row_with_nothing_allowed_is_none() -> None:
    assert told(sample(torch.full((1, 4), float("-inf")), [WARM])) == [None]
    assert told(sample(torch.empty(0, VOCAB), [])) == []


def test_uniform_numbers_are_spread_over_seeds_and_indices() -> None:
    for values in ([uniform(0, i) for i in range(4000)], [uniform(s, 0) for s in range(4000)]):
        assert all(0 <= x < 1 for x in values)
        counts = torch.histc(torch.tensor(values), 20, 0, 1)
        assert float(counts.min()) > 140
        assert float(counts.max()) < 260
    assert uniform(-3, 0) != uniform(3, 0)
