"""What the memory budgets hold."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry
from stepwell.base.units import format_size
from stepwell.engine.config import EngineConfig
from stepwell.engine.doubts import longest_context
from stepwell.ops.ranks import ALONE, Ranks
from stepwell.store.host import available_memory

_CPU_SHARE = 0.25  # of the free memory, where nothing is said: the weights and the rest of the machine live there too


@dataclass(frozen=True, slots=True)
class Sizes:
    """Pages of the device, slots of host, and tokens that a request may have."""

    geometry: Geometry
    pages: int
    slots: int
    max_model_len: int


def sizes_of(
    config: EngineConfig,
    most_positions: int,
    geometry: Geometry,
    device: torch.device,
    ring_bytes: int = 0,
    ranks: Ranks = ALONE,
) -> Sizes:
    """Sizes by the flags and the memory that is free now: after the weights, before the arenas. Raises ConfigError.

    ring_bytes   of each live slot, beside its state
    ranks        all have the same sizes, those of the rank with the least memory
    """
    # one slot and one page are spare
    beside = (config.max_num_seqs + 1) * (geometry.image_bytes + ring_bytes) + geometry.page_bytes
    pages = -int(ranks.largest(-(_device_budget(config, device, beside, ranks.count) // geometry.page_bytes)))
    longest = longest_context(config, geometry, pages, most_positions)
    return Sizes(geometry, pages, config.host_memory // geometry.page_bytes, longest)


def _device_budget(config: EngineConfig, device: torch.device, live: int, ranks: int) -> int:
    """Bytes for the arena: what was asked for, or a share of what is free beside the weights and `live` bytes of states."""
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what reading weights took and gave back is free, and is to be seen as such
        free, total = torch.cuda.mem_get_info(device)
        budget = config.device_memory or int(total * config.gpu_memory_utilization) - (total - free) - live
        taken = live
    else:
        free = available_memory() // ranks  # they share this machine's, whereas each has a card of its own
        budget = config.device_memory or int(free * _CPU_SHARE)
        taken = live + config.host_memory  # the same memory; neither arena is touched before it is used
    if budget + taken > free:
        raise ConfigError(
            f"--device-memory {format_size(budget)} and {format_size(taken)} beside it (live states of --max-num-seqs "
            f"{config.max_num_seqs}, --host-memory where that is the same memory) are more than the {format_size(free)} "
            "that are free: ask for less"
        )
    return budget
