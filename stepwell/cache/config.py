"""The rules of one directory."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Sizes and rules that never change while the engine runs.

    device_pages, host_slots, disk_slots   room of each tier, in pages; 0: the tier is not there
    chunk                      tokens; the copy unit below the device
    whole_chunks               the store below reads whole chunks only (LMCache); a native store reads single blocks
    interval                   tokens between insurance rungs
    min_load_tokens            load from a tier only what gains at least this much; None: decide by expected time
    clean_share                share of a tier kept free or already copied below
    write_idle                 write to disk while nothing else is to be done, so that little is lost with the process
    ghost_blocks               evicted blocks that are remembered by their tokens alone, to say what was lost
    policy                     what goes first, by name (`stepwell.cache.policy`)
    keep_share                 share of each tier that may be kept before all else (`stepwell.cache.kept`)
    """

    geometry: Geometry
    device_pages: int
    host_slots: int = 0
    disk_slots: int = 0
    chunk: int = 256
    whole_chunks: bool = False
    interval: int = 8192
    min_load_tokens: int | None = None
    clean_share: float = 0.05
    ghost_blocks: int = 1 << 20
    write_idle: bool = True
    policy: str = "ladder"
    keep_share: float = 0.5

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
        if not 0 <= self.clean_share <= 1:
            raise ConfigError(f"clean share {self.clean_share} must be between 0 and 1")
        if not 0 <= self.keep_share <= 1:
            raise ConfigError(f"--keep-share {self.keep_share} must be between 0 and 1, such as 0.5")


@dataclass(frozen=True, slots=True)
class Costs:
    """What choosing a boundary weighs: measured on the machine, or from a profile.

    prefill_tokens_per_s   recomputation
    bytes_per_s            per tier, of a copy into the device (the device's own copies count as free)
    latency_s              fixed price of any load
    """

    prefill_tokens_per_s: float = 10_000.0
    bytes_per_s: tuple[float, float, float] = (float("inf"), 40e9, 3e9)
    latency_s: float = 0.0005
