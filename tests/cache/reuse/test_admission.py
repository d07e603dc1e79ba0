"""Commit and settle: the worked example, every way a load can fail, and room to the last page."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stepwell.base.errors import StalePlan
from stepwell.base.geometry import Ints
from stepwell.cache.check import check
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import free_pages
from stepwell.cache.moves import Extent, LiveState, Report, Tier
from stepwell.cache.publish import leave_rung, publish
from stepwell.cache.reuse.admission import Loading, Runnable, abandon, commit, reported, settle
from stepwell.cache.reuse.outcome import AdmissionCounts, Loss, Reason
from stepwell.cache.reuse.plan import Plan, Wait
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import RungKind
from tests.cache.builders import (
    COSTS,
    copy_down,
    device_pages,
    directory,
    forget,
    hold,
    keep,
    numbers,
    planned,
    rung_at,
    state_of,
    where,
)

PROMPT = numbers(40)
WHOLE = pytest.mark.parametrize("whole", [False, True], ids=["native", "whole-chunk"])


def example(whole: bool, pages: int = 64) -> Directory:
    """Block 4, chunk 16: the device serves 20 tokens, host holds the KV up to 32 and a rung there."""
    shelf = directory(pages, whole=whole)
    keep(shelf, PROMPT, 32, rungs=(20, 32))
    copy_down(shelf)
    forget(shelf, PROMPT, Tier.DEVICE, 20, (32,))
    return shelf


def start(shelf: Directory, prompt: Ints = PROMPT, name: str = "a", slot: int = 0) -> Runnable | Loading:
    plan = planned(shelf, prompt)
    return commit(shelf, plan, name, prompt, slot, 1.0)


def loading(state: Runnable | Loading) -> Loading:
    assert isinstance(state, Loading)
    return state


def ready(state: Runnable | Loading) -> Runnable:
    assert isinstance(state, Runnable)
    return state


def end(
    shelf: Directory, state: Loading, fail: tuple[str, ...] = (), order: tuple[str, ...] = ("kv", "image")
) -> Runnable:
    """Report all moves in `order`, those of the kinds in `fail` as failures, again for any load that follows; settle."""
    after: Runnable | Loading = state
    while isinstance(after, Loading):
        for move in sorted(after.moves, key=lambda m: order.index(m.what)):
            after = reported(after, Report(move.ticket, move.what not in fail))
        check(shelf, [after.held.table.private], after.held.table.promised)
        after = settle(shelf, after, 2.0)
        fail = ()
    check(shelf, [after.table.private], after.table.promised)
    return after


def leave(shelf: Directory, state: Runnable) -> None:
    """The request ends; nothing may be held after it."""
    if state.image is not None:
        shelf.release(state.image)
    shelf.release(state.path)
    shelf.close(state.table)
    assert not shelf.leases and shelf.reserved == 0
    check(shelf, [], 0)


class TestWorkedExample:
    def test_a_native_store_loads_from_the_end_of_what_is_resident(self) -> None:
        shelf = example(whole=False)
        before = device_pages(shelf, PROMPT, 20)
        state = loading(start(shelf))
        assert (state.option.boundary, state.option.shared) == (32, 20)
        assert state.held.table.pages[:5].tolist() == before
        kv, image = state.moves
        assert isinstance(kv.target, Extent)
        assert kv.target.slots.tolist() == state.held.table.pages[5:8].tolist() and kv.tokens == 32
        assert image.target == LiveState(0) and image.tokens == 32
        after = end(shelf, state)
        assert (after.boundary, after.shared, after.state_loaded, after.image) == (32, 32, True, None)
        leave(shelf, after)

    def test_a_whole_chunk_store_loads_from_the_chunks_start_into_private_pages(self) -> None:
        shelf = example(whole=True)
        before = device_pages(shelf, PROMPT, 20)
        state = loading(start(shelf))
        assert (state.option.boundary, state.option.shared) == (32, 16)
        pages = state.held.table.pages.tolist()
        assert pages[:4] == before[:4], "[0, 16) stays shared"
        assert pages[4] not in before, "[16, 20) is private while the load may write it"
        assert state.held.table.private.tolist() == pages[4:8]
        kv, _ = state.moves
        assert len(kv.source.slots) == 4
        after = end(shelf, state)
        assert (after.boundary, after.shared, after.state_loaded) == (32, 32, True)
        assert after.table.pages[:5].tolist() == before, "the resident page is used again once the load is in"
        leave(shelf, after)

    @WHOLE
    def test_tokens_are_credited_to_the_tier_they_came_from(self, whole: bool) -> None:
        shelf = example(whole)
        outcome = end(shelf, loading(start(shelf))).outcome
        assert (outcome.device, outcome.host, outcome.disk, outcome.recomputed) == (20, 12, 0, 8)
        assert (outcome.hit, outcome.boundary, outcome.state_tier) == (20, 32, Tier.HOST)
        assert outcome.reason is Reason.COMPLETE and outcome.loaded

    @WHOLE
    @pytest.mark.parametrize("fail", [("kv",), ("image",), ("kv", "image")])
    @pytest.mark.parametrize("order", list(itertools.permutations(("kv", "image"))))
    def test_a_failed_leg_resumes_at_the_hit_with_its_own_pages_and_state(
        self, whole: bool, fail: tuple[str, ...], order: tuple[str, ...]
    ) -> None:
        shelf = example(whole)
        pages, image = device_pages(shelf, PROMPT, 20), rung_at(shelf, PROMPT, 20).image.at[Tier.DEVICE]
        after = end(shelf, loading(start(shelf)), fail, order)
        assert after.boundary == 20 and after.table.pages[:5].tolist() == pages
        assert after.image is not None and not after.state_loaded
        assert after.image.item.at[Tier.DEVICE] is image
        expected = Reason.LOAD_FAILED_KV if "kv" in fail else Reason.LOAD_FAILED_STATE
        assert after.outcome.reason is expected
        assert dict(after.outcome.lost)[Loss.FAILED_LEG] == 12
        assert (after.outcome.device, after.outcome.host, after.outcome.recomputed) == (20, 0, 20)
        leave(shelf, after)

    @WHOLE
    def test_what_failed_is_gone_before_the_next_plan(self, whole: bool) -> None:
        shelf = example(whole)
        state = end(shelf, loading(start(shelf)), ("image",))
        again = planned(shelf, PROMPT)
        assert again.aim.boundary == 20 and not again.aim.loads
        leave(shelf, state)
        assert where(shelf.survey("", PROMPT).path[-1].kv) == "h", "the leg that was good stays"

    @WHOLE
    def test_failed_kv_is_gone_from_the_store_for_every_later_plan(self, whole: bool) -> None:
        shelf = example(whole)
        state = end(shelf, loading(start(shelf)), ("kv",))
        assert planned(shelf, PROMPT).aim.boundary == 20
        leave(shelf, state)
        assert shelf.survey("", PROMPT).union == 20
        assert planned(shelf, PROMPT).aim.boundary == 20

    @WHOLE
    def test_the_hit_cannot_be_evicted_while_the_load_is_in_flight(self, whole: bool) -> None:
        shelf = example(whole, pages=16)
        pages = device_pages(shelf, PROMPT, 20)
        state = loading(start(shelf))
        assert not free_pages(shelf, shelf.config.device_pages, force=True)
        assert rung_at(shelf, PROMPT, 20).image.has(Tier.DEVICE)
        after = end(shelf, state, ("kv", "image"))
        assert after.boundary == 20 and after.table.pages[:5].tolist() == pages
        leave(shelf, after)

    @WHOLE
    def test_a_failed_load_takes_no_page_beyond_what_was_reserved(self, whole: bool) -> None:
        shelf = example(whole)
        state = loading(start(shelf))
        owned = len(state.held.table.private) + state.held.table.promised
        after = end(shelf, state, ("kv",))
        assert len(after.table.private) + after.table.promised <= owned
        assert len(after.table) + after.table.promised >= 10, "the whole prompt is still provided for"
        leave(shelf, after)

    @WHOLE
    def test_others_who_share_the_hit_keep_it_through_load_and_failure(self, whole: bool) -> None:
        shelf = example(whole)
        short = PROMPT[:24]
        other = ready(start(shelf, short, "other", 1))
        before = other.table.pages[:5].tolist()
        after = loading(start(shelf))
        for ticket in after.waiting:
            after = reported(after, Report(ticket, False))
        settled = ready(settle(shelf, after, 2.0))
        assert settled.table.pages[:5].tolist() == before == other.table.pages[:5].tolist()
        check(shelf, [settled.table.private, other.table.private])
        assert other.image is not None
        shelf.release(other.image)
        shelf.release(other.path)
        shelf.close(other.table)
        leave(shelf, settled)


class TestStateOnly:
    """KV is resident up to or past the boundary: the load is the image alone."""

    def shelf(self, whole: bool) -> Directory:
        shelf = directory(whole=whole)
        keep(shelf, PROMPT, 40, rungs=(20, 32))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, None, (32,))
        return shelf

    @WHOLE
    def test_only_the_image_is_loaded_and_all_resident_kv_stays_shared(self, whole: bool) -> None:
        shelf = self.shelf(whole)
        resident = shelf.survey("", PROMPT).device
        pages = device_pages(shelf, PROMPT, resident)
        state = loading(start(shelf))
        assert [move.what for move in state.moves] == ["image"]
        assert state.option.shared == resident == 40
        assert len(state.held.table.private) == 0
        after = end(shelf, state)
        assert (after.boundary, after.shared) == (32, 40)
        assert after.table.pages.tolist() == pages
        assert (after.outcome.device, after.outcome.host) == (32, 0), "no token came from host: its KV was resident"
        assert after.outcome.state_tier is Tier.HOST
        leave(shelf, after)

    @WHOLE
    def test_its_failure_resumes_at_the_hit_and_never_writes_the_resident_tail(self, whole: bool) -> None:
        shelf = self.shelf(whole)
        after = end(shelf, loading(start(shelf)), ("image",))
        assert (after.boundary, after.shared) == (20, 40)
        assert after.outcome.reason is Reason.LOAD_FAILED_STATE
        assert [f.position for f in shelf.survey("", PROMPT).resume_points] == [20]
        leave(shelf, after)


class TestChain:
    """B → the deepest resident boundary with a rung anywhere → the hit → 0."""

    def test_a_failed_aim_falls_to_a_state_only_load_and_then_to_the_hit(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 36, rungs=(12, 24, 36))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 28, (24, 36))
        plan = planned(shelf, PROMPT)
        assert [o.boundary for o in plan.options] == [36, 24, 12, 0]
        state = loading(commit(shelf, plan, "a", PROMPT, 3, 1.0))
        for ticket in state.waiting:
            state = reported(state, Report(ticket, False))
        second = loading(settle(shelf, state, 2.0))
        assert [m.what for m in second.moves] == ["image"] and second.option.boundary == 24
        assert second.moves[0].target == LiveState(3)
        (ticket,) = second.waiting
        last = ready(settle(shelf, reported(second, Report(ticket, False)), 3.0))
        assert last.boundary == 12 and last.image is not None
        assert last.outcome.reason is Reason.LOAD_FAILED_STATE
        leave(shelf, last)

    def test_the_second_option_may_succeed_where_the_first_failed(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 36, rungs=(12, 24, 36))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 28, (24, 36))
        after = end(shelf, loading(start(shelf)), ("kv",))
        assert (after.boundary, after.shared, after.state_loaded) == (24, 28, True)
        assert after.outcome.reason is Reason.LOAD_FAILED_KV
        leave(shelf, after)

    def test_without_any_hit_a_failed_load_starts_cold(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 32, rungs=(32,))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 0, (32,))
        after = end(shelf, loading(start(shelf)), ("image",))
        assert (after.boundary, after.shared, after.state_loaded, after.image) == (0, 0, False, None)
        assert len(after.table) == 8, "the pages of the leg serve the prompt"
        leave(shelf, after)


class TestReports:
    def test_only_the_tickets_of_this_load_count_and_each_only_once(self) -> None:
        shelf = example(whole=False)
        state = loading(start(shelf))
        kv, image = state.moves
        assert reported(state, Report(999, False)) is state
        half = reported(state, Report(kv.ticket, True))
        assert half.waiting == {image.ticket}
        assert reported(half, Report(kv.ticket, False)) is half, "a doubled report cannot turn success into failure"
        assert not reported(half, Report(image.ticket, True)).waiting
        abandon(shelf, state.held)

    def test_abandoning_at_any_phase_gives_everything_back(self) -> None:
        for reports in range(3):
            shelf = example(whole=True)
            before = shelf.pools[Tier.DEVICE].free
            state = loading(start(shelf))
            for move in state.moves[:reports]:
                state = reported(state, Report(move.ticket, reports == 1))
            abandon(shelf, state.held)
            assert not shelf.leases and shelf.pools[Tier.DEVICE].free == before
            check(shelf, [], 0)
            assert planned(shelf, PROMPT).aim.boundary == 32, "nothing was lost"


class TestStalePlans:
    def test_a_plan_from_before_a_change_is_refused_and_nothing_has_changed(self) -> None:
        shelf = example(whole=False)
        plan = planned(shelf, PROMPT)
        hold(shelf, 1)
        before = state_of(shelf)
        with pytest.raises(StalePlan) as error:
            commit(shelf, plan, "a", PROMPT, 0, 1.0)
        assert (error.value.planned, error.value.found) == (plan.epoch, shelf.epoch)
        assert state_of(shelf) == before

    def test_a_plan_can_be_committed_once(self) -> None:
        shelf = example(whole=False)
        plan = planned(shelf, PROMPT)
        state = loading(commit(shelf, plan, "a", PROMPT, 0, 1.0))
        with pytest.raises(StalePlan):
            commit(shelf, plan, "b", PROMPT, 1, 1.0)
        abandon(shelf, state.held)


class TestRaces:
    def test_two_requests_may_load_the_same_rung_and_the_first_to_land_is_kept(self) -> None:
        shelf = example(whole=False)
        first, second = loading(start(shelf, name="a", slot=0)), loading(start(shelf, name="b", slot=1))
        for move in first.moves:
            first = reported(first, Report(move.ticket, True))
        one = ready(settle(shelf, first, 2.0))
        for move in second.moves:
            second = reported(second, Report(move.ticket, True))
        two = ready(settle(shelf, second, 3.0))
        assert two.table.pages[:8].tolist() == one.table.pages[:8].tolist()
        assert not two.table.has_retired, "what it loaded for nothing is free at once"
        check(shelf, [one.table.private, two.table.private], one.table.promised + two.table.promised)
        shelf.release(one.path)
        shelf.close(one.table)
        leave(shelf, two)

    @pytest.mark.parametrize("fail", ["kv", "image"])
    def test_one_of_two_failing_does_not_disturb_the_other(self, fail: str) -> None:
        shelf = example(whole=False)
        first, second = loading(start(shelf, name="a", slot=0)), loading(start(shelf, name="b", slot=1))
        for move in first.moves:
            first = reported(first, Report(move.ticket, move.what != fail))
        one = ready(settle(shelf, first, 2.0))
        assert one.boundary == 20
        third = planned(shelf, PROMPT)
        assert third.aim.boundary == 20, "what failed is not offered again, although the other still reads it"
        for move in second.moves:
            second = reported(second, Report(move.ticket, True))
        two = ready(settle(shelf, second, 3.0))
        assert two.boundary == 32
        check(shelf, [one.table.private, two.table.private])
        assert one.image is not None
        shelf.release(one.image)
        shelf.release(one.path)
        shelf.close(one.table)
        leave(shelf, two)

    def test_the_last_reader_of_a_failed_copy_frees_it(self) -> None:
        shelf = example(whole=False)
        free = shelf.pools[Tier.HOST].free
        first, second = loading(start(shelf, name="a", slot=0)), loading(start(shelf, name="b", slot=1))
        size = len(first.moves[0].source.slots)
        for move in first.moves:
            first = reported(first, Report(move.ticket, move.what != "kv"))
        one = ready(settle(shelf, first, 2.0))
        assert shelf.pools[Tier.HOST].free == free, "the other load still reads it"
        abandon(shelf, second.held)
        assert shelf.pools[Tier.HOST].free == free + size
        leave(shelf, one)

    def test_what_a_load_reads_in_host_stays_there_while_host_is_needed(self) -> None:
        shelf = example(whole=False)
        state = loading(start(shelf))
        kv, image = state.moves
        held = set(kv.source.slots.tolist()) | set(image.source.slots.tolist())
        while (victim := shelf.candidates.drops[Tier.HOST].pop()) is not None:
            shelf.drop(victim, Tier.HOST)
        assert held.isdisjoint(shelf.pools[Tier.HOST].free_slots.tolist())
        leave(shelf, end(shelf, state))


def tight(free: int, whole: bool, hit: int, tail: str, image: int = 2) -> tuple[Directory, list[Ints], list[object]]:
    """The boundary's rung on the device alone, the hit's in host alone, and `free` pages.

    tail   "used": a live request reads the last page of the resident KV; "idle": it is cached and unreferenced
    """
    shelf = directory(64, 64, image=image, whole=whole)
    keep(shelf, PROMPT, 32, rungs=(hit, 32))
    copy_down(shelf)
    forget(shelf, PROMPT, Tier.DEVICE, hit, (hit,))
    shelf.drop(rung_at(shelf, PROMPT, 32).image, Tier.HOST)
    private: list[Ints] = []
    held: list[object] = []
    if tail == "used":
        node = shelf.survey("", PROMPT).path
        last = next(n for n in node if n.end == hit)
        held.append(shelf.lease(last.kv, Tier.DEVICE))
    neighbour = hold(shelf, shelf.pools[Tier.DEVICE].free - free)
    private.append(neighbour.private.copy())
    check(shelf, private)
    return shelf, private, held


class TestExactFit:
    @WHOLE
    @pytest.mark.parametrize("hit", [16, 20])
    @pytest.mark.parametrize("tail", ["used", "idle"])
    def test_no_number_of_free_pages_makes_a_commit_raise(self, whole: bool, hit: int, tail: str) -> None:
        """The rung at the boundary is on the device, the hit's only in host: whatever the room, a plan that is made can be kept."""
        met = set()
        for free in range(13):
            shelf, private, _ = tight(free, whole, hit, tail)
            answer = shelf.plan("", PROMPT, COSTS)
            if isinstance(answer, Wait):
                assert answer.needed > answer.available
                met.add("wait")
                continue
            met.add(str(answer.aim.boundary))
            state = commit(shelf, answer, "a", PROMPT, 0, 1.0)
            table = state.held.table if isinstance(state, Loading) else state.table
            check(shelf, [*private, table.private])
            after = end_with(shelf, state, private)
            assert free_pages(shelf, after.table.promised, force=True), "the rest of the prompt was promised"
            shelf.grow(after.table, after.table.promised)
            check(shelf, [*private, after.table.private])
        assert "32" in met and ("wait" in met or "0" in met or str(hit) in met)

    @WHOLE
    def test_the_image_a_plan_will_pin_is_not_counted_as_room(self, whole: bool) -> None:
        """Fits only if the boundary's own image could be evicted: then it does not fit."""
        reached = [self.boundary(free, whole) for free in range(12)]
        least = next(free for free, boundary in enumerate(reached) if boundary == 32)
        private_chunk = 1 if whole else 0
        assert least == 10 - 5 + private_chunk, "prompt pages beyond the shared ones, no less"
        assert all(b == 32 for b in reached[least:])

    @staticmethod
    def boundary(free: int, whole: bool) -> int | None:
        shelf, _, _ = tight(free, whole, 20, "used")
        answer = shelf.plan("", PROMPT, COSTS)
        return answer.aim.boundary if isinstance(answer, Plan) else None

    def test_the_prompts_own_pages_may_be_all_there_are(self) -> None:
        shelf = directory(10, 0)
        state = ready(start(shelf))
        assert free_pages(shelf, state.table.promised)
        shelf.grow(state.table, state.table.promised)
        assert shelf.pools[Tier.DEVICE].free == 0
        leave(shelf, state)

    def test_the_hits_image_and_the_prompt_fill_the_pool_exactly(self) -> None:
        for image in (1, 2, 3):
            shelf = directory(10 + image, 0, image=image)
            keep(shelf, PROMPT, 20, rungs=(20,))
            state = ready(start(shelf))
            assert state.boundary == 20 and state.image is not None
            assert free_pages(shelf, state.table.promised, force=True)
            shelf.grow(state.table, state.table.promised)
            check(shelf, [state.table.private], 0)
            leave(shelf, state)

    def test_an_image_that_leaves_no_room_for_the_prompt_is_given_up_rather_than_waited_for(self) -> None:
        shelf = directory(10, 0)
        keep(shelf, PROMPT, 20, rungs=(20,))
        plan = planned(shelf, PROMPT)
        assert plan.aim.boundary == 0 and plan.aim.shared == 20
        state = ready(commit(shelf, plan, "a", PROMPT, 0, 1.0))
        assert free_pages(shelf, state.table.promised, force=True)
        leave(shelf, state)


def end_with(shelf: Directory, state: Runnable | Loading, private: list[Ints]) -> Runnable:
    """Let every leg fail until the request runs."""
    while isinstance(state, Loading):
        for move in state.moves:
            state = reported(state, Report(move.ticket, False))
        state = settle(shelf, state, 2.0)
    check(shelf, [*private, state.table.private])
    return state


class TestWeakened:
    def shelf(self, free: int, copied: bool) -> Directory:
        """Device: KV [0, 20), its rung of 4 pages, `free` free pages. Host: KV to 32 and a rung there."""
        shelf = directory(64, 64, image=4)
        keep(shelf, PROMPT, 32, rungs=(20, 32))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 20, (32,))
        if not copied:
            shelf.drop(rung_at(shelf, PROMPT, 20).image, Tier.HOST)
        hold(shelf, shelf.pools[Tier.DEVICE].free - free)
        return shelf

    def test_with_room_for_both_the_hit_stays_pinned(self) -> None:
        plan = planned(self.shelf(5, copied=True), PROMPT)
        assert [o.boundary for o in plan.options] == [32, 20, 0] and not plan.fallback_weakened
        assert plan.options[1].resume_point is not None and plan.options[1].resume_point.tier is Tier.DEVICE

    @pytest.mark.parametrize("free", range(1, 5))
    def test_the_hits_own_image_may_pay_for_the_load_if_it_is_copied_below(self, free: int) -> None:
        shelf = self.shelf(free, copied=True)
        plan = planned(shelf, PROMPT)
        assert [o.boundary for o in plan.options] == [32, 20, 0] and plan.fallback_weakened
        fallback = plan.options[1].resume_point
        assert fallback is not None and fallback.tier is Tier.HOST
        state = loading(commit(shelf, plan, "a", PROMPT, 0, 1.0))
        for ticket in state.waiting:
            state = reported(state, Report(ticket, False))
        after = loading(settle(shelf, state, 2.0))
        assert after.option.boundary == 20, "the hit is loaded back"
        (ticket,) = after.waiting
        last = ready(settle(shelf, reported(after, Report(ticket, True)), 3.0))
        assert (last.boundary, last.state_loaded, last.outcome.fallback_weakened) == (20, True, True)

    def test_an_image_with_no_copy_below_pays_too_and_the_fallback_is_a_cold_start(self) -> None:
        shelf = self.shelf(3, copied=False)
        plan = planned(shelf, PROMPT)
        assert [o.boundary for o in plan.options] == [32, 0] and plan.fallback_weakened
        state = loading(commit(shelf, plan, "a", PROMPT, 0, 1.0))
        for ticket in state.waiting:
            state = reported(state, Report(ticket, False))
        after = ready(settle(shelf, state, 2.0))
        assert (after.boundary, after.shared, after.image) == (0, 20, None), (
            "the KV stays shared, its state is recomputed"
        )

    def test_without_even_that_the_hit_is_kept_and_the_skip_named(self) -> None:
        shelf = self.shelf(0, copied=True)
        hit = rung_at(shelf, PROMPT, 20)
        lease = shelf.lease(hit.image, Tier.DEVICE)
        answer = shelf.plan("", PROMPT, COSTS)
        assert isinstance(answer, Wait) and answer.reason is Reason.NO_ROOM
        shelf.release(lease)


class TestSkips:
    def test_no_room_for_the_load_keeps_the_hit_and_is_not_a_boundary(self) -> None:
        """A whole-chunk store needs the private part of a chunk besides: short of that alone, the hit is kept."""
        shelf = example(whole=True)
        short = PROMPT[:33]
        reader = shelf.lease(next(n for n in shelf.survey("", PROMPT).path if n.end == 20).kv, Tier.DEVICE)
        image = shelf.lease(rung_at(shelf, PROMPT, 20).image, Tier.DEVICE)
        neighbour = hold(shelf, shelf.pools[Tier.DEVICE].free - 4)
        plan = planned(shelf, short)
        assert plan.aim.boundary == 20 and plan.reason is Reason.PARTIAL_CHUNK_NO_ROOM and plan.skipped == 32
        state = ready(commit(shelf, plan, "a", short, 0, 1.0))
        outcome = state.outcome
        assert (outcome.boundary, outcome.loaded, outcome.reason) == (20, False, Reason.PARTIAL_CHUNK_NO_ROOM)
        assert dict(outcome.lost)[Loss.PARTIAL_CHUNK] == 12
        tally = AdmissionCounts()
        tally.add(outcome)
        assert tally.boundaries == 0 and tally.reasons[Reason.PARTIAL_CHUNK_NO_ROOM] == 1 == sum(tally.reasons.values())
        check(shelf, [state.table.private, neighbour.private])
        for lease in (reader, image):
            shelf.release(lease)

    @WHOLE
    def test_every_outcome_sums_to_its_prompt_and_to_its_losses(self, whole: bool) -> None:
        for length in range(1, 41):
            shelf = example(whole)
            state = start(shelf, PROMPT[:length])
            after = end(shelf, state) if isinstance(state, Loading) else state
            o = after.outcome
            assert o.device + o.host + o.disk + o.recomputed == o.prompt == length
            assert sum(tokens for _, tokens in o.lost) == o.recomputed
            assert 0 <= o.cached <= length - 1 and o.cached == o.boundary
            leave(shelf, after)


class TestTouch:
    def test_a_hit_refreshes_the_rung_it_used_and_no_other(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 32, rungs=(8, 20, 32))
        state = ready(start(shelf, PROMPT[:24]))
        assert [rung_at(shelf, PROMPT, p).used for p in (8, 20, 32)] == [0.0, 1.0, 0.0]
        leave(shelf, state)

    def test_a_hit_refreshes_the_kv_it_resumed_on_and_none_below(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 32, rungs=(20, 32))
        state = ready(start(shelf, PROMPT[:24]))
        used = {node.end: node.used for node in shelf.survey("", PROMPT).path}
        assert used[20] == 1.0 and used[32] == 0.0
        leave(shelf, state)


def test_a_late_rung_left_twice_is_published_once() -> None:
    shelf = directory()
    keep(shelf, PROMPT, 20, rungs=(20,))
    lease = shelf.lease(shelf.survey("", PROMPT).path[-1].kv, Tier.DEVICE)
    free = shelf.pools[Tier.DEVICE].free
    assert leave_rung(shelf, lease, 20, shelf.pools[Tier.DEVICE].take(1), RungKind.BRANCH, 2.0) is None
    assert shelf.pools[Tier.DEVICE].free == free
    assert rung_at(shelf, PROMPT, 20).kind is RungKind.PROMPT_END
    shelf.release(lease)


def test_publishing_needs_private_pages() -> None:
    shelf = directory()
    lease = shelf.lease(shelf.tree.root("", 0.0).kv, Tier.DEVICE)
    foreign = BlockTable(np.array([5], np.int32))
    with pytest.raises(AssertionError, match="not this request's to publish"):
        publish(shelf, lease, PROMPT, 4, foreign, 0.0)
