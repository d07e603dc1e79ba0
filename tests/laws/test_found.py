"""What random runs have found, reduced to a few lines each; where that takes too many, by their seeds."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.config import CacheConfig
from stepwell.cache.moves import Tier
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing import telltale
from stepwell.testing.faults import LIVE, FaultPlan, Where
from stepwell.testing.harness import Harness
from tests.laws.many import run


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


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "seed",
    [
        5002016,  # state loaded, one token left, whose page is shared: a decode wrote it
        5002668,
        4003219,  # a device copy was out of reach while a write read its condemned twin in host
        4001326,  # two runs wrote each other off the disk for ever
        4003888,  # a restart brought back from disk what had been condemned while it was read
        5001264,  # an audit that ended in silence looked like a wait
        9002128,  # slots of a load that failed came back from disk in the same step with another's records
        9002212,  # an image computed anew while its copy on disk was loaded could not go
        20001003,  # pages that the tree's own had replaced were not given back, and the oldest request found none for its last tokens
        20005300,
        30004623,  # neither did a load give them back whose KV another had loaded meanwhile, and a prompt's reservation could not be met
    ],
)
def test_a_run_that_broke_a_law_does_so_no_more(seed: int) -> None:
    run(seed, waits=0)
