"""The external store of an engine: what its objects are called, what it is asked for, and the threads of each rank that ask it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from secrets import token_hex
from threading import Thread
from typing import Any

from blake3 import blake3

from stepwell.base.errors import ConfigError
from stepwell.base.geometry import Geometry
from stepwell.cache.disk.names import Names
from stepwell.cache.external.ledger import External
from stepwell.engine.config import EngineConfig
from stepwell.model.identity import fingerprint
from stepwell.store.disk.gate import Gate
from stepwell.store.external.backend import Backend
from stepwell.store.external.mover import ExternalMover

log = logging.getLogger(__name__)

LEAST = 8192
"""Tokens that a load must gain where `--min-load-tokens` does not say."""
_FORMAT = "stepobj1"
_CLOSING = 5.0
"""Seconds that the store may take to close."""


@dataclass(frozen=True, slots=True)
class ExternalRules:
    """What control and all ranks know alike of an external store, before any opens it.

    settings  LMCache's own            space  names all that bytes depend on        names  of objects, the same on all ranks
    least     tokens that a load must gain
    """

    settings: Any
    space: str
    names: Names
    least: int

    @classmethod
    def of(cls, config: EngineConfig, geometry: Geometry, parts: Mapping[str, str]) -> ExternalRules | None:
        """Those that `config` asks for; None where it asks for no such store. Raises ConfigError.

        parts  all that bytes depend on, in words: two engines share objects where all of it is the same, whatever Python's hash seed
        """
        if config.kv_offload == "native":
            return None
        from stepwell.store.external.lmcache import read_config

        settings = read_config()
        chunk = int(settings.chunk_size)
        if chunk < 1 or chunk % geometry.block:
            raise ConfigError(f"LMCACHE_CHUNK_SIZE {chunk} must be a multiple of --block-size {geometry.block}")
        space = fingerprint({**parts, "object format": _FORMAT, "chunk": str(chunk)})
        names = Names(blake3(b"names of external objects" + space).digest(), chunk)
        least = LEAST if config.min_load_tokens is None else config.min_load_tokens
        return cls(settings, f"stepwell-{space.hex()[:32]}", names, least)

    def ledger(self) -> External:
        """What the directory is to know of it."""
        return External(self.names, self.least, life=token_hex(16))

    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """Rows (name, value, note) for the startup table."""
        return (
            ("external", "LMCache", f"chunks of {self.names.chunk} tokens; asked where it may gain {self.least:,}"),
        )


@dataclass(frozen=True, slots=True)
class ExternalTier:
    """The store as one rank has opened it. `patience`: seconds after which a copy counts as failed."""

    backend: Backend
    patience: float
    rank: int

    @classmethod
    def opened(
        cls, rules: ExternalRules, config: EngineConfig, geometry: Geometry, owned: ExitStack, rank: int = 0
    ) -> ExternalTier:
        """Open this rank's part of the store, to be closed with `owned`. Raises ConfigError."""
        from stepwell.store.external.lmcache import LMCacheBackend

        pages = rules.names.chunk // geometry.block, geometry.image_pages
        ranks = config.tensor_parallel_size
        backend = LMCacheBackend(rules.settings, rules.space, pages, geometry.page_bytes, rank, ranks)
        owned.callback(close_in_time, backend)
        return cls(backend, config.load_timeout / 2 or 30.0, rank)

    def mover(self, gate: Gate, geometry: Geometry) -> ExternalMover:
        """The threads between the store and this rank's slots."""
        return ExternalMover(
            self.backend, gate, geometry.page_bytes, geometry.block, patience=self.patience, rank=self.rank
        )


def close_in_time(backend: Backend, seconds: float = _CLOSING) -> bool:
    """Close a store, which may hang; after `seconds` it is left to itself, in a thread that keeps no process alive. Whether it has
    closed."""
    thread = Thread(target=backend.close, name="stepwell-external-close", daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        log.warning("the external store did not close within %g s: it is left to itself", seconds)
    return not thread.is_alive()
