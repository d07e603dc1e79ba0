"""The serving loop on a machine that is only imagined: real scheduler, real cache, costs for compute and copies."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.base.clock import VirtualClock
from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry
from stepwell.base.units import ceil_to
from stepwell.cache.config import CacheConfig
from stepwell.replay.cost import CostModel
from stepwell.replay.eviction import DEFAULT, policy_named
from stepwell.replay.leap import LeapingLoop
from stepwell.replay.runner import CostRunner, Links, VirtualMover
from stepwell.sched.config import SchedConfig


@dataclass(frozen=True, slots=True)
class MachineSizes:
    """Memory in tokens of KV: what a tier would hold if it held nothing else, and what one rung takes. Lengths in tokens.

    decode_rung_tokens  None: the fewest that the block allows, 16 or more
    coalesce            requests wait for what others are computing, where that is sooner
    ahead               a step is built and launched while the one before computes, as an engine on a GPU does
    policy              what goes first, by name (`stepwell.cache.evict.policy`), or the peer whose engine runs instead of ours
    peer_failure_rate   of each leg of a peer's load
    """

    device_tokens: int = 8_000_000
    host_tokens: int = 33_000_000
    disk_tokens: int = 0
    rung_tokens: int = 6_100
    block: int = 64
    rung_grid: int = 64
    interval: int = 8192
    decode_rung_tokens: int | None = None
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 16_384
    coalesce: bool = True
    ahead: bool = False
    policy: str = DEFAULT
    peer_failure_rate: float = 0.0

    @property
    def memory(self) -> int:
        """Tokens of KV that all tiers hold together."""
        return self.device_tokens + self.host_tokens + self.disk_tokens

    def geometry(self, kv_bytes_per_token: int) -> Geometry:
        """Pages of one block; an image takes as many as its tokens would."""
        if self.block < 1:
            raise ConfigError(f"--block-size must be at least 1, not {self.block}")
        return Geometry(
            block=self.block,
            rung_grid=self.rung_grid,
            page_bytes=self.block * kv_bytes_per_token,
            image_bytes=self.rung_tokens * kv_bytes_per_token,
        )

    def cache(self, kv_bytes_per_token: int) -> CacheConfig:
        """The rules of a cache of these sizes."""
        return CacheConfig(
            self.geometry(kv_bytes_per_token),
            device_pages=self.device_tokens // self.block,
            host_slots=self.host_tokens // self.block,
            disk_slots=self.disk_tokens // self.block,
            chunk=ceil_to(256, self.block),
            interval=self.interval,
            policy=policy_named(self.policy),
        )

    def rules(self) -> SchedConfig:
        """The scheduler's rules; costs stay as they are given."""
        every = self.decode_rung_tokens
        return SchedConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            decode_rung_tokens=rolling_every(self.block) if every is None else every,
            coalesce=self.coalesce,
            async_scheduling=self.ahead,
            deterministic=True,
        )


class Machine:
    """One engine that lets virtual time pass. `clock` is its own and starts at 0."""

    __slots__ = ("clock", "costs", "links", "loop", "runner")

    def __init__(self, sizes: MachineSizes, costs: CostModel) -> None:
        cache = sizes.cache(costs.kv_bytes_per_token)
        self.costs = costs
        self.clock = VirtualClock()
        self.runner = CostRunner(self.clock, costs)
        self.links = Links(self.clock, costs)
        mover = VirtualMover(self.clock, self.links, cache.geometry.page_bytes)
        self.loop = LeapingLoop(cache, sizes.rules(), self.runner, mover, self.clock, costs.weighed())

    @property
    def steps(self) -> int:
        """Passes computed."""
        return self.runner.steps

    def passes_until(self, when: float) -> int:
        """Decode passes of whoever runs now that end by `when`; at least 1. The loop takes fewer wherever something else can happen."""
        running = self.loop.queues.running
        return passes(self.costs, len(running), sum(r.computed for r in running), when - self.clock.now())


def rolling_every(block: int) -> int:
    """Tokens between two rungs of a running answer, unless told otherwise: the fewest that blocks allow, 16 or more."""
    return ceil_to(16, block)


MOST_PASSES = 4096
"""Decode passes taken at once, at most."""


def passes(costs: CostModel, sequences: int, context: int, seconds: float) -> int:
    """Decode passes that end within `seconds`, from 1 to `MOST_PASSES`; `context`: tokens of KV between the sequences."""
    each = costs.decode_seconds(sequences, context)
    return max(1, min(MOST_PASSES, int(seconds / each))) if each > 0 else 1
