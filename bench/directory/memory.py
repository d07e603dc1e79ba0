"""How much memory a directory takes: what a fresh process grows by while it fills one."""

from __future__ import annotations

import gc
import multiprocessing
import resource
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.progress import Progress
from rich.table import Table

from directory.made import BLOCK, GRID, NODE, filled


@dataclass(frozen=True, slots=True)
class Memory:
    """`taken` bytes by a tree of `nodes`, each of `blocks` blocks with a rung."""

    nodes: int
    blocks: int
    taken: int

    @property
    def mib_per_million_nodes(self) -> float:
        return self.taken / self.nodes * 1e6 / 2**20

    @property
    def mib_per_million_blocks(self) -> float:
        return self.mib_per_million_nodes / self.blocks


def measure_memory(nodes: Sequence[int], progress: Progress) -> list[Memory]:
    """Trees of short turns (the bytes of a node) and of long ones (those of its tokens), each in a process of its own."""
    sizes = [(count, GRID) for count in nodes if count >= 10_000] + [(max(10_000, min(nodes)), NODE)]
    out = []
    for count, turn in progress.track(sizes, description="memory"):
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
            out.append(Memory(count, turn // BLOCK, process.submit(grown_by, count, turn).result()))
    return out


def grown_by(nodes: int, turn: int) -> int:
    """Bytes that this process grows by."""
    filled(20, turn)  # what the libraries take once is none of the tree's
    before = resident()
    directory = filled(nodes, turn, spare=0)
    after = resident()
    assert directory.items >= 2 * nodes, "a node and its rung each count as one"
    return after - before


def resident() -> int:
    """Bytes of memory that this process has now. Linux alone: the peak that `resource` tells may be the parent's."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def memory_table(memory: Sequence[Memory]) -> Table:
    table = Table(title="Memory of a directory, every node with a rung")
    for column in ("nodes", "blocks a node", "MiB", "MiB a million nodes", "MiB a million blocks"):
        table.add_column(column, justify="right")
    for m in memory:
        per = (f"{m.mib_per_million_nodes:,.0f}", f"{m.mib_per_million_blocks:,.1f}")
        table.add_row(f"{m.nodes:,}", f"{m.blocks:,}", f"{m.taken / 2**20:,.1f}", *per)
    return table
