"""What leaves the tree is freed at once: a full collection would have to walk through the whole tree to find it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from stepwell.cache.clear import quarantine
from stepwell.cache.copies import copy_landed
from stepwell.cache.evict.make_room import demote, free_pages
from stepwell.cache.moves import Report, Tier
from tests.cache.builders import directory, join, keep, numbers


@pytest.fixture(autouse=True)
def by_hand() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_nothing_that_comes_and_goes_keeps_itself_alive() -> None:
    shelf = directory(ghosts=40)
    for seed in range(60):
        prompt, salt = numbers(40, seed), f"salt {seed % 7}"
        keep(shelf, prompt, rungs=(20, 40), salt=salt, now=float(seed))
        keep(shelf, join(prompt[:12], numbers(20, 1000 + seed)), rungs=(32,), salt=salt, now=float(seed))  # splits
        for move in demote(shelf, 30):
            copy_landed(shelf, Report(move.ticket, seed % 3 > 0))
        if seed % 5 == 0:
            quarantine(shelf, salt, prompt)
        assert free_pages(shelf, 50, force=True)
    for tier in (Tier.DEVICE, Tier.HOST):
        while (item := shelf.candidates.drops[tier].pop()) is not None:
            shelf.drop(item, tier)
    del item
    assert gc.collect() == 0
