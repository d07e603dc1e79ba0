"""Measures how fast this machine computes prompts and copies, at the start of an engine, on pages and slots that are not in use yet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from stepwell.base.clock import WallClock
from stepwell.base.geometry import Ints
from stepwell.base.units import floor_to
from stepwell.cache.config import Costs
from stepwell.cache.moves import Extent, LiveState, Move, Tier
from stepwell.engine.worker.sizes import Sizes
from stepwell.sched.request import SamplingParams
from stepwell.sched.step import Fresh, FromImage, Runner, Sample, StateStart, Step, Work
from stepwell.store.mover import CopyMover

_FEW, _MANY = 512, 8192
"""Tokens of a short and of a long part of a prompt. A GPU takes the short one in little more than the time of its launches."""
_FAR = 65_536
"""Context at which attention's share of prefill is measured on a quick machine, where memory and model allow it."""
_NEAR = 4_096
"""The same on a slow one."""
_QUICK = 0.1  # s
_TIMES = 3  # the first pass also warms up; a busy machine is better judged by its best moment
_COPY_BYTES = 64 << 20
_COPY_PAGES = 16  # in a move: what a chunk is


Agree: TypeAlias = Callable[[float], float]
"""Makes one value of what each rank has measured, so that all go on in the same way."""


def measure_prefill(costs: Costs, runner: Runner, sizes: Sizes, most: int, agree: Agree) -> Costs:
    """`costs` with the speed of prefill in steps of at most `most` tokens.

    t = fixed + n / rate + a · n · (start + n/2), from parts of a prompt that are short, long, and far from its beginning.
    A slow machine computes no long part, so that its start does not take long: there the launches are little of a short one.
    """
    capacity = min(sizes.pages * sizes.geometry.block, sizes.max_model_len)
    few = min(_FEW, most, capacity)
    probe = _Probe(runner, sizes, agree)
    short = probe.seconds(0, few, Fresh())
    quick = short < _QUICK
    many = min(_MANY, most, capacity) if quick else few
    if many < 2 * few:
        per_pair = _per_pair(probe, few // 4, min(_NEAR, capacity))
        rest = max(short - per_pair * few * few / 2, short / 10)
        return replace(costs, prefill_tokens_per_s=few / max(rest, 1e-6), attention_s_per_pair=per_pair)
    long = probe.seconds(0, many, Fresh())
    per_pair = _per_pair(probe, many, min(_FAR, capacity), long)
    grown = long - short - per_pair * (many * many - few * few) / 2
    each = max(grown, (long - short) / 10, 1e-6) / (many - few)
    fixed = max(0.0, short - each * few - per_pair * few * few / 2)
    return replace(costs, prefill_tokens_per_s=1 / each, attention_s_per_pair=per_pair, prompt_step_s=fixed)


def _per_pair(probe: _Probe, count: int, far: int, near: float | None = None) -> float:
    """Seconds of attention for each pair of tokens: `count` tokens that end at `far` against as many at the beginning, which take
    `near`. 0 where they would not lie far apart."""
    sizes = probe.sizes
    start = floor_to(max(0, far - count), sizes.geometry.rung_grid)
    if not count or start < 2 * count:
        return 0.0
    least = near if near is not None else probe.seconds(0, count, Fresh())
    # a state can stand so far in only by coming from an image: whatever those pages hold
    image = np.arange(sizes.pages - sizes.geometry.image_pages, sizes.pages, dtype=np.int32)
    return max(0.0, probe.seconds(start, count, FromImage(image)) - least) / (count * start)


@dataclass(frozen=True, slots=True)
class _Probe:
    runner: Runner
    sizes: Sizes
    agree: Agree

    def seconds(self, start: int, count: int, state: StateStart) -> float:
        """The least time that tokens [start, start + count) of a prompt take."""
        pages = np.arange(self.sizes.geometry.pages_for(start + count), dtype=np.int32)
        tokens = np.arange(count, dtype=np.int32) % 64
        probe = Work("probe", 0, 0, start, tokens, pages, 0, state, (), Sample(SamplingParams(), 0))
        clock, seconds = WallClock(), []
        for _ in range(_TIMES):
            began = clock.now()
            self.runner.launch(Step((probe,))).result()
            seconds.append(clock.now() - began)
        return self.agree(min(seconds))


def measure_copies(costs: Costs, mover: CopyMover, sizes: Sizes, slots: int) -> Costs:
    """`costs` with the speed of loads from host, over its first `slots`: pages go down and come up again, in moves of a chunk each.

    Then a live state is loaded from them: on a GPU, what a process does for the first time takes it tens of milliseconds, which the first
    prompt that resumes from host would have to wait.
    """
    count = min(sizes.pages, slots, max(1, _COPY_BYTES // sizes.geometry.page_bytes))
    if not count:
        return costs
    every = np.arange(count, dtype=np.int32)
    _copied(mover, _chunks(Tier.DEVICE, Tier.HOST, every))
    took = _copied(mover, _chunks(Tier.HOST, Tier.DEVICE, every))
    if sizes.geometry.image_pages:
        image = Extent(Tier.HOST, np.resize(every, sizes.geometry.image_pages))  # any bytes will do
        _copied(mover, [Move(-1, "image", image, LiveState(0), 0)])
    if took is None:
        return costs
    device, _, disk = costs.bytes_per_s
    return replace(costs, bytes_per_s=(device, count * sizes.geometry.page_bytes / max(took, 1e-6), disk))


def _chunks(source: Tier, target: Tier, slots: Ints) -> list[Move]:
    """A move for each chunk of `slots`, to slots of the same numbers."""
    parts = [slots[at : at + _COPY_PAGES] for at in range(0, len(slots), _COPY_PAGES)]
    return [Move(-1 - i, "kv", Extent(source, part), Extent(target, part), 0) for i, part in enumerate(parts)]


def _copied(mover: CopyMover, moves: list[Move]) -> float | None:
    """Carry out these moves; the seconds that their bytes took, None if one of them failed."""
    mover.start(moves)
    mover.drain()
    reports = mover.poll()
    return sum(report.seconds for report in reports) if all(report.ok for report in reports) else None
