"""The rules of one directory."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry
from stepwell.cache.evict.policy import LadderPolicy, Policy
from stepwell.cache.moves import EXTERNAL, Tier


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Sizes and rules that never change while the engine runs.

    device_pages, host_slots, disk_slots   size of each tier, in pages; 0: there is no such tier
    host_ready                 host slots that are ready at the start; `Account.widen` adds others, until `Account.settle`. None: all
    chunk                      tokens; the copy unit below the device
    whole_chunks               the store below reads whole chunks only; a native store reads single blocks
    external_drops             a load from the external store leaves out what the device has of its first chunk; else that goes into pages
                               of the request's own
    external_chunk             tokens of a chunk of the external store (LMCache), which reads whole ones only; 0: there is none
    interval                   tokens between insurance rungs
    min_load_tokens            fewest tokens that a load must gain; None: decide by expected time
    clean_share                share of a tier kept free or already copied below
    copy_idle                  while idle, copy to free slots of host, so that a load finds room at once
    write_idle                 while idle, write to disk, so that little is lost with the process
    ghost_blocks               most evicted blocks whose tokens are remembered, to tell evicted prompts from new ones
    ghost_nodes                most ends of evicted paths that are remembered; each takes memory, however short its path
    policy                     eviction order (`stepwell.cache.evict.policy`)
    tenant_share               share of a tier that one tenant may hold while others want it (`stepwell.cache.evict.tenants`), and of
                               what may be pinned; 1: no bound
    """

    geometry: Geometry
    device_pages: int
    host_slots: int = 0
    disk_slots: int = 0
    chunk: int = 256
    whole_chunks: bool = False
    external_chunk: int = 0
    external_drops: bool = False
    interval: int = 8192
    min_load_tokens: int | None = None
    clean_share: float = 0.05
    ghost_blocks: int = 1 << 20
    ghost_nodes: int = 1 << 16
    copy_idle: bool = True
    write_idle: bool = True
    policy: Policy = LadderPolicy()  # noqa: RUF009 (it has no state)
    tenant_share: float = 1.0
    host_ready: int | None = None

    def __post_init__(self) -> None:
        block, grid = self.geometry.block, self.geometry.rung_grid
        if self.device_pages < 1:
            raise ConfigError("the device budget holds no page: raise --device-memory")
        if self.interval < grid or self.interval % grid:
            raise ConfigError(
                f"--state-checkpoint-interval-tokens {self.interval} must be a multiple of --rung-grid {grid}"
            )
        if self.chunk < block or self.chunk % block:
            raise ConfigError(f"chunk {self.chunk} must be a multiple of --block-size {block}")
        if self.external_chunk % block:
            raise ConfigError(
                f"the external store's chunk of {self.external_chunk} tokens must be a multiple of --block-size {block}"
            )
        if self.host_ready is not None and not 0 <= self.host_ready <= self.host_slots:
            raise ConfigError(f"{self.host_ready} slots of host cannot be ready: there are {self.host_slots}")
        if not 0 <= self.clean_share <= 1:
            raise ConfigError(f"clean share {self.clean_share} must be between 0 and 1")
        if not 0 < self.tenant_share <= 1:
            raise ConfigError(f"--tenant-share {self.tenant_share} must be above 0 and at most 1, such as 0.5")


@dataclass(frozen=True, slots=True)
class Costs:
    """Speeds of this machine, measured or from a profile. The same value serves everything that a turn plans and commits.

    They choose between ways to the same answer, never the answer.

    prefill_tokens_per_s   the part of prefill that grows with its tokens
    bytes_per_s            per tier, of a copy into the device (the device's own copies count as free)
    external_bytes_per_s   of a copy from an external store, likewise
    latency_s              fixed time of any load
    attention_s_per_pair   of prefill, for each (query, key) pair of tokens, on top: it grows with the context
    decode_s               time of a step of decodes alone, at present
    prompt_step_s          fixed time of a step with any part of a prompt: launches, reading weights
    """

    prefill_tokens_per_s: float = 10_000.0
    bytes_per_s: tuple[float, float, float] = (float("inf"), 40e9, 3e9)
    latency_s: float = 0.0005
    attention_s_per_pair: float = 0.0
    decode_s: float = 0.0
    prompt_step_s: float = 0.0
    external_bytes_per_s: float = 1e9

    def speed(self, tier: Tier) -> float:
        """Bytes a second of a copy from `tier` into the device."""
        return self.external_bytes_per_s if tier == EXTERNAL else self.bytes_per_s[tier]

    def prefill_seconds(self, start: int, end: int) -> float:
        """Seconds that tokens [start, end) of a prompt add to a step; `prompt_step_s` comes on top, once a step."""
        count = end - start
        return count / self.prefill_tokens_per_s + self.attention_s_per_pair * count * (start + count / 2)

    def prefill_within(self, start: int, seconds: float) -> int:
        """Prompt tokens from `start` on that add at most `seconds` to a step, rounded down."""
        if seconds <= 0:
            return 0
        each = 1 / self.prefill_tokens_per_s + self.attention_s_per_pair * start
        if self.attention_s_per_pair == 0:
            return int(seconds / each)
        # a/2·n² + each·n = seconds, in the form that loses no digits where a is small
        return int(2 * seconds / (each + sqrt(each * each + 2 * self.attention_s_per_pair * seconds)))
