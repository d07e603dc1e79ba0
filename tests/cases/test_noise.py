"""What was asked for twice is found again after much that came once, as long as a tier below has room for it."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome
from stepwell.testing.faults import FaultPlan, Where
from stepwell.testing.harness import Harness
from tests.cache.builders import numbers
from tests.cases.serving import DEAR, engine, outcome, rules, submit

BLOCK = GRID = 4
TIMES = 10
"""Noise is so many times as large as host."""


def ask_at_once(harness: Harness, name: str, prompt: Ints) -> AdmissionOutcome:
    """Serve one request and go on with the next: nothing is ever idle."""
    submit(harness, name, prompt, 2)
    while harness.told[name].finished is None:
        harness.step()
    return outcome(harness, name)


def after_noise(harness: Harness, prompt: Ints, most: int, total: int, seed: int = 7) -> AdmissionOutcome:
    """Ask twice, then for `total` pages of other prompts of up to `most` pages each, then once more."""
    rng = random.Random(seed)
    ask_at_once(harness, "first", prompt)
    ask_at_once(harness, "second", prompt)
    asked = 0
    while asked < total:
        pages = rng.randint(1, most)
        ask_at_once(harness, f"noise {asked}", numbers(BLOCK * pages - rng.randrange(BLOCK), 1000 + asked))
        asked += pages
    return ask_at_once(harness, "third", prompt)


@settings(max_examples=10, deadline=None, derandomize=True)
@given(
    host=st.integers(24, 60),
    part=st.floats(0.02, 0.5),
    spare=st.integers(0, 30),
    rest=st.integers(0, BLOCK - 1),
    image=st.integers(1, 3),
    clean=st.sampled_from([0.0, 0.05, 0.2, 0.6]),
    polls=st.integers(0, 6),
)
@pytest.mark.long
def test_prompts_up_to_half_of_host_outlive_noise_of_ten_times_host(
    host: int, part: float, spare: int, rest: int, image: int, clean: float, polls: int
) -> None:
    """However small the clean share and however slow the disk: a copy down waits for the write that makes room for it."""
    pages = max(2, int(host * part))
    most = max(2, host // 2)
    cache = rules(most + 2 * image + 1 + spare, host, grid=GRID, image=image, clean=clean, disk=2 * TIMES * host + 200)
    slow = FaultPlan().delay(Where(target=Tier.DISK), polls=polls)
    harness = engine(cache, slow, costs=DEAR)
    prompt = numbers(BLOCK * pages - rest, 1)
    found = after_noise(harness, prompt, most, TIMES * host)
    assert found.cached == (len(prompt) - 1) // GRID * GRID, harness.stats().tiers


@pytest.mark.parametrize("clean", [0.0, 0.05])
def test_without_a_host_tier_the_device_waits_for_the_disk(clean: float) -> None:
    harness = engine(rules(40, 0, grid=GRID, image=2, clean=clean, disk=1000), costs=DEAR)
    assert after_noise(harness, numbers(47, 1), 20, 400).cached == 44
