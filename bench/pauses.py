"""How long the garbage collector stops an engine whose prefix tree is large.

    python bench/pauses.py --nodes 100000

Grows a tree to so many nodes, then lets prompts come and go, once under the collector's defaults and once as an engine process sets it
(`stepwell/engine/process/garbage.py`). Ends with one line of JSON: for each the longest pause in ms and the collections by
generation, and the objects that only a collection would have freed, of all that went (0: nothing in the tree keeps itself alive).
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from stepwell.base.clock import WallClock
from stepwell.base.geometry import Geometry
from stepwell.cache.config import CacheConfig
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import free_pages
from stepwell.cache.moves import Tier
from stepwell.cache.publish import leave_rung, publish
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import RungKind
from stepwell.engine.process.garbage import Garbage

BLOCK = 16
TOKENS = 4 * BLOCK


@dataclass(slots=True)
class Pauses:
    """What the collector has done: pauses in seconds, and how many by generation."""

    longest: float = 0.0
    count: Counter[int] = field(default_factory=Counter)
    _began: float = 0.0

    def heard(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
            return
        self.longest = max(self.longest, time.perf_counter() - self._began)
        self.count[info["generation"]] += 1


def keep(directory: Directory, number: int) -> None:
    """Cache a prompt of its own with a rung in its middle and one at its end: two nodes."""
    tokens = np.full(TOKENS, number % 7, np.int32)
    tokens[:4] = number // 10**6, number // 1000 % 1000, number % 1000, 1
    free_pages(directory, 6, force=True)
    root = directory.tree.root("", float(number))
    lease = directory.lease(root.kv, Tier.DEVICE)
    table = BlockTable(np.empty(0, np.int32))
    directory.grow(table, TOKENS // BLOCK)
    for end in (TOKENS // 2, TOKENS):
        publish(directory, lease, tokens, end, table, float(number))
        leave_rung(directory, lease, end, directory.pools[Tier.DEVICE].take(1), RungKind.PROMPT_END, float(number))
    directory.release(lease)
    directory.close(table)


def turnover(directory: Directory, first: int, prompts: int) -> Pauses:
    """Let so many new prompts come, for which old ones go."""
    pauses = Pauses()
    gc.callbacks.append(pauses.heard)
    for number in range(first, first + prompts):
        keep(directory, number)
    gc.callbacks.remove(pauses.heard)
    return pauses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--prompts", type=int, default=30_000, help="that come while pauses are measured")
    options = parser.parse_args()
    pages = options.nodes // 2 * (TOKENS // BLOCK + 2)
    directory = Directory(CacheConfig(Geometry(BLOCK, BLOCK, 64, 64), pages, ghost_blocks=0))
    for number in range(options.nodes // 2):
        keep(directory, number)
    before = turnover(directory, options.nodes // 2, options.prompts)
    Garbage(WallClock())
    after = turnover(directory, options.nodes // 2 + options.prompts, options.prompts)
    gc.unfreeze()
    told = {
        "nodes": sum(1 for _ in directory.tree.nodes()),
        "pause_ms": {"default": round(1000 * before.longest, 1), "engine": round(1000 * after.longest, 1)},
        "collections": {"default": dict(before.count), "engine": dict(after.count)},
        "only_by_collection": gc.collect(),
    }
    print(json.dumps(told))


if __name__ == "__main__":
    main()
