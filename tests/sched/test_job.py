"""Prompt and answer in one growing array."""

from __future__ import annotations

import pytest

from stepwell.sched.job import KnownTokens
from tests.cache.builders import numbers


@pytest.mark.parametrize("size", [1, 3, 64, 65, 400])
def test_it_grows_without_touching_what_is_there(size: int) -> None:
    prompt = numbers(10)
    tokens = KnownTokens(prompt)
    expected = prompt.tolist()
    for start in range(0, 500, size):
        more = tuple(range(start, start + size))
        tokens.extend(more)
        expected += more
    assert len(tokens) == len(expected) and tokens.view.tolist() == expected


def test_the_prompt_is_copied() -> None:
    prompt = numbers(10)
    tokens = KnownTokens(prompt)
    before = tokens.view.tolist()
    prompt[:] = 0
    assert tokens.view.tolist() == before
