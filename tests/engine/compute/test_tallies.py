"""Counts of tokens that go on from step to step."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.base.geometry import Ints  # noqa: E402
from stepwell.engine.compute.tallies import KEPT, Tallies  # noqa: E402

VOCAB = 20
ROW = torch.zeros(VOCAB)
PROMPT = [3, 3, 5]


class Counting:
    """Brings tokens over, and counts them."""

    def __init__(self) -> None:
        self.tokens = 0

    def __call__(self, tokens: Ints) -> torch.Tensor:
        self.tokens += len(tokens)
        return torch.from_numpy(np.asarray(tokens, np.int64))


def past(answer: list[int]) -> Ints:
    return np.array([*PROMPT, *answer], np.int32)


def test_what_is_counted_step_by_step_is_what_is_there() -> None:
    draw = np.random.default_rng(0)
    answer: list[int] = []
    tallies, send = Tallies(), Counting()
    for _ in range(200):
        tally = tallies.of("a", past(answer), len(answer), ROW, send)
        times = Counter(answer)
        assert tally.times.tolist() == [float(times[token]) for token in range(VOCAB)]
        assert tally.seen.tolist() == [token in PROMPT or token in times for token in range(VOCAB)]
        answer += draw.integers(0, VOCAB, draw.integers(1, 4)).tolist()
    assert send.tokens < len(PROMPT) + len(answer), "each token once"


def test_a_name_that_begins_again_is_another_request() -> None:
    tallies, send = Tallies(), Counting()
    tallies.of("a", past([1, 1]), 2, ROW, send)
    tally = tallies.of("a", past([]), 0, ROW, send)
    assert not tally.times.any() and tally.seen.sum() == 2


def test_one_that_was_forgotten_is_counted_again() -> None:
    tallies, send = Tallies(), Counting()
    tallies.of("a", past([1]), 1, ROW, send)
    for number in range(KEPT):
        tallies.of(f"other {number}", past([2]), 1, ROW, send)
    assert tallies.of("a", past([1, 4]), 2, ROW, send).times.nonzero().flatten().tolist() == [1, 4]
