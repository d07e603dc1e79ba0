"""What ends with a loop."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, fields

import numpy as np
import pytest

from stepwell.base.clock import VirtualClock
from stepwell.base.errors import RequestError
from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.disk.archive import Archive, WriteBudget
from stepwell.cache.moves import Tier
from stepwell.engine.owned import LOCKING_REST, OwnedLoop
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.server.observe.disk_metrics import disk_metrics
from stepwell.store.disk.health import DiskStats
from stepwell.testing import telltale
from stepwell.testing.faults import InstantMover, ManualMover

DEAR = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e9, 1e9), latency_s=1e-6)


class Ticking(VirtualClock):
    """A second passes whenever someone looks."""

    def now(self) -> float:
        self.advance(1.0)
        return super().now()


def loop(owned: ExitStack, budget: WriteBudget | None = None) -> OwnedLoop:
    sizes = telltale.geometry()
    memory = telltale.Memory(sizes, 64, 64, 4, disk_slots=128)
    made = OwnedLoop(
        CacheConfig(sizes, 64, 64, 128, chunk=16, interval=32),
        SchedConfig(2, 32, 400, 4),
        telltale.TellTaleRunner(memory, sizes),
        InstantMover(memory.copy),
        Ticking(),
        DEAR,
        Archive(budget=budget or WriteBudget()),
        owned=owned,
    )
    made.submit(Request("one", np.arange(90, dtype=np.int32), SamplingParams(max_tokens=4)))
    while made.serving:
        made.step()
    return made


@dataclass
class Growing:
    ready: int
    ended: bool = False
    told: list[bool] = field(default_factory=list)

    def give_way(self, wanted: bool) -> None:
        self.told.append(wanted)


def test_host_is_used_as_far_as_it_is_ready_and_no_further() -> None:
    sizes, growing = telltale.geometry(), Growing(3)
    memory = telltale.Memory(sizes, 16, 64, 4)
    rules = CacheConfig(sizes, 16, 64, interval=32, host_ready=3, clean_share=1.0)
    made = OwnedLoop(
        rules, SchedConfig(2, 32, 400, 4), telltale.TellTaleRunner(memory, sizes), InstantMover(memory.copy), Ticking(), DEAR,
        pinning=growing,
    )  # fmt: skip
    used = []
    for i, ready in enumerate((3, 10, 64)):
        growing.ready = ready
        made.submit(Request(str(i), np.arange(i, 40 + i, dtype=np.int32), SamplingParams(max_tokens=4)))
        while made.busy:
            made.step()
        used.append(made.directory.use(Tier.HOST))
    assert [use.total for use in used] == [3, 10, 64]
    assert all(use.cached <= use.total for use in used) and used[2].cached > 10


def test_host_that_grows_no_more_is_all_that_there_is() -> None:
    sizes, growing = telltale.geometry(), Growing(3)
    memory = telltale.Memory(sizes, 16, 64, 4)
    made = OwnedLoop(
        CacheConfig(sizes, 16, 64, interval=32, host_ready=3), SchedConfig(2, 32, 400, 4), telltale.TellTaleRunner(memory, sizes),
        InstantMover(memory.copy), Ticking(), DEAR, pinning=growing,
    )  # fmt: skip
    host = made.directory.pools[Tier.HOST]
    made.step()
    assert (host.total, host.most) == (3, 64)
    growing.ready, growing.ended = 10, True
    made.step()
    assert (host.total, host.most) == (10, 10)
    growing.ready = 12
    made.step()
    assert host.total == 10


def test_an_idle_engine_tells_how_much_of_host_it_has_by_now() -> None:
    """Otherwise whoever looks at the metrics would take a host that is still growing for one that is ready."""
    sizes, growing = telltale.geometry(), Growing(3)
    memory = telltale.Memory(sizes, 16, 64, 4)
    made = OwnedLoop(
        CacheConfig(sizes, 16, 64, interval=32, host_ready=3), SchedConfig(2, 32, 400, 4), telltale.TellTaleRunner(memory, sizes),
        InstantMover(memory.copy), Ticking(), DEAR, pinning=growing, rest=9.0,
    )  # fmt: skip
    assert made.rest == LOCKING_REST and not made.busy
    growing.ready = 40
    assert made.busy
    made.step()
    assert made.stats().tiers[Tier.HOST].total == 40 and not made.busy
    growing.ready, growing.ended = 64, True
    assert made.busy
    made.step()
    assert made.stats().tiers[Tier.HOST].total == 64 and made.rest == 9.0 and not made.busy


def test_locking_of_host_memory_gives_way_to_whoever_waits_for_copies_and_to_idle_ones() -> None:
    sizes, growing = telltale.geometry(), Growing(64)
    memory = telltale.Memory(sizes, 30, 64, 4)
    mover = ManualMover(memory.copy)
    made = OwnedLoop(
        CacheConfig(sizes, 30, 64, interval=32, clean_share=0.0, min_load_tokens=0), SchedConfig(2, 64, 400, 4),
        telltale.TellTaleRunner(memory, sizes), mover, Ticking(), DEAR, pinning=growing,
    )  # fmt: skip

    def turn() -> bool:
        made.step(wait=0.0)
        return growing.told[-1]

    prompt = np.arange(40, dtype=np.int32)
    made.submit(Request("a", prompt, SamplingParams(max_tokens=4)))
    assert growing.told == [True], "from the moment at which it comes"
    told = []
    while made.serving:
        told.append(turn())
    assert not any(told[:-1]), "it runs, and waits for no copy"
    while made.busy:
        assert turn() == bool(mover.pending)
        for ticket in list(mover.pending):
            mover.finish(ticket)
    assert not turn()
    for item in [item for node in made.directory.tree.nodes() for item in node.items()][::-1]:
        if item.at[Tier.DEVICE] is not None:
            made.directory.drop(item, Tier.DEVICE)
    made.submit(Request("again", prompt, SamplingParams(max_tokens=4)))
    assert turn() and made.queues.parked, "it loads"
    for ticket in list(mover.pending):
        mover.finish(ticket)
    assert not turn() and made.queues.running


def test_where_prompts_cannot_be_scored_a_request_for_it_is_refused() -> None:
    sizes = telltale.geometry()
    memory = telltale.Memory(sizes, 16, 64, 4)
    made = OwnedLoop(
        CacheConfig(sizes, 16, 64, interval=32), SchedConfig(2, 32, 400, 4), telltale.TellTaleRunner(memory, sizes),
        InstantMover(memory.copy), Ticking(), DEAR, scores=False,
    )  # fmt: skip
    with pytest.raises(RequestError, match="--deterministic") as refusal:
        made.submit(Request("a", np.arange(9, dtype=np.int32), SamplingParams(prompt_logprobs=1), read_cache=False))
    assert refusal.value.param == "prompt_logprobs" and not made.busy


def test_the_end_saves_the_rest_and_then_closes() -> None:
    with ExitStack() as owned:
        seen: list[bool] = []
        made = loop(owned)
        owned.callback(lambda: seen.append(made.busy))
        assert made.busy
        assert made.end(1e6)
        assert seen == [False]
        assert made.directory.use(Tier.DISK).cached > 0


def test_an_end_that_runs_out_of_time_says_so_and_closes_all_the_same() -> None:
    with ExitStack() as owned:
        closed: list[bool] = []
        made = loop(owned, WriteBudget(rate=1e-9, burst=1.0, level=-1.0))
        owned.callback(lambda: closed.append(True))
        assert not made.end(50.0)
        assert closed == [True]


def test_every_count_of_the_disk_has_a_metric() -> None:
    stats = DiskStats(**{f.name: {"EIO": 3} if f.name == "problems" else 7 for f in fields(DiskStats)})  # type: ignore[arg-type]
    with ExitStack() as owned:
        from stepwell.engine.owned import _with_disk

        told = _with_disk(loop(owned).stats(), stats, 0.0)
    metrics = {m.name: [s.value for s in m.samples] for m in disk_metrics(told.disk, told.disk_problems)}
    assert metrics.pop("stepwell_disk_problems") == [3]
    assert len(metrics) == len(told.disk) == 15
    assert all(values == [7] for values in metrics.values()), metrics
