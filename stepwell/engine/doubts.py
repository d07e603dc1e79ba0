"""Warnings about a configuration, told at the start with what to change: what the engine cannot do with it, or hardly as it is meant."""

from __future__ import annotations

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry
from stepwell.base.units import format_size
from stepwell.engine.config import EngineConfig


def longest_context(config: EngineConfig, geometry: Geometry, pages: int, positions: int) -> int:
    """Tokens of prompt and answer together, before the pool cuts them.

    positions  that the checkpoint was made for
    Raises ConfigError where not even the shortest prompt that leaves a rung fits, or more is asked for than the model can.
    """
    least = geometry.image_pages + geometry.pages_for(config.rung_grid + 1)
    if pages < least:
        raise ConfigError(
            f"--device-memory holds {pages} pages of {format_size(geometry.page_bytes)}, but one prompt of "
            f"{config.rung_grid} tokens and its rung need {least}: give at least {format_size(least * geometry.page_bytes)}"
        )
    longest = positions if config.max_model_len is None else config.max_model_len
    if longest > positions:
        raise ConfigError(
            f"--max-model-len {longest} is more than the {positions} positions the checkpoint was made for"
        )
    return longest


def doubts(config: EngineConfig, geometry: Geometry, pages: int, slots: int, wanted: int) -> tuple[str, ...]:
    """One sentence for each way in which caching will not do what it is there for.

    pages   of the device      slots   of the host tier      wanted   tokens of prompt and answer, before the pool cuts them
    """
    if not config.enable_prefix_caching:
        return ()
    longest = min(wanted, pages * geometry.block)
    kept = (pages - geometry.image_pages) * geometry.block
    found = []
    if longest < wanted:
        found.append(
            f"a context of {wanted:,} tokens is more than the device holds: prompt and answer may have {longest:,} together; "
            "raise --device-memory, or lower --max-model-len to say so"
        )
    if geometry.image_bytes and kept < longest:
        found.append(
            f"a prompt of more than {kept:,} tokens fills the device and leaves no room for its rung: it is recomputed every "
            "time; raise --device-memory"
        )
    if geometry.image_bytes and config.rung_grid >= longest:
        found.append(f"no prompt is as long as --rung-grid {config.rung_grid}: none leaves a rung; lower it")
    if config.host_memory and slots < max(1, geometry.image_pages):
        least = format_size(max(1, geometry.image_pages) * geometry.page_bytes)
        found.append(f"--host-memory holds no rung: nothing can be resumed from it; give at least {least}, or 0")
    if config.min_load_tokens is not None and config.min_load_tokens >= longest:
        found.append(
            f"--min-load-tokens {config.min_load_tokens} is more than any prompt has: nothing is loaded; lower it"
        )
    return tuple(found)
