"""What random runs have found, reduced to a few lines each."""

from __future__ import annotations

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.config import CacheConfig
from stepwell.cache.moves import Tier
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing import telltale
from stepwell.testing.faults import LIVE, FaultPlan, Where
from stepwell.testing.harness import Harness


def _prompt(count: int) -> Ints:
    return np.arange(1, count + 1, dtype=np.int32)


def test_a_copy_that_failed_to_load_is_not_copied_over_while_another_load_reads_it() -> None:
    """Two loads read the same copy. One fails, runs cold and leaves the same content anew, which is then to be copied down."""
    faults = FaultPlan()
    cache = CacheConfig(
        telltale.geometry(), device_pages=40, host_slots=80, chunk=16, interval=8, min_load_tokens=4, clean_share=1.0
    )
    sched = SchedConfig(max_num_seqs=2, max_num_batched_tokens=64)
    harness = Harness(cache, sched, faults)
    params = SamplingParams(max_tokens=2)
    harness.submit(Request("first", _prompt(20), params))
    harness.drain()
    harness.flush(Tier.DEVICE, demote_first=True)
    faults.delay(Where(source=Tier.HOST), polls=30, count=2)
    harness.submit(Request("slow", _prompt(20), params))
    harness.step()
    faults.fail(Where(target=LIVE), count=1)
    faults.fail(Where("kv", Tier.HOST), count=1)
    harness.submit(Request("failing", _prompt(20), params))
    for _ in range(12):
        harness.step()
    assert harness.told["failing"].finished is not None
    assert "slow" in harness.loop.queues.parked
    harness.drain()
