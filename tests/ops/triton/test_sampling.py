"""Tokens drawn on the device against the sorting twin; every draw depends on its own row alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from stepwell.ops.triton import sampling, twins  # noqa: E402
from stepwell.ops.triton.sampling import Settings  # noqa: E402
from tests.ops.triton.inputs import NAN, Made  # noqa: E402

VOCAB, CHUNK = 100, 64
#         temperature, top_k, top_p, min_p
CHOICES = [
    (0.0, 5, 0.5, 0.0),
    (1.0, 0, 1.0, 0.0),
    (0.7, 7, 1.0, 0.0),
    (1.3, 0, 0.8, 0.0),
    (0.9, 40, 0.6, 0.01),
    (1.0, 1, 1.0, 0.0),
    (2.0, 0, 0.001, 0.0),
    (1.0, 0, 1.0, 0.3),
]


def settings(choices, seeds, index) -> Settings:
    heat, k, p, least = zip(*choices, strict=True)
    floats = [torch.tensor(y, dtype=torch.float32) for y in (heat, p, least)]
    seed = torch.tensor(seeds, dtype=torch.int64)
    return Settings(
        floats[0], torch.tensor(k, dtype=torch.int32), floats[1], floats[2], seed, torch.full_like(seed, index)
    )


@pytest.mark.sampled(1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_draws_are_those_of_the_sorted_distribution(dtype: torch.dtype) -> None:
    logits = (2 * Made(0).strided(len(CHOICES), VOCAB)).to(dtype)
    chosen = settings(CHOICES, [7, -1, 2**40, 3, 4, 5, 6, 8], 5)
    assert torch.equal(sampling.sample(logits, chosen, CHUNK), twins.sample(logits, chosen))


def test_greedy_takes_the_first_of_equal_tokens() -> None:
    logits = Made(1).normal(2, VOCAB)
    logits[0, [40, 90]] = 9.0
    assert sampling.greedy(logits, CHUNK).tolist() == [40, int(logits[1].argmax())]


@pytest.mark.parametrize("bad", [NAN, float("inf")])
def test_a_row_without_a_sound_peak_has_no_token(bad: float) -> None:
    logits = Made(2).normal(3, VOCAB)
    logits[1, 70] = bad
    logits[2] = float("-inf")
    assert sampling.greedy(logits, CHUNK)[1:].tolist() == [-1, -1]
    drawn = sampling.sample(logits, settings([(1.0, 0, 0.9, 0.0)] * 3, [1, 2, 3], 0), CHUNK)
    assert drawn[1:].tolist() == [-1, -1]
    assert drawn[0] >= 0


@pytest.mark.long
def test_a_draw_does_not_depend_on_its_batch() -> None:
    logits = Made(3).normal(3, VOCAB)
    choices, seeds = [(1.0, 0, 0.9, 0.0), (0.0, 0, 1.0, 0.0), (0.8, 20, 0.9, 0.0)], [1, 2, 3]
    together = sampling.sample(logits, settings(choices, seeds, 4), CHUNK)
    alone = [
        sampling.sample(logits[i : i + 1], settings(choices[i : i + 1], seeds[i : i + 1], 4), CHUNK) for i in range(3)
    ]
    assert together.tolist() == [int(token) for token in alone]


def test_shares_of_many_draws_are_the_chances() -> None:
    """2,000 seeds over three tokens: each share lies within four standard deviations of its chance."""
    logits, draws = torch.tensor([[0.0, 1.0, 2.0]]), 2000
    chances = torch.softmax(logits[0].double(), 0)
    chosen = settings([(1.0, 0, 1.0, 0.0)] * draws, list(range(draws)), 0)
    shares = torch.bincount(twins.sample(logits.expand(draws, -1), chosen), minlength=3) / draws
    assert ((shares - chances).abs() < 4 * (chances * (1 - chances) / draws).sqrt()).all()
