"""Five routes and back: cold, device, host, disk, disk after a restart, device again; each gives the cold answer, each is proven taken."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.cache.config import CacheConfig, Costs
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing import telltale
from stepwell.testing.harness import Harness

COSTS = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e9, 1e9), latency_s=1e-6)
PROMPT = np.arange(100, 190, dtype=np.int32)


class Routes:
    """One harness, asked the same thing again and again."""

    def __init__(self, host_slots: int) -> None:
        cache = CacheConfig(telltale.geometry(), 64, host_slots, disk_slots=128, chunk=16, interval=32)
        self.harness = Harness(cache, SchedConfig(max_num_seqs=2, max_num_batched_tokens=32), costs=COSTS)
        self.count = 0

    def ask(self, salt: str = "", after: str | None = None) -> AdmissionOutcome:
        """Sources of the prompt's tokens, or of those of the next turn after request `after`; the harness judges the answer."""
        self.count += 1
        name, prompt = f"r{self.count}", PROMPT
        if after is not None:
            prompt = np.concatenate([prompt, np.array([*self.harness.told[after].tokens, 1, 2, 3], np.int32)])
        self.harness.submit(Request(name, prompt, SamplingParams(max_tokens=12), salt))
        self.harness.drain()
        told = self.harness.told[name]
        assert told.outcome is not None and told.finished is not None and told.finished.reason == "length"
        return told.outcome


@pytest.mark.parametrize("host_slots", [64, 0])
def test_every_route_gives_the_cold_answer(host_slots: int) -> None:
    routes = Routes(host_slots)
    harness = routes.harness
    cold = routes.ask()
    assert cold.recomputed == 90
    device = routes.ask()
    assert (device.device, device.recomputed) == (88, 2)
    if host_slots:
        harness.flush(Tier.DEVICE, demote_first=True)
        host = routes.ask()
        assert (host.host, host.state_tier) == (88, Tier.HOST)
        harness.flush(Tier.HOST)
    harness.flush(Tier.DEVICE)
    disk = routes.ask()
    assert (disk.disk, disk.state_tier) == (88, Tier.DISK)
    harness.restart()
    assert not harness.loop.directory.tree.roots
    again = routes.ask()
    assert (again.disk, again.state_tier) == (88, Tier.DISK)
    turn = routes.ask(after="r1")
    assert (turn.device, turn.cached, turn.state_tier) == (96, 96, Tier.DEVICE)


def test_legs_come_from_a_mixture_of_tiers() -> None:
    routes = Routes(64)
    harness = routes.harness
    routes.ask()
    harness.flush(Tier.DEVICE, demote_first=True, keep=32)
    harness.flush(Tier.HOST, keep=64)
    mixed = routes.ask()
    assert mixed.device and mixed.host and mixed.disk and mixed.cached == 88, mixed


def test_another_salt_never_finds_it() -> None:
    routes = Routes(64)
    routes.ask("one")
    routes.harness.restart()
    assert routes.ask("two").cached == 0
    assert routes.ask("one").disk == 88
