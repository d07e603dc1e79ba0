"""What an earlier process left on disk comes back whole, in whatever order the store tells of it, and if it is there twice."""

from __future__ import annotations

import pytest

from stepwell.cache.config import CacheConfig
from stepwell.cache.moves import Tier
from stepwell.testing import telltale
from stepwell.testing.harness import Harness
from tests.cache.builders import numbers
from tests.cases.serving import ask, engine, served

PROMPT = numbers(60)
TURNS = (17, 33, 49)


def _left_on_disk() -> Harness:
    """An engine that begins anew; the one before it wrote three turns of a conversation to disk."""
    cache = CacheConfig(
        telltale.geometry(4, 4, 1), device_pages=64, host_slots=64, disk_slots=400, chunk=16, min_load_tokens=0
    )
    harness = engine(cache)
    for count in TURNS:
        ask(harness, f"{count}", PROMPT[:count], 1)
    for tier in (Tier.DEVICE, Tier.HOST):
        harness.flush(tier, demote_first=True)
    harness.restart()
    return harness


@pytest.mark.parametrize("kv_first", [False, True])
def test_what_goes_on_from_a_boundary_may_be_told_of_in_any_order(kv_first: bool) -> None:
    """The image there, and the KV that follows it."""
    harness = _left_on_disk()
    told = sorted(harness.shelf.dormant.items(), key=lambda pair: (pair[1].what == "image") is kv_first)
    harness.shelf.dormant = dict(told)
    for count in (52, 36, 20):
        how = ask(harness, f"{count} again", PROMPT[:count], 1, write_cache=False)
        assert how.boundary == count - 4
        served(harness, f"{count} again")


@pytest.mark.parametrize("copies", [2, 3])
@pytest.mark.parametrize("kv_first", [False, True])
def test_records_may_be_there_more_than_once(copies: int, kv_first: bool) -> None:
    """An engine that could not reach a record, because what leads up to it was missing, has written it again."""
    harness = _left_on_disk()
    twice = [record for record in harness.shelf.dormant.values() for _ in range(copies)]
    twice.sort(key=lambda record: (record.what == "image") is kv_first)
    harness.shelf.dormant = dict(enumerate(twice, 1000))
    how = ask(harness, "again", PROMPT, 1)
    assert (how.boundary, how.disk) == (48, 48)
    harness.flush(Tier.DISK)
    use = harness.loop.directory.use(Tier.DISK)
    assert use.free == use.total
