"""The external store of an engine: what its objects are called, what it is asked for, and the threads that ask it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from secrets import token_hex

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

LEAST = 8192
"""Tokens that a load must gain where `--min-load-tokens` does not say."""
_FORMAT = "stepobj1"


@dataclass(frozen=True, slots=True)
class ExternalTier:
    """An open store. `patience`: seconds after which a copy counts as failed."""

    backend: Backend
    names: Names
    least: int
    patience: float

    def ledger(self) -> External:
        """What the directory is to know of it."""
        return External(self.names, self.least, life=token_hex(16))

    def mover(self, gate: Gate, geometry: Geometry) -> ExternalMover:
        """The threads between the store and this engine's slots."""
        return ExternalMover(self.backend, gate, geometry.page_bytes, geometry.block, patience=self.patience)

    def rows(self) -> tuple[tuple[str, str, str], ...]:
        """Rows (name, value, note) for the startup table."""
        return (
            ("external", "LMCache", f"chunks of {self.names.chunk} tokens; asked where it may gain {self.least:,}"),
        )


def open_external(
    config: EngineConfig, geometry: Geometry, parts: Mapping[str, str], owned: ExitStack
) -> ExternalTier | None:
    """The external store that `config` asks for, to be closed with `owned`; None where it asks for none. Raises ConfigError.

    parts  all that bytes depend on, in words: two engines share objects where all of it is the same, whatever Python's hash seed
    """
    if config.kv_offload == "native":
        return None
    from stepwell.store.external.lmcache import LMCacheBackend, read_config

    settings = read_config()
    chunk = int(settings.chunk_size)
    if chunk < 1 or chunk % geometry.block:
        raise ConfigError(f"LMCACHE_CHUNK_SIZE {chunk} must be a multiple of --block-size {geometry.block}")
    own = {**parts, "object format": _FORMAT, "chunk": str(chunk)}
    space = fingerprint(own)
    pages = chunk // geometry.block, geometry.image_pages
    backend = LMCacheBackend(settings, f"stepwell-{space.hex()[:32]}", pages, geometry.page_bytes)
    owned.callback(backend.close)
    names = Names(blake3(b"names of external objects" + space).digest(), chunk)
    least = LEAST if config.min_load_tokens is None else config.min_load_tokens
    return ExternalTier(backend, names, least, config.load_timeout / 2 or 30.0)
