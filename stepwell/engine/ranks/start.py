"""From flags to the ranks of an engine, and what control has of them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from stepwell.cache.disk.archive import Archive
from stepwell.cache.disk.names import Names
from stepwell.engine.compute.sampler import Masks
from stepwell.engine.config import EngineConfig
from stepwell.engine.disk_tier import CHUNK, DiskTier, budget_of, layout_of
from stepwell.engine.logs import form_in_use
from stepwell.engine.phases import Phases
from stepwell.engine.ranks.catalogue import JointCatalogue
from stepwell.engine.ranks.processes import RankProcesses
from stepwell.engine.ranks.shared import RanksCounts, RanksDisk, RanksMover, RanksPinning, RanksRunner, RanksStores
from stepwell.engine.ranks.wire import CATALOGUE, encode
from stepwell.engine.worker.build import Frame
from stepwell.engine.worker.sizes import Sizes
from stepwell.engine.workers import Workers
from stepwell.store.disk.folder import names_key, prepare, read_key
from stepwell.store.external.joint import JointStore

_REST = 0.5
"""Seconds that an idle engine may not look after its ranks."""


def take_folder(config: EngineConfig, frame: Frame, parts: Mapping[str, str], owned: ExitStack) -> bytes | None:
    """Lock the folder of the disk cache, in which each rank has one of its own; returns the key of all names. None without a disk cache.
    `parts`: the identity of what all ranks have.

    Raises ConfigError.
    """
    if config.disk_cache is None:
        return None
    path = Path(config.disk_cache.path)
    lock = prepare(path)
    owned.callback(lock.close)
    return names_key(read_key(path), layout_of(frame.geometry, parts).fingerprint)


def start_ranks(
    config: EngineConfig, frame: Frame, masks: Masks, key: bytes | None, owned: ExitStack, phases: Phases
) -> tuple[Workers, DiskTier[RanksDisk] | None]:
    """Start the ranks; they end with `owned`. `key` is that of `take_folder`. Raises ConfigError, or RankError where one fails."""
    level = logging.getLogger("stepwell").getEffectiveLevel()
    processes = owned.enter_context(RankProcesses(config, level, form_in_use()))
    with ExitStack() as phase:

        def tell(name: str) -> None:
            phase.close()
            phase.enter_context(phases(name))

        tell("starting ranks")
        processes.start(tell)
    first = processes.ready[0]
    slowest = min(processes.ready, key=lambda ready: ready.costs.bytes_per_s[1])
    mover = RanksMover(processes)
    workers = Workers(
        runner=RanksRunner(processes, masks),
        mover=mover,
        sizes=Sizes(frame.geometry, first.pages, first.slots, first.max_model_len),
        costs=slowest.costs,
        kernels=first.kernels,
        copies=first.copies,
        pinning=None if first.state.host_ready is None else RanksPinning(processes),
        counts=RanksCounts(processes, mover),
        rest=_REST,
        external=None if config.kv_offload == "native" else _external(config, processes),
    )
    return workers, _disk(config, frame, processes, key)


def _external(config: EngineConfig, processes: RankProcesses) -> JointStore:
    return JointStore(RanksStores(processes), len(processes.ready) if config.lmcache_lookup == "all" else 1)


def _disk(
    config: EngineConfig, frame: Frame, processes: RankProcesses, key: bytes | None
) -> DiskTier[RanksDisk] | None:
    if key is None:
        return None
    catalogue = JointCatalogue(
        [ready.dormant for ready in processes.ready], lambda filing: processes.send(CATALOGUE, encode(filing))
    )
    archive = Archive(Names(key, CHUNK), catalogue, budget_of(config, frame.geometry))
    return DiskTier(RanksDisk(processes), archive, min(ready.disk_speed for ready in processes.ready))
