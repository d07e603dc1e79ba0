"""Changes of the cache in the form of vLLM's KV events, which the routers of the field read: msgpack, by the names of its documentation.

    batch          [seconds since 1970, [event, …], rank]
    BlockStored    block_hashes, parent_block_hash, token_ids, block_size, medium, group_idx, kv_cache_spec_kind, …
    BlockRemoved   block_hashes, medium, group_idx
    AllBlocksCleared

Group 0 is the KV of blocks. Group 1 are the states of recurrent layers, each at the end of the block that is named: a prompt can be resumed
only where both are.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from stepwell.cache.changes import Change
from stepwell.cache.moves import Tier
from stepwell.cache.tree import DIGEST

MEDIA = {Tier.DEVICE: "GPU", Tier.HOST: "CPU", Tier.DISK: "STORAGE"}
KV, STATES = 0, 1
"""Numbers of the groups."""
_KINDS = {KV: "full_attention", STATES: "mamba"}


class BlockStored(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Blocks that can be read in a medium from now on. A hash is the last eight bytes of a digest; each block has its extra keys."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[str, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Blocks that cannot be read there any more."""

    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Nothing that was told before holds any more."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """What one turn of the engine's loop has changed."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


_encoder = msgspec.msgpack.Encoder()


def encoded(changes: Iterable[Change], block: int, now: float) -> bytes:
    """A batch as it is sent. `now` in seconds since 1970; O(tokens of what was stored)."""
    return _encoder.encode(Batch(now, [event_of(change, block) for change in changes], 0))


def cleared(now: float) -> bytes:
    """A batch that says that nothing is cached."""
    return _encoder.encode(Batch(now, [AllBlocksCleared()], 0))


def event_of(change: Change, block: int) -> Event:
    """One change. `block`: tokens of a block."""
    group = STATES if change.rung else KV
    hashes, medium = _hashes(change.digests), MEDIA[change.tier]
    if not change.stored:
        return BlockRemoved(hashes, medium, group)
    keys: list[tuple[str, ...] | None] | None = None
    if change.salt and not change.above:
        keys = [(change.salt,), *[None] * (len(hashes) - 1)]
    parent = _hashes(change.above)[0] if change.above else None
    tokens = np.frombuffer(change.tokens, np.int32).tolist()
    return BlockStored(hashes, parent, tokens, block, None, medium, None, keys, group, _KINDS[group])


def _hashes(digests: bytes) -> list[int]:
    found: list[int] = np.frombuffer(digests, ">u8")[DIGEST // 8 - 1 :: DIGEST // 8].tolist()
    return found
