"""The disk of the tell-tale: what a later process finds there."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.cache.config import CacheConfig
from stepwell.cache.moves import Tier
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing import telltale
from stepwell.testing.faults import Copied, FaultPlan, Where
from stepwell.testing.harness import Harness

PROMPT = np.arange(1, 31, dtype=np.int32)


def _after_a_restart(plan: FaultPlan) -> Harness:
    """Two ranks, of which the second has these faults, have written a prompt to disk; another process follows, before reports of failed
    writes have been heard."""
    geometry = telltale.geometry(image_pages=2)
    cache = CacheConfig(geometry, device_pages=40, host_slots=80, disk_slots=80, chunk=16, interval=8)
    harness = Harness(cache, ranks=2, rank_faults=[FaultPlan(), plan])
    harness.submit(Request("first", PROMPT, SamplingParams(max_tokens=2)))
    for _ in range(40):
        harness.step()
    harness.restart()
    return harness


def test_what_all_ranks_have_written_is_there() -> None:
    found = {record.what for record in _after_a_restart(FaultPlan()).shelf.dormant.values()}
    assert found == {"kv", "image"}


@pytest.mark.parametrize("copied", ["none", "half"])
@pytest.mark.parametrize("what", ["kv", "image"])
def test_what_one_rank_has_torn_is_not(what: str, copied: Copied) -> None:
    torn = Where(what, target=Tier.DISK)
    harness = _after_a_restart(FaultPlan().fail(torn, copied=copied).drop(torn))
    assert what not in {record.what for record in harness.shelf.dormant.values()}
    harness.submit(Request("again", PROMPT, SamplingParams(max_tokens=2)))
    harness.drain()
