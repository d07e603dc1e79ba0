"""How far a prompt reaches, where it diverges, and from which rungs it could resume."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.cache.moves import Tier
from stepwell.cache.reuse.survey import gather, kv_nodes, survey
from tests.cache.builders import copy_down, device_pages, directory, forget, join, keep, node_ending, numbers

PROMPT = numbers(60)


class TestReach:
    def test_an_unknown_prompt_reaches_nothing(self) -> None:
        found = directory().survey("", PROMPT)
        assert (found.matched, found.device, found.union, found.hit, found.diverged_at) == (0, 0, 0, None, None)

    @pytest.mark.parametrize("length", range(1, 60))
    def test_whole_blocks_match_whatever_the_prompts_length(self, length: int) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20,))
        found = shelf.survey("", PROMPT[:length])
        assert found.matched == min(40, length // 4 * 4) == found.device == found.union
        assert found.diverged_at is None

    def test_the_device_and_all_tiers_together_are_told_apart(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 48, rungs=(20, 32, 48))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 32)
        found = shelf.survey("", PROMPT)
        assert (found.device, found.union, found.matched) == (32, 48, 48)

    def test_a_gap_ends_the_reach_but_not_the_match(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 48, rungs=(20, 32, 48))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 20)
        shelf.drop(node_ending(shelf, PROMPT, 32).kv, Tier.HOST)
        found = shelf.survey("", PROMPT)
        assert (found.device, found.union, found.matched) == (20, 20, 48)
        assert [f.position for f in found.resume_points] == [20], "the rung at 48 stands beyond a gap"

    def test_a_copy_that_failed_is_a_gap(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 48, rungs=(20, 48))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 20)
        item = node_ending(shelf, PROMPT, 48).kv
        lease = shelf.lease(item, Tier.HOST)
        shelf.condemn(item, Tier.HOST)
        assert shelf.survey("", PROMPT).union == 20
        shelf.release(lease)

    def test_another_salt_reaches_nothing(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, salt="a")
        assert shelf.survey("a", PROMPT).matched == 40 and shelf.survey("b", PROMPT).matched == 0


class TestDivergence:
    @pytest.mark.parametrize("at", range(40))
    def test_the_first_different_token_is_named(self, at: int) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40)
        changed = PROMPT.copy()
        changed[at] = (changed[at] + 1) % 1000
        found = shelf.survey("", changed)
        assert found.diverged_at == at and found.matched == at // 4 * 4

    def test_the_last_run_may_match_in_part(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20,))
        changed = join(PROMPT[:30], numbers(20, 1))
        found = shelf.survey("", changed)
        assert (found.matched, found.device) == (28, 28) and len(found.path) == 2
        assert found.path[-1].end == 40

    def test_the_closest_continuation_counts(self) -> None:
        shelf = directory()
        keep(shelf, join(PROMPT[:20], numbers(20, 1)))
        keep(shelf, join(PROMPT[:20], numbers(20, 2)))
        changed = join(PROMPT[:20], numbers(20, 2)[:3], numbers(10, 3))
        assert shelf.survey("", changed).diverged_at == 23

    def test_a_prompt_that_goes_on_where_the_tree_ends_has_not_diverged(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40)
        assert shelf.survey("", PROMPT).diverged_at is None

    def test_a_prompt_that_ends_inside_a_run_has_not_diverged(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40)
        for length in (20, 22, 39, 40):
            assert shelf.survey("", PROMPT[:length]).diverged_at is None


class TestFootholds:
    def test_rungs_in_any_tier_that_kv_reaches_ascending(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 48, rungs=(8, 20, 32, 48))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 32, (20, 48))
        found = shelf.survey("", PROMPT)
        assert [(f.position, f.tier) for f in found.resume_points] == [
            (8, Tier.DEVICE),
            (20, Tier.HOST),
            (32, Tier.DEVICE),
            (48, Tier.HOST),
        ]
        assert found.hit is not None and found.hit.position == 32

    def test_the_hit_needs_kv_and_image_on_the_device(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 48, rungs=(20, 32))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, None, (32,))
        hit = shelf.survey("", PROMPT).hit
        assert hit is not None and hit.position == 20

    def test_none_stands_at_the_very_end_of_the_prompt(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20, 40))
        assert [f.position for f in shelf.survey("", PROMPT[:40]).resume_points] == [20]
        assert [f.position for f in shelf.survey("", PROMPT[:41]).resume_points] == [20, 40]

    def test_none_past_a_divergence(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20, 40))
        assert [f.position for f in shelf.survey("", join(PROMPT[:38], numbers(9, 1))).resume_points] == [20]

    def test_lost_rungs_are_remembered_with_their_tokens(self) -> None:
        shelf = directory(host=0)
        keep(shelf, PROMPT, 40, rungs=(20, 40))
        forget(shelf, PROMPT, Tier.DEVICE, 0, (20, 40))
        found = shelf.survey("", PROMPT)
        assert (found.matched, found.union, sorted(found.lost_rungs)) == (40, 0, [20, 40])
        assert sorted(shelf.survey("", PROMPT[:30]).lost_rungs) == [20]


class TestPages:
    def test_gather_walks_the_runs_in_order(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20,))
        found = shelf.survey("", PROMPT)
        whole = device_pages(shelf, PROMPT, 40)
        assert gather(found.path, Tier.DEVICE, 12, 32, 4).tolist() == whole[3:8]
        assert gather(found.path, Tier.DEVICE, 12, 12, 4).tolist() == []
        assert [(a, b) for _, a, b in kv_nodes(found.path, 12, 32)] == [(12, 20), (20, 32)]


def test_a_survey_compares_tokens_exactly() -> None:
    """Blocks that a weak sum could not tell apart."""
    shelf = directory()
    one = np.array([5, 9, 9, 9] * 5, np.int32)
    other = np.array([5 + 31, 9 - 1, 9, 9] * 5, np.int32)
    keep(shelf, one)
    assert survey(shelf.tree, "", other).matched == 0
