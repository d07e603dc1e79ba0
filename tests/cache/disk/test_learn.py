"""What an earlier engine left on disk comes back as far as a prompt matches it, and no further."""

from __future__ import annotations

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.disk.learn import learn_from_disk
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Request, SamplingParams
from stepwell.testing.harness import Harness
from tests.cache.builders import join, numbers
from tests.cases.serving import DEAR, rules

LONG = numbers(199)


def left_on_disk(*prompts: Ints, disk: int = 300) -> Harness:
    """A new engine, after another has served these prompts and ended."""
    cache = rules(100, 200, disk=disk, grid=8, interval=64)
    harness = Harness(cache, SchedConfig(max_num_seqs=2, max_num_batched_tokens=64), costs=DEAR)
    for number, prompt in enumerate(prompts):
        harness.submit(Request(f"{number}", prompt, SamplingParams(max_tokens=1)))
        harness.drain()
    harness.restart()
    return harness


def remember(harness: Harness, prompt: Ints, salt: str = "") -> int:
    count = learn_from_disk(harness.loop.directory, salt, prompt, 1.0)
    harness.step()  # the orders reach the shelf, and every law is checked
    return count


def reach(harness: Harness, prompt: Ints) -> tuple[int, list[int]]:
    """Tokens of the prompt whose KV is known of, and where rungs are."""
    found = harness.loop.directory.survey("", prompt)
    return found.union, [resume_point.position for resume_point in found.resume_points]


def test_a_path_comes_back_whole_and_in_few_nodes() -> None:
    harness = left_on_disk(LONG)
    assert remember(harness, LONG) > 12, "a record for each chunk of 16"
    assert reach(harness, LONG) == (192, [64, 128, 192])
    assert len(list(harness.loop.directory.tree.nodes())) == 3
    assert remember(harness, LONG) == 0 == harness.shelf.pages


def test_nothing_comes_back_that_the_prompt_does_not_match() -> None:
    harness = left_on_disk(LONG)
    other = join(LONG[:100], numbers(60, 9))
    remember(harness, other)
    assert reach(harness, other) == (96, [64]), "the record of [96, 112) holds other tokens"
    assert harness.shelf.pages > 0
    remember(harness, LONG)
    assert reach(harness, LONG) == (192, [64, 128, 192]) and harness.shelf.pages == 0


def test_a_prompt_that_ends_inside_a_record_leaves_it_where_it_is() -> None:
    harness = left_on_disk(LONG)
    remember(harness, LONG[:40])
    assert reach(harness, LONG[:40]) == (32, [])


def test_a_fork_that_was_cut_comes_back_on_both_sides() -> None:
    """The second prompt leaves the first in the middle of a record: that one has been divided."""
    fork = join(LONG[:100], numbers(91, 9))
    harness = left_on_disk(LONG, fork)
    remember(harness, fork)
    assert reach(harness, fork)[0] == 184 and 184 in reach(harness, fork)[1]
    remember(harness, LONG)
    assert reach(harness, LONG)[0] == 192 and harness.shelf.pages == 0


def test_what_is_known_already_is_given_the_copy_on_disk() -> None:
    """The prompt was computed anew before anyone asked the disk: the copies there are found beside those on the device."""
    harness = left_on_disk(LONG)
    harness.submit(Request("again", LONG, SamplingParams(max_tokens=1), read_cache=False))
    while harness.told["again"].finished is None:
        harness.step()
    written = len(harness.shelf.records)
    remember(harness, LONG)
    harness.drain()
    assert written == 0 and harness.shelf.pages == 0
    assert sum(len(r.slots) for r in harness.shelf.records.values() if r.what == "kv") == 48, "nothing is written twice"


def test_an_idle_engine_looks_before_it_writes() -> None:
    harness = left_on_disk(LONG)
    before = {(r.name, r.what) for r in harness.shelf.dormant.values()}
    harness.submit(Request("again", LONG, SamplingParams(max_tokens=1), read_cache=False))
    harness.drain()
    after = [(r.name, r.what) for r in harness.shelf.records.values()]
    assert before <= set(after) and len(set(after)) == len(after) and not harness.shelf.dormant


def test_salts_share_nothing() -> None:
    harness = left_on_disk(LONG)
    assert remember(harness, LONG, salt="other") == 0
    assert not harness.loop.directory.tree.roots, "asking leaves nothing behind"


def test_the_least_recently_used_of_what_nobody_asked_for_makes_room_first() -> None:
    old, new = numbers(63, 1), numbers(63, 2)
    harness = left_on_disk(old, new, disk=50)
    assert harness.shelf.pages == 30
    harness.submit(Request("more", numbers(100, 3), SamplingParams(max_tokens=1)))
    harness.drain()
    remember(harness, new)
    remember(harness, old)
    assert reach(harness, new)[0] >= 56 > reach(harness, old)[0]


def test_a_short_or_empty_prompt_asks_nothing() -> None:
    harness = left_on_disk(LONG)
    assert learn_from_disk(harness.loop.directory, "", np.empty(0, np.int32), 0.0) == 0
    assert learn_from_disk(harness.loop.directory, "", LONG[:3], 0.0) == 0
