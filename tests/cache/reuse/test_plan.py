"""Plans: pure, and the right start for what is where."""

from __future__ import annotations

import pytest

from stepwell.cache.config import Costs
from stepwell.cache.directory import Directory
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.outcome import Loss, Reason
from stepwell.cache.reuse.plan import Plan, Source, Wait, losses, pinned_images, pinned_kv
from tests.cache.builders import (
    BLOCK,
    COSTS,
    copy_down,
    directory,
    forget,
    hold,
    join,
    keep,
    numbers,
    planned,
    rung_at,
    state_of,
)

PROMPT = numbers(60)


def layered(whole: bool = False, min_load: int | None = 0) -> Directory:
    """Device: 20 tokens. Host: 48, with rungs at 32 and 48."""
    shelf = directory(whole=whole, min_load=min_load)
    keep(shelf, PROMPT, 48, rungs=(20, 32, 48))
    copy_down(shelf)
    forget(shelf, PROMPT, Tier.DEVICE, 20, (32, 48))
    return shelf


class TestPurity:
    @pytest.mark.parametrize("length", range(1, 60, 3))
    def test_planning_twice_equals_once_and_changes_nothing(self, length: int) -> None:
        shelf = layered()
        before = state_of(shelf)
        first = shelf.plan("", PROMPT[:length], COSTS)
        assert shelf.plan("", PROMPT[:length], COSTS) == first
        shelf.plan("never seen", PROMPT, COSTS)
        assert state_of(shelf) == before

    def test_nothing_known_of_a_salt_makes_no_root(self) -> None:
        shelf = directory()
        planned(shelf, PROMPT, salt="new")
        assert not shelf.tree.roots


class TestAim:
    def test_the_deepest_rung_is_taken_where_loads_are_cheap(self) -> None:
        plan = planned(layered(), PROMPT)
        assert [o.boundary for o in plan.options] == [48, 20, 0]
        assert plan.aim.leg == (Source(Tier.HOST, 20, 48),) and (plan.hit, plan.need) == (20, 10)
        assert plan.reason is Reason.COMPLETE

    def test_a_prompt_never_resumes_at_its_own_end(self) -> None:
        shelf = layered()
        assert planned(shelf, PROMPT[:48]).aim.boundary == 32
        assert planned(shelf, PROMPT[:49]).aim.boundary == 48
        assert planned(shelf, PROMPT[:21]).aim.boundary == 20
        assert planned(shelf, PROMPT[:20]).aim.boundary == 0

    def test_a_slow_tier_is_left_alone(self) -> None:
        shelf = layered(min_load=None)
        slow = Costs(prefill_tokens_per_s=1e9, bytes_per_s=(float("inf"), 1.0, 1.0))
        plan = planned(shelf, PROMPT, costs=slow)
        assert plan.aim.boundary == 20 and plan.reason is Reason.TOO_SMALL and plan.skipped == 48

    def test_the_least_expected_time_wins_not_the_deepest_rung(self) -> None:
        """Copies cost a little less than computing up to 32, and a little more beyond."""
        shelf = layered(min_load=None)
        fast = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e9, 1e9), latency_s=0.0)
        assert planned(shelf, PROMPT, costs=fast).aim.boundary == 48
        dear = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 64 / 0.5, 1.0), latency_s=0.0)
        assert planned(shelf, PROMPT, costs=dear).aim.boundary == 20

    def test_a_fixed_price_makes_short_loads_not_worth_it(self) -> None:
        shelf = layered(min_load=None)
        costs = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e12, 1e12), latency_s=0.02)
        assert planned(shelf, PROMPT[:36], costs=costs).aim.boundary == 20
        assert planned(shelf, PROMPT, costs=costs).aim.boundary == 48

    @pytest.mark.parametrize(("least", "boundary"), [(0, 48), (12, 48), (28, 48), (29, 20), (100, 20)])
    def test_min_load_tokens_decides_where_it_is_given(self, least: int, boundary: int) -> None:
        plan = planned(layered(min_load=least), PROMPT)
        assert plan.aim.boundary == boundary
        assert plan.reason is (Reason.COMPLETE if boundary == 48 else Reason.TOO_SMALL)

    def test_host_is_asked_however_much_room_the_device_has(self) -> None:
        shelf = layered()
        assert shelf.room().free > 40
        assert planned(shelf, PROMPT).aim.leg


class TestWholeChunks:
    def test_the_leg_is_whole_chunks_and_covers_the_boundary(self) -> None:
        shelf = directory(whole=True)
        keep(shelf, PROMPT, 60, rungs=(20, 36))
        keep(shelf, PROMPT, 60, rungs=(52,))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 20, (36, 52))
        longer = join(PROMPT, numbers(20, 1))
        plan = planned(shelf, longer)
        assert plan.aim.boundary == 36 and plan.aim.leg == (Source(Tier.HOST, 16, 48),)
        assert plan.aim.shared == 16 and plan.aim.leg_end == 48

    def test_without_the_covering_chunk_there_is_no_load(self) -> None:
        shelf = directory(whole=True)
        keep(shelf, PROMPT, 36, rungs=(20, 36))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 20, (36,))
        plan = planned(shelf, PROMPT)
        assert plan.aim.boundary == 20 and plan.reason is Reason.COVERING_CHUNK_MISSING and plan.skipped == 36

    def test_on_the_chunk_grid_nothing_is_fetched_twice(self) -> None:
        shelf = directory(whole=True)
        keep(shelf, PROMPT, 48, rungs=(16, 32, 48))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 16, (32, 48))
        plan = planned(shelf, PROMPT)
        assert plan.aim.leg == (Source(Tier.HOST, 16, 48),) and plan.aim.shared == 16

    @pytest.mark.parametrize("reach", range(20, 48, 4))
    def test_at_most_a_chunk_less_a_block_is_private_and_resident(self, reach: int) -> None:
        shelf = directory(whole=True)
        keep(shelf, PROMPT, 48, rungs=(20, 48))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, reach, (48,))
        plan = planned(shelf, PROMPT)
        assert plan.survey.device == reach
        assert plan.aim.shared == reach // 16 * 16 and reach - plan.aim.shared <= 12

    def test_the_private_part_of_a_chunk_is_asked_for_in_pages(self) -> None:
        native, whole = planned(layered(), PROMPT), planned(layered(whole=True), PROMPT)
        assert whole.need == native.need + 1


class TestRoom:
    def test_what_the_plan_pins_is_not_room(self) -> None:
        shelf = layered()
        plan = planned(shelf, PROMPT)
        assert pinned_kv(plan.survey, BLOCK) + pinned_images(plan.options) == 6, "five pages of KV and the hit's image"
        lease = shelf.lease(rung_at(shelf, PROMPT, 20).image, Tier.DEVICE)
        assert pinned_kv(plan.survey, BLOCK) + pinned_images(plan.options) == 5, (
            "what is leased already is nobody's room anyway"
        )
        shelf.release(lease)

    def test_reserved_pages_are_spoken_for(self) -> None:
        shelf = directory(20, 0)
        table = hold(shelf, 1)
        shelf.promise(table, 9)
        assert isinstance(shelf.plan("", PROMPT[:40], COSTS), Plan)
        shelf.promise(table, 10)
        answer = shelf.plan("", PROMPT[:40], COSTS)
        assert answer == Wait(Reason.NO_ROOM, 10, 9)

    def test_a_wait_names_what_is_wanted_and_what_could_be_spent(self) -> None:
        for free in range(10):
            shelf = layered()
            hold(shelf, shelf.pools[Tier.DEVICE].free - free)
            answer = shelf.plan("", PROMPT, COSTS)
            if isinstance(answer, Wait):
                assert answer.needed == 10 and answer.available < 10

    def test_a_load_that_finds_no_room_is_skipped_for_one_reason_and_the_hit_kept(self) -> None:
        """The rung above is so large that only the hit fits: never a load, never the cold start."""
        shelf = layered(whole=True)
        short = PROMPT[:49]
        for lease in (
            shelf.lease(rung_at(shelf, PROMPT, 20).image, Tier.DEVICE),
            shelf.lease(shelf.survey("", PROMPT[:20]).path[-1].kv, Tier.DEVICE),
        ):
            assert lease.open
        hold(shelf, shelf.pools[Tier.DEVICE].free - 8)
        plan = planned(shelf, short)
        assert (plan.aim.boundary, plan.reason, plan.skipped) == (20, Reason.PARTIAL_CHUNK_NO_ROOM, 48)
        assert len(plan.options) == 1


class TestReasons:
    """Why it went no further: one reason a plan."""

    def test_nothing_cached_at_all(self) -> None:
        assert planned(directory(), PROMPT).reason is Reason.COMPLETE

    def test_shorter_than_a_rung(self) -> None:
        assert planned(directory(), PROMPT[:4]).reason is Reason.TOO_SHORT
        assert planned(directory(grid=16), PROMPT[:16]).reason is Reason.TOO_SHORT
        assert planned(directory(grid=16), PROMPT[:17]).reason is Reason.COMPLETE

    def test_all_there_was_has_been_used(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 20, rungs=(20,))
        assert planned(shelf, PROMPT).reason is Reason.COMPLETE

    def test_the_rest_has_been_evicted_everywhere(self) -> None:
        shelf = directory(host=0)
        keep(shelf, PROMPT, 40, rungs=(20,))
        forget(shelf, PROMPT, Tier.DEVICE, 20)
        plan = planned(shelf, PROMPT)
        assert (plan.aim.boundary, plan.reason) == (20, Reason.WITHIN_HIT)

    def test_kv_is_there_and_its_state_is_not(self) -> None:
        shelf = directory(host=0)
        keep(shelf, PROMPT, 40, rungs=(20,))
        assert planned(shelf, PROMPT).reason is Reason.NO_RUNG

    def test_not_asked_to_read(self) -> None:
        plan = layered().plan("", PROMPT, COSTS, read=False)
        assert isinstance(plan, Plan)
        assert plan.reason is Reason.NOT_READ and plan.aim.shared == plan.aim.boundary == plan.hit == 0


class TestLosses:
    def test_each_token_is_lost_to_one_thing(self) -> None:
        shelf = directory(host=0)
        keep(shelf, PROMPT, 48, rungs=(20, 32))
        forget(shelf, PROMPT, Tier.DEVICE, 40, (32,))
        found = shelf.survey("", PROMPT)
        assert dict(losses(found, 20, 0, Loss.TOO_SMALL, 4)) == {
            Loss.EVICTED_RUNG: 12,
            Loss.NO_RUNG: 8,
            Loss.EVICTED_KV: 8,
            Loss.NEW: 12,
        }

    @pytest.mark.parametrize("boundary", range(0, 60, 4))
    @pytest.mark.parametrize("skipped", [0, 16, 48])
    def test_they_sum_to_what_is_recomputed(self, boundary: int, skipped: int) -> None:
        found = layered().survey("", PROMPT)
        parts = losses(found, boundary, skipped, Loss.NO_ROOM, 4)
        assert sum(n for _, n in parts) == 60 - boundary and all(n > 0 for _, n in parts)
