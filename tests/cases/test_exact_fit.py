"""Admissions where the room is just enough, or a page short of it."""

from __future__ import annotations

import pytest

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.testing.harness import Harness
from tests.cache.builders import forget, join, numbers
from tests.cases.serving import ask, copy_down, engine, outcome, rules, served, submit

PROMPT = numbers(40)
PAGES = 40


def shelf(hit: int, whole: bool, own_image: bool) -> Harness:
    """On the device: KV of [0, hit) and the image at 32. In host: KV of [0, 32), and both images. `own_image`: the hit's
    image is on the device too."""
    harness = engine(rules(PAGES, image=2, whole=whole, clean=0.0), budget=16, seqs=3)
    ask(harness, "first", PROMPT[: hit + 1], 1)
    ask(harness, "second", PROMPT[:33], 1)
    copy_down(harness)
    forget(harness.loop.directory, PROMPT, Tier.DEVICE, hit, () if own_image else (hit,))
    return harness


@pytest.mark.parametrize("whole", [False, True], ids=["native", "whole-chunk"])
@pytest.mark.parametrize("reader", [False, True], ids=["nobody", "reader"])
@pytest.mark.parametrize("own_image", [False, True], ids=["image-in-host", "image-here"])
def test_whatever_is_left_of_the_device_an_admission_is_whole_or_waits(
    whole: bool, reader: bool, own_image: bool
) -> None:
    """A neighbour's prompt holds all but `left` pages; the boundary's own image is among what might be evicted. The hit is on
    the chunk grid, or not; its last page is read by another request, or idle."""
    for hit in (16, 20):
        starts, weakened = set(), False
        for left in range(12):
            harness = shelf(hit, whole, own_image)
            free = PAGES - harness.loop.directory.use(Tier.DEVICE).cached
            if reader:
                submit(harness, "reader", PROMPT[: hit + 3], 6)
                harness.step()
            submit(harness, "neighbour", numbers(4 * (free - left) - 1, 7), 1, write_cache=False)
            harness.step()
            submit(harness, "a", PROMPT, 1)
            harness.drain()
            served(harness, "neighbour", "a")
            how = outcome(harness, "a")
            starts.add((how.boundary, how.reason))
            weakened |= how.fallback_weakened
            admitted = [told.outcome for told in harness.told.values() if told.outcome is not None]
            assert how.loaded == (how.host > 0 or how.state_tier is Tier.HOST), "a skip is not a load"
            assert harness.stats().tally.boundaries == sum(o.loaded for o in admitted)
        assert starts == {(32, Reason.COMPLETE)} | skipped(hit, whole, own_image)
        assert weakened or not own_image, "the hit's own image pays for the load before the load is skipped"


def skipped(hit: int, whole: bool, own_image: bool) -> set[tuple[int, Reason]]:
    """How it starts where only the load does not fit: at the hit, for one reason."""
    if whole and hit % 16:
        return {(hit, Reason.PARTIAL_CHUNK_NO_ROOM)}
    return set() if own_image else {(hit, Reason.NO_ROOM)}


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST])
def test_a_prompt_that_is_cached_to_its_last_token_computes_that_token(tier: Tier) -> None:
    """Lengths on the block grid, on the rung grid and on the chunk grid, and those beside them. A longer prompt has left a rung at
    the very end of this one, where that is on the grid."""
    for length in (4, 8, 9, 12, 16, 17, 32, 48):
        harness = engine(rules(grid=8, clean=1.0))
        prompt = numbers(length)
        ask(harness, "first", prompt, 20)
        ask(harness, "longer", join(prompt, numbers(1, 2)), 1)
        if tier is Tier.HOST:
            harness.flush(Tier.DEVICE, demote_first=True)
        again = ask(harness, "again", prompt, 20)
        assert again.boundary == (length - 1) // 8 * 8
        assert again.host == (again.boundary if tier is Tier.HOST else 0)
