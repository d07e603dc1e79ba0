"""Trees made to measure, and the sizes that everything here has in common."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepwell.base.geometry import Geometry, Ints
from stepwell.base.units import ceil_div
from stepwell.cache.config import CacheConfig
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.publish import leave_rung, publish
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import RungKind

BLOCK, GRID = 16, 64
NODE = 1664
"""Tokens of a turn: a prompt of 200,000 tokens then walks 120 nodes."""
TURNS = 20
KV_BYTES = 24_576
IMAGE_BYTES = 36 * (32 * 128 * 128 * 2 + 8192 * 3 * 2)
"""Bytes of KV a token, and of a rung's image: Qwen3-Next-80B in bf16."""


def filled(nodes: int, turn: int = GRID, spare: int = 4096) -> Directory:
    """A tree of at least so many nodes of `turn` tokens and a rung, in conversations of twenty turns, with `spare` pages left."""
    geometry = Geometry(BLOCK, GRID, page_bytes=BLOCK * KV_BYTES, image_bytes=BLOCK * KV_BYTES)
    conversations = ceil_div(nodes, TURNS)
    directory = Directory(CacheConfig(geometry, device_pages=conversations * TURNS * (turn // BLOCK + 1) + spare))
    draw = np.random.default_rng(0)
    for _ in range(conversations):
        tokens = draw.integers(0, 2**31 - 1, TURNS * turn, dtype=np.int32)
        grow_path(directory, tokens, range(turn, TURNS * turn + 1, turn))
    return directory


def grow_path(directory: Directory, tokens: Ints, ends: Sequence[int]) -> None:
    """Cache `tokens` with a rung at each of `ends`."""
    lease = directory.lease(directory.tree.root("", 0.0).kv, Tier.DEVICE)
    table = BlockTable(np.empty(0, np.int32))
    for end in ends:
        directory.grow(table, end // BLOCK - len(table))
        publish(directory, lease, tokens, end, table, 0.0)
        leave_rung(directory, lease, end, directory.pools[Tier.DEVICE].take(1), RungKind.PROMPT_END, 0.0)
    directory.release(lease)
    directory.close(table)
