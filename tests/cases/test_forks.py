"""A fork anywhere on a line whose KV is there costs little: rungs are thinned evenly, not from the front."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.reuse.plan import Plan
from stepwell.replay.eviction import POLICIES
from stepwell.testing.harness import Harness
from tests.amounts import long
from tests.cache.builders import join, numbers
from tests.cases.serving import ask, engine, rules

INTERVAL = 32


def small(policy: str, pages: int, host: int) -> Harness:
    """An engine with pages of 4 tokens, images of 3 pages, and a rung every 32 tokens."""
    return engine(replace(rules(pages, host, grid=8, image=3, interval=INTERVAL), policy=POLICIES[policy]), budget=128)


def resumes(harness: Harness, prompt: Ints) -> int:
    """Where `prompt` would resume now. Changes nothing."""
    plan = harness.loop.directory.plan("", prompt, harness.loop.costs)
    assert isinstance(plan, Plan)
    return plan.aim.boundary


def wholly_there(harness: Harness, line: Ints) -> bool:
    """Whether all KV of `line` is in some tier."""
    return harness.loop.directory.survey("", line).union >= len(line) // 4 * 4


def worst_fork(harness: Harness, line: Ints) -> int:
    """The most tokens of `line` that a fork at one of its eighths computes again."""
    forks = [len(line) * eighth // 8 for eighth in range(1, 8)]
    other = numbers(40, 4711) + 1000  # tokens of no line
    return max(at - resumes(harness, join(line[:at], other)) for at in forks)


def thinned(policy: str, pages: int, host: int, lines: list[Ints]) -> Harness:
    """The lines were asked for once each; nobody came back."""
    harness = small(policy, pages, host)
    for i, line in enumerate(lines):
        ask(harness, f"line {i}", line, 1)
    return harness


@pytest.mark.parametrize("policy", POLICIES)
def test_a_long_line_that_crowds_out_its_own_rungs_keeps_them_evenly(policy: str) -> None:
    """512 pages of KV and 64 rungs of 3 pages do not fit 600 pages: the first rungs of the line are as good as its last ones."""
    line = numbers(2048, 1)
    harness = thinned(policy, 600, 0, [line])
    assert wholly_there(harness, line)
    assert worst_fork(harness, line) <= 2048 // 8


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("pages", "host"), [(440, 0), (440, 500), (420, 60)])
def test_three_lines_that_just_fit(policy: str, pages: int, host: int) -> None:
    """With room for images and no KV in host (60 pages), what is copied down does not push out the rungs of a line that is there."""
    lines = [numbers(514, seed) for seed in range(3)]
    harness = thinned(policy, pages, host, lines)
    there = [line for line in lines if wholly_there(harness, line)]
    assert len(there) >= 2
    assert max(worst_fork(harness, line) for line in there) <= 514 // 8


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", [*range(3), *map(long, range(3, 12))])
def test_random_lines_in_random_memory(policy: str, seed: int) -> None:
    """Host is absent, tight or ample."""
    draw = np.random.default_rng(seed)
    lines = [numbers(int(draw.integers(INTERVAL * 8, 700)), 100 * seed + i) for i in range(6)]
    kv = sum(len(line) for line in lines) // 4
    pages = max(260, int(kv * draw.uniform(0.4, 1.2)))
    harness = thinned(policy, pages, int(draw.choice([0, kv // 2, 2 * kv])), lines)
    there = [line for line in lines if wholly_there(harness, line)]
    assert there, "the last line fits"
    for line in there:
        assert worst_fork(harness, line) <= len(line) // 8


@pytest.mark.parametrize("policy", POLICIES)
def test_a_line_that_grows_turn_by_turn_stays_covered(policy: str) -> None:
    line = numbers(1600, 5)
    harness = small(policy, 520, 0)
    for turn, end in enumerate(range(64, 1601, 48)):
        ask(harness, f"turn {turn}", line[:end], 1)
        assert wholly_there(harness, line[:end])
        assert worst_fork(harness, line[:end]) <= max(end // 8, INTERVAL)
