"""Sizes that do not match: every block, chunk, grid and interval, and prompts that end around their multiples.

States are found at the boundary they stand for, and nowhere else: a law of the harness, judged on each resume.
"""

from __future__ import annotations

import pytest

from stepwell.base.units import floor_to
from stepwell.cache.config import CacheConfig
from stepwell.cache.moves import Tier
from stepwell.testing import telltale
from tests.cache.builders import numbers
from tests.cases.serving import ask, engine

SIZES = [
    (1, 1, 1, 1, False),
    (1, 3, 5, 6, True),
    (2, 6, 4, 12, False),
    (3, 3, 9, 27, True),
    (4, 8, 12, 24, False),
    (4, 12, 8, 12, True),
    (4, 4, 20, 8, True),
    (5, 15, 10, 30, False),
    (5, 5, 35, 20, True),
]


@pytest.mark.parametrize(("block", "grid", "chunk", "interval", "whole"), SIZES)
def test_every_length_around_every_multiple_resumes_where_it_should(
    block: int, grid: int, chunk: int, interval: int, whole: bool
) -> None:
    cache = CacheConfig(
        telltale.geometry(block, grid, image_pages=3),
        device_pages=1200,
        host_slots=1200,
        chunk=chunk,
        whole_chunks=whole,
        interval=interval,
        min_load_tokens=0,
        clean_share=0.0,
    )
    harness = engine(cache, budget=grid + 20, rolling=2 * block)
    prompt = numbers(3 * chunk + interval + grid + 2)
    ask(harness, "whole", prompt, 1)
    ends = sorted({m * size + off for size in (block, grid, chunk, interval) for m in (1, 2, 3) for off in (-1, 0, 1)})
    for end in (end for end in ends if 1 < end <= len(prompt)):
        first = ask(harness, f"{end}", prompt[:end], 1)
        again = ask(harness, f"{end} again", prompt[:end], 1)
        assert first.boundary <= again.boundary < end and again.boundary % block == 0
        assert again.boundary >= floor_to(end - 1, grid)
    harness.flush(Tier.DEVICE, demote_first=True)
    low = ask(harness, "from host", prompt, 1)
    if low.loaded:
        assert low.host == low.boundary > 0
    kept = floor_to(len(prompt) - 1, grid)
    assert low.boundary == kept or (whole and low.boundary >= kept - chunk - grid)
