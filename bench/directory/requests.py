"""The trace: requests in order of arrival, the peers' own or made up in their shape."""

from __future__ import annotations

import random
import runpy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from stepwell.base.geometry import Ints

CASES = {"20": (20.0, 0.0), "8": (8.0, 0.0), "4": (4.0, 0.0), "4+16": (4.0, 16.0)}
"""GiB of device and host memory."""
Pair: TypeAlias = tuple[Ints, Ints]
"""A prompt and its answer."""


@dataclass(frozen=True, slots=True)
class Played:
    """A trace played once: µs of processor time a request, mean; share of prompt tokens that were reused."""

    us: float
    hit: float


def trace_of(harness: Path | None, most: int) -> list[Pair]:
    """The first requests of the harness's trace, or of one made up."""
    if harness is None:
        made = made_up()
    else:
        told = runpy.run_path(str(harness / "trace.py"), run_name="trace")["gen"]()
        made = ((np.asarray(r["prompt"], np.int32), np.asarray(r["out"], np.int32)) for r in told)
    return [pair for _, pair in zip(range(most), made, strict=False)]


def made_up(seed: int = 7) -> Iterator[Pair]:
    """A hundred conversations of ten turns over four system prompts, 24 at a time; some turns go back by one."""
    chance, draw = random.Random(seed), np.random.default_rng(seed)

    def text(tokens: int) -> Ints:
        return draw.integers(1, 150_000, tokens, dtype=np.int32)

    heads = [text(chance.randint(6000, 6700)) for _ in range(4)]
    lanes = [[chance.choice(heads)] for _ in range(24)]
    turns, begun = [0] * len(lanes), len(lanes)
    while lanes:
        i = chance.randrange(len(lanes))
        if len(lanes[i]) > 1 and chance.random() < 0.08:
            del lanes[i][-2:]
        lanes[i].append(text(int(chance.lognormvariate(6.2, 1.1)) + 40))
        answer = text(chance.choice((40, 80, 120, 250, 500)))
        yield np.concatenate(lanes[i]), answer
        lanes[i].append(answer)
        turns[i] += 1
        if turns[i] == 10 and begun < 100:
            lanes[i], turns[i], begun = [chance.choice(heads)], 0, begun + 1
        elif turns[i] == 10:
            del lanes[i], turns[i]
