"""The disk tier of an engine: which namespace is its own, what it may take, and the mover that reaches it."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry
from stepwell.base.shapes import ModelShape
from stepwell.base.units import format_size
from stepwell.cache.config import Costs
from stepwell.cache.disk.archive import Archive, WriteBudget
from stepwell.cache.disk.names import Names
from stepwell.cache.moves import Tier
from stepwell.engine.config import EngineConfig
from stepwell.model.identity import config_digest, fingerprint, weights_digest
from stepwell.store.arena import Arena, PlainArena
from stepwell.store.device import DeviceArena, LiveStates, Precision
from stepwell.store.disk.folder import read_speed
from stepwell.store.disk.gate import Gate, MemoryGate
from stepwell.store.disk.health import DiskStats
from stepwell.store.disk.mover import DiskMover
from stepwell.store.disk.record import VERSION, Layout
from stepwell.store.disk.store import DiskStore, Options
from stepwell.store.host import HostArena
from stepwell.store.stream_gate import StreamGate

CHUNK = 256
"""Tokens in one record of KV, and between two links of the names: a file layout, so not a matter of taste."""
_SAVED_UP = 10.0  # seconds' worth of the write budget that may be spent at once


class Stored(Protocol):
    """What control asks of a store."""

    @property
    def slots(self) -> int:
        """Pages that there is room for."""

    def stats(self) -> DiskStats: ...


StoreT = TypeVar("StoreT", bound=Stored)


@dataclass(frozen=True, slots=True)
class DiskTier(Generic[StoreT]):
    """An open store, or those of all ranks, what the directory needs of it, and what reading from it is expected to take."""

    store: StoreT
    archive: Archive
    bytes_per_s: float

    def rows(self, config: EngineConfig) -> tuple[tuple[str, str, str], ...]:
        """Rows (name, value, note) for the startup table."""
        assert config.disk_cache is not None
        stats = self.store.stats()
        found = f"{stats.dormant_pages:,} found, {format_size(stats.bytes)} in {stats.segments} files"
        return (
            (
                "disk slots",
                f"{stats.slots:,}",
                f"within {format_size(config.disk_cache.bytes)} in {config.disk_cache.path}",
            ),
            ("disk pages", f"{stats.dormant_pages:,}", found),
            (
                "disk reads",
                f"{format_size(self.bytes_per_s)}/s",
                "measured now, one reader; what computing again must beat",
            ),
        )


def identity(
    directory: Path,
    shape: ModelShape,
    geometry: Geometry,
    precision: Precision,
    device: str,
    dummy_seed: int | None = None,
    ranks: int = 1,
    rank: int = 0,
) -> dict[str, str]:
    """All that bytes on disk depend on, in words. Where one of them differs, nothing is shared.

    dummy_seed  the seed of random weights, where no files were read
    """
    return {
        "record format": str(VERSION),
        "config.json": config_digest(directory),
        "weights": weights_digest(directory) if dummy_seed is None else f"dummy, seed {dummy_seed}",
        "element types": f"kv {precision.kv}, model {precision.model}, state {precision.state}",
        "kernels": device,
        "page": f"{geometry.block} tokens, {geometry.page_bytes} bytes",
        "image": f"{geometry.image_bytes} bytes in {geometry.image_pages} pages, recurrent states first",
        "layers": " ".join(shape.layer_types),
        "rung grid": str(geometry.rung_grid),
        "chunk": str(CHUNK),
        "ranks": f"{rank} of {ranks}",
    }


def of_all(parts: Mapping[str, str], ranks: int) -> dict[str, str]:
    """The identity of what all of so many ranks have under the same names; of one rank, its own."""
    return dict(parts) if ranks == 1 else {**parts, "ranks": f"all {ranks}"}


def layout_of(geometry: Geometry, parts: Mapping[str, str]) -> Layout:
    """How records lie on disk. ConfigError where blocks do not fill a chunk."""
    if CHUNK % geometry.block:
        raise ConfigError(
            f"--disk-cache keeps KV in chunks of {CHUNK} tokens, which --block-size {geometry.block} must divide"
        )
    return Layout(geometry.page_bytes, geometry.block, geometry.image_pages, CHUNK, fingerprint(parts))


def open_disk(
    config: EngineConfig, geometry: Geometry, parts: Mapping[str, str], owned: ExitStack
) -> DiskTier[DiskStore] | None:
    """The disk tier that `config` asks for, to be closed with `owned`; None where it asks for none. Raises ConfigError."""
    place = config.disk_cache
    if place is None:
        return None
    store = DiskStore.open(Path(place.path), place.bytes, layout_of(geometry, parts), _options(config, parts))
    owned.enter_context(store)
    archive = Archive(Names(store.names_key, CHUNK), store.catalogue, budget_of(config, geometry))
    return DiskTier(store, archive, read_speed(Path(place.path), place.bytes))


def with_disk(costs: Costs, tier: DiskTier[Stored] | None) -> Costs:
    """`costs` with the measured speed of the disk."""
    if tier is None:
        return costs
    device, host, _ = costs.bytes_per_s
    return replace(costs, bytes_per_s=(device, host, tier.bytes_per_s))


def disk_mover(store: DiskStore, arena: DeviceArena, host: HostArena | None, live: LiveStates) -> DiskMover:
    """The threads that read and write for this engine: straight from and to the device where there is no host tier."""
    return DiskMover(store, gate_of(arena, host, live))


def gate_of(arena: DeviceArena, host: HostArena | None, live: LiveStates) -> Gate:
    """How threads beside the engine reach its slots."""
    if arena.device.type == "cuda":
        return StreamGate(arena.rows, host, live)
    arenas: dict[Tier, Arena] = {Tier.DEVICE: PlainArena(arena.rows.numpy())}
    if host is not None:
        arenas[Tier.HOST] = host
    return MemoryGate(arenas, live)


def budget_of(config: EngineConfig, geometry: Geometry) -> WriteBudget:
    """What may be written."""
    if config.disk_write_budget is None:
        return WriteBudget()
    pages = config.disk_write_budget / geometry.page_bytes
    return WriteBudget(pages, max(1.0, pages * _SAVED_UP))


def _options(config: EngineConfig, parts: Mapping[str, str]) -> Options:
    if not config.faults:
        return Options(parts=parts)
    from stepwell.engine.faults import faulty_disk
    from stepwell.testing.faultspec import parse_faults

    files, points = faulty_disk(parse_faults(config.faults), random.Random(config.seed))
    return Options(parts=parts, files=files, points=points)
