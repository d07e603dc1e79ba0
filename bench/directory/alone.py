"""The directory alone: prompts of many lengths and hits against trees of many sizes, called as the scheduler calls it."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from rich.progress import Progress
from rich.table import Table

from directory.made import BLOCK, GRID, NODE, filled, grow_path
from stepwell.base.geometry import Ints
from stepwell.base.units import ceil_div, floor_to
from stepwell.cache.config import Costs
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.publish import leave_rung, publish
from stepwell.cache.reuse.admission import Runnable, commit
from stepwell.cache.reuse.plan import Plan
from stepwell.cache.tree import RungKind

HITS = (0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Case:
    """A tree of `nodes`, prompts of `tokens` of which the first `hit` are cached."""

    nodes: int
    tokens: int
    hit: float


@dataclass(frozen=True, slots=True)
class Times:
    """µs of processor time, each the least of all rounds: survey, plan and commit; the rest made findable, with a rung; letting go."""

    admit: float
    publish: float
    release: float

    @property
    def whole(self) -> float:
        return self.admit + self.publish + self.release


def measure_alone(lengths: Sequence[int], nodes: Sequence[int], rounds: int, progress: Progress) -> dict[Case, Times]:
    """Every length and hit in a tree of every size."""
    out: dict[Case, Times] = {}
    task = progress.add_task("the directory alone", total=len(nodes) * len(lengths))
    for count in nodes:
        # what one round adds stays: an image, and the blocks that were not cached
        spare = sum(2 * (ceil_div(tokens, BLOCK) + 64) * (1 + rounds * len(HITS)) for tokens in lengths)
        directory = filled(count, spare=spare)
        gc.collect()
        gc.freeze()
        for tokens in lengths:
            draw = np.random.default_rng(tokens)
            known = draw.integers(0, 2**31 - 1, tokens, dtype=np.int32)
            grow_path(directory, known, range(NODE, tokens + 1, NODE) or (floor_to(tokens, GRID),))
            for hit in HITS:
                out[Case(count, tokens, hit)] = serve_some(directory, known, hit, rounds, draw)
            progress.advance(task)
        gc.unfreeze()
    return out


def serve_some(directory: Directory, known: Ints, hit: float, rounds: int, draw: np.random.Generator) -> Times:
    """Prompts of the length of `known` whose first part is cached, one after another."""
    same = int(len(known) * hit)
    taken = []
    for _ in range(rounds):
        prompt = known.copy()
        prompt[same:] = draw.integers(0, 2**31 - 1, len(known) - same, dtype=np.int32)
        taken.append(serve(directory, prompt))
    return Times(*(1e6 * min(each) for each in zip(*taken, strict=True)))


def serve(directory: Directory, prompt: Ints) -> tuple[float, float, float]:
    """One prompt; s for its admission, publication and release."""
    began = time.thread_time()
    plan = directory.plan("", prompt, Costs())
    assert isinstance(plan, Plan), "there is room"
    state = commit(directory, plan, "r", prompt, 0, 0.0)
    admitted = time.thread_time()
    assert isinstance(state, Runnable), "nothing is to be loaded"
    end = floor_to(len(prompt) - 1, GRID)
    directory.grow(state.table, max(0, ceil_div(len(prompt), BLOCK) - len(state.table)))
    publish(directory, state.path, prompt, max(end, state.path.item.node.end), state.table, 0.0)
    leave_rung(directory, state.path, end, directory.pools[Tier.DEVICE].take(1), RungKind.PROMPT_END, 0.0)
    published = time.thread_time()
    if state.image is not None:
        directory.release(state.image)
    directory.release(state.path)
    directory.close(state.table)
    return admitted - began, published - admitted, time.thread_time() - published


def alone_table(alone: dict[Case, Times], rounds: int) -> Table:
    columns = ("nodes", "prompt", "cached", "admission", "publish", "release", "all")
    table = Table(title=f"The directory alone, µs of processor time, least of {rounds} rounds")
    for column in columns:
        table.add_column(column, justify="right")
    for case, t in alone.items():
        times = (f"{value:,.0f}" for value in (t.admit, t.publish, t.release, t.whole))
        table.add_row(f"{case.nodes:,}", f"{case.tokens:,}", f"{case.hit:.0%}", *times)
    return table
