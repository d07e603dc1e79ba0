"""Resumes through the whole loop, byte for byte: from the device, from host, after failures and races."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.evict.make_room import demote
from stepwell.cache.moves import Report, Tier
from stepwell.cache.reuse.outcome import Reason
from stepwell.cache.tree import RungKind
from stepwell.sched.step import Carry, Fresh, FromImage
from tests.cache.builders import device_pages, join, numbers, rung_at
from tests.sched.rig import KV, LOADS, SAVES, STATE, Rig, Which

PROMPT = numbers(40)
WHOLE = pytest.mark.parametrize("whole", [False, True], ids=["native", "whole-chunk"])


def example(whole: bool = False, **sizes: int) -> Rig:
    """The device serves 20 tokens; host holds KV up to 32 and a rung there. Block 4, chunk 16."""
    rig = Rig(whole=whole, **sizes)  # type: ignore[arg-type]
    rig.ask("first", PROMPT[:21], 1)
    rig.ask("second", PROMPT[:33], 1)
    rig.drop(PROMPT, 20, (32,))
    for position in (16, 28):
        drop_rung(rig, position)
    return rig


def drop_rung(rig: Rig, position: int) -> None:
    """Take a rung at `position` out altogether, if there is one."""
    for node in rig.directory.survey("", PROMPT).path:
        if node.end == position and node.rung is not None:
            rig.directory.remove_rung(node.rung)


def mine_alone(tickets: set[int]) -> Which:
    return lambda move: move.ticket in tickets


def rows(rig: Rig, pages: Ints | list[int]) -> np.ndarray:
    return rig.memory.arenas[Tier.DEVICE][pages].copy()


class TestWorkedExample:
    @WHOLE
    def test_the_forward_runs_from_the_rung_above_the_hit(self, whole: bool) -> None:
        rig = example(whole)
        shared = device_pages(rig.directory, PROMPT, 20)
        before = rows(rig, shared)
        rig.submit("a", PROMPT)
        rig.step()
        assert rig.loading("a").option.shared == (16 if whole else 20)
        assert not rig.answer("a"), "parked until both legs are in"
        rig.land(LOADS)
        rig.step()
        work = rig.steps[-1].works[0]
        assert (work.start, len(work.tokens), work.write_from) == (32, 8, 32)
        assert isinstance(work.state, Carry) and work.pages[:5].tolist() == shared
        rig.run()
        rig.cold("a")
        assert (rows(rig, shared) == before).all()
        outcome = rig.outcome("a")
        assert (outcome.device, outcome.host, outcome.recomputed) == (20, 12, 8)
        rig.drained()

    @WHOLE
    @pytest.mark.parametrize("order", [(KV, STATE), (STATE, KV)], ids=["kv-first", "state-first"])
    @pytest.mark.parametrize("bad", [(True, False), (False, True), (True, True)], ids=["first", "last", "both"])
    def test_a_leg_failing_at_either_end_resumes_at_the_hit(
        self, whole: bool, order: tuple[Which, Which], bad: tuple[bool, bool]
    ) -> None:
        rig = example(whole)
        shared, image = device_pages(rig.directory, PROMPT, 20), rung_at(rig.directory, PROMPT, 20).image.at[0]
        assert image is not None
        before = rows(rig, shared)
        rig.submit("a", PROMPT)
        rig.step()
        for which, fails in zip(order, bad, strict=True):
            assert not rig.steps or not any(w.request_id == "a" for w in rig.steps[-1].works)
            assert rig.land(which, ok=not fails) == 1
            rig.step()
        work = rig.steps[-1].works[0]
        assert (work.start, work.pages[:5].tolist()) == (20, shared)
        assert isinstance(work.state, FromImage) and work.state.pages.tolist() == image.tolist()
        rig.run()
        rig.cold("a")
        assert (rows(rig, shared) == before).all()
        assert rig.outcome("a").boundary == 20 and rig.outcome("a").reason.value.startswith("load_failed")
        rig.drained()

    @WHOLE
    def test_after_a_failure_the_next_one_does_not_try_the_same_again(self, whole: bool) -> None:
        rig = example(whole)
        rig.submit("a", PROMPT)
        rig.step()
        rig.land(LOADS, ok=False)
        rig.submit("b", join(PROMPT[:33], numbers(7, 5)))
        rig.step()
        assert not rig.loop.queues.parked and not [m for m in rig.mover.pending.values() if LOADS(m)]
        rig.run()
        rig.cold("a", "b")
        rig.drained()

    @WHOLE
    def test_shared_pages_are_read_by_another_while_the_load_is_written(self, whole: bool) -> None:
        rig = example(whole)
        rig.submit("reader", PROMPT[:22], 12)
        rig.step()
        rig.submit("a", PROMPT)
        for _ in range(4):
            rig.step()
        rig.land(LOADS, ok=False)
        rig.run()
        rig.cold("reader", "a")
        rig.drained()


@pytest.mark.sampled(8)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("hit", range(272, 512, 16))
def test_a_hit_anywhere_inside_a_chunk_costs_no_shared_byte(whole: bool, hit: int) -> None:
    """Block 16, chunk 256, host up to 512: every offset, with a live reader of the shared pages, good and failed loads."""
    prompt = numbers(530, 3)
    for ok in (True, False):
        rig = Rig(256, 256, block=16, grid=16, chunk=256, whole=whole, budget=1024, rolling=16)
        rig.ask("first", prompt[: hit + 1], 1)
        rig.ask("second", prompt[:513], 1)
        if hit != 512:
            rig.drop(prompt, hit, (512,))
        rig.submit("reader", prompt[: hit + 5], 40)
        rig.step()
        shared = device_pages(rig.directory, prompt, hit)
        before = rows(rig, shared)
        rig.submit("a", prompt)
        rig.step()
        leg = next(m for m in rig.mover.pending.values() if KV(m))
        assert len(leg.source.slots) == (16 if whole else (512 - hit) // 16)
        rig.step()
        rig.land(LOADS, ok)
        rig.run()
        rig.cold("reader", "a")
        assert rig.outcome("a").boundary == (512 if ok else hit)
        assert rig.outcome("a").device == hit, "what was resident is not credited to host"
        assert (rows(rig, shared) == before).all()
        assert rig.loop.queues.tally.reasons[Reason.OFF_CHUNK_GRID] == 0
        rig.drained()


class TestReachAboveTheHit:
    @WHOLE
    def test_kv_resident_past_the_last_device_rung_stays_shared_and_is_not_fetched_again(self, whole: bool) -> None:
        """Hit 20, KV resident to 36: a chunk boundary, 32, lies between, so the claim is 32 and not 16."""
        rig = Rig(whole=whole)
        prompt = numbers(60)
        rig.ask("first", prompt[:21], 1)
        rig.ask("second", prompt[:49], 1)
        rig.drop(prompt, 36, (48,))
        found = rig.directory.survey("", prompt)
        assert found.hit is not None and (found.hit.position, found.device) == (20, 36)
        rig.submit("a", prompt)
        rig.step()
        option = rig.loading("a").option
        assert (option.boundary, option.shared) == (48, 32 if whole else 36)
        leg = next(m for m in rig.mover.pending.values() if KV(m))
        assert len(leg.source.slots) == (4 if whole else 3)
        rig.run()
        rig.cold("a")
        assert (rig.outcome("a").device, rig.outcome("a").host) == (36, 12)
        rig.drained()

    @WHOLE
    @pytest.mark.parametrize("ok", [True, False])
    def test_resident_kv_with_its_rung_in_host_loads_the_state_alone(self, whole: bool, ok: bool) -> None:
        rig = Rig(whole=whole)
        rig.ask("first", PROMPT[:21], 1)
        rig.ask("second", PROMPT[:33], 8)
        rig.drop(PROMPT, None, (32,))
        long = join(rig.history("second"), numbers(5, 4))
        for node in rig.directory.survey("", long).path:
            if node.rung is not None and node.end > 32:
                rig.directory.remove_rung(node.rung)
        resident = rig.directory.survey("", long).device
        assert resident >= 36
        rig.submit("a", long)
        rig.step()
        assert [m.what for m in rig.mover.pending.values() if LOADS(m)] == ["image"]
        rig.land(LOADS, ok)
        rig.step()
        work = rig.steps[-1].works[0]
        assert (work.start, work.write_from) == (32 if ok else 20, resident)
        rig.run()
        rig.cold("a")
        rig.drained()


class TestRaces:
    @WHOLE
    @pytest.mark.parametrize("first_ok", [True, False])
    @pytest.mark.parametrize("second_ok", [True, False])
    def test_two_requests_for_the_same_rung(self, whole: bool, first_ok: bool, second_ok: bool) -> None:
        rig = example(whole)
        rig.submit("a", PROMPT)
        rig.submit("b", PROMPT)
        rig.step()
        mine = {name: set(rig.loading(name).waiting) for name in ("a", "b")}
        assert mine["a"].isdisjoint(mine["b"])
        for name, ok in (("a", first_ok), ("b", second_ok)):
            rig.land(mine_alone(mine[name]), ok)
            rig.step()
        rig.run()
        rig.cold("a", "b")
        assert rig.outcome("a").boundary == (32 if first_ok else 20)
        assert rig.outcome("b").boundary == (32 if second_ok else 20)
        rig.drained()

    def test_the_same_prompt_twice_in_one_step_is_kept_once(self) -> None:
        rig = Rig(budget=96)
        rig.submit("a", PROMPT)
        rig.submit("b", PROMPT)
        rig.step()
        works = rig.steps[-1].works
        assert [w.request_id for w in works] == ["a", "b"]
        one, two = rig.loop.queues.running
        assert one.table.pages[:10].tolist() == two.table.pages[:10].tolist(), "the second took over the first's pages"
        rig.run()
        rig.cold("a", "b")
        assert rig.answer("a") == rig.answer("b")
        rig.drained()

    def test_a_duplicate_one_step_later_uses_only_what_that_step_wrote(self) -> None:
        """Nothing is findable before the step that computes it has run."""
        prompt = numbers(200)
        for turns in range(1, 8):
            rig = Rig(budget=32)
            rig.submit("a", prompt)
            for _ in range(turns):
                rig.step()
            computed = rig.loop.queues.running[0].computed if rig.loop.queues.running else 200
            rig.submit("b", prompt)
            rig.step()
            rig.run()
            rig.cold("a", "b")
            assert rig.outcome("b").boundary <= computed
            rig.drained()


class TestCopiesOutOfOrder:
    def test_late_doubled_and_unknown_reports_are_ignored(self) -> None:
        rig = example()
        rig.submit("a", PROMPT)
        rig.step()
        tickets = [m.ticket for m in rig.mover.pending.values() if LOADS(m)]
        rig.run()
        for ticket in (*tickets, 10_000):
            rig.report(Report(ticket, False), Report(ticket, True))
        before = rig.directory.epoch
        rig.step()
        assert rig.directory.epoch == before
        rig.cold("a")
        rig.drained()

    def test_saves_and_loads_may_land_in_any_order(self) -> None:
        for order in itertools.permutations(range(4)):
            rig = example()
            rig.submit("other", numbers(24, 8))
            rig.submit("a", PROMPT)
            rig.step()
            tickets = list(rig.mover.pending)[:4]
            for index in order:
                if index < len(tickets):
                    rig.mover.finish(tickets[index])
                    rig.step()
            rig.run()
            rig.cold("other", "a")
            rig.drained()

    def test_a_save_that_fails_is_a_miss_and_no_more(self) -> None:
        rig = Rig()
        rig.submit("a", PROMPT)
        for _ in range(12):
            rig.land(ok=False)
            rig.step()
        rig.land(ok=False)
        rig.run()
        assert rig.directory.use(Tier.HOST).cached == 0
        assert rig.ask("b", PROMPT).boundary == 36, "the device copy is still there"
        rig.drained()

    def test_nothing_half_saved_is_found(self) -> None:
        """The copies down are still running when the device copies would be needed: they are held, not read from host."""
        rig = Rig(pages=24, clean=1.0)
        rig.submit("a", PROMPT, 1)
        rig.step()
        assert rig.mover.pending and rig.directory.use(Tier.HOST).cached == 0
        found = rig.directory.survey("", PROMPT)
        assert all(f.tier is Tier.DEVICE for f in found.resume_points)
        rig.submit("b", numbers(60, 7), 1)
        rig.run()
        rig.cold("a", "b")
        rig.drained()


class TestHost:
    def test_content_whose_copy_failed_is_computed_and_stored_again(self) -> None:
        rig = example()
        rig.submit("a", PROMPT)
        rig.step()
        rig.land(LOADS, ok=False)
        rig.run()
        rig.cold("a")
        rig.drop(PROMPT, 20, (36,))
        healed = rig.ask("b", PROMPT)
        assert (healed.boundary, healed.host) == (36, 16)
        rig.drained()

    def test_what_is_being_loaded_stays_in_a_full_host(self) -> None:
        """Others need host while the load is in flight: its sources are held, whatever else must go."""
        rig = example(host=30)
        rig.submit("a", PROMPT, 1)
        rig.step()
        moves = [m for m in rig.mover.pending.values() if LOADS(m)]
        for number in range(8):
            rig.submit(f"{number}", numbers(40, 20 + number), 1)
            for _ in range(3):
                rig.land(SAVES)
                rig.step()
        free = set(rig.directory.pools[Tier.HOST].free_slots.tolist())
        assert all(free.isdisjoint(m.source.slots.tolist()) for m in moves)
        rig.run()
        rig.cold("a")
        assert rig.outcome("a").boundary == 32
        rig.drained()

    @pytest.mark.parametrize("pages", [24, 30, 40])
    def test_conversations_pushed_off_the_device_come_back_from_host(self, pages: int) -> None:
        rig = Rig(pages=pages, host=400, budget=64, grid=8)
        histories = {f"{number}": numbers(30, number) for number in range(6)}
        from_host = 0
        for turn in range(4):
            for name, history in histories.items():
                outcome = rig.ask(f"{name}.{turn}", history, 6)
                assert not turn or outcome.boundary >= len(history) - 6 - 5 - 16
                from_host += outcome.host
                histories[name] = join(rig.history(f"{name}.{turn}"), numbers(5, 100 + turn))
        assert from_host > 0
        rig.drained()

    def test_the_tail_of_one_turn_reaches_host_with_the_next(self) -> None:
        rig = Rig(pages=256, host=256, grid=8)
        history = numbers(37)
        for turn in range(5):
            rig.ask(f"{turn}", history, 6)
            history = join(rig.history(f"{turn}"), numbers(15, 100 + turn))
        rig.drop(history, 0)
        rungs = [f.position for f in rig.directory.survey("", history).resume_points]
        assert rungs and rungs[-1] >= len(history) - 15 - 6 - 16, "no gap in host below what was computed"
        assert rig.ask("back", history).host >= rungs[-1] - 8


class TestRoomForALoad:
    def test_what_a_load_will_hold_is_no_room_for_its_own_pages(self) -> None:
        """Its hit is clean, so that it counts as room until the load holds it. The rest of the device is dirty: two free pages
        are too few for a leg of three, and taking the third at once would cost content that a short wait copies down."""
        rig = Rig(17, clean=0.0, idle=False)
        other = numbers(33, 8)
        rig.ask("first", PROMPT[:21], 1)
        rig.ask("second", PROMPT[:33], 1)
        while moves := demote(rig.directory, 17):
            rig.loop.queues.moves.extend(moves)
            rig.run()
        rig.drop(PROMPT, 20, (32,))
        rig.ask("other", other, 1)
        room = rig.directory.room()
        assert (room.free, room.instant) == (2, 8), "two are free, the six of the hit are clean"
        rig.submit("a", PROMPT)
        rig.step()
        assert rig.loop.stats().waiting == 1 and rig.mover.pending, "it waits for copies down"
        assert not [move for move in rig.mover.pending.values() if LOADS(move)]
        rig.run()
        rig.cold("a")
        assert (rig.outcome("a").device, rig.outcome("a").host) == (20, 12)
        assert rig.ask("other again", join(other, numbers(5, 9))).boundary == 32, "nothing was lost"
        rig.drained()


class TestLiveStates:
    @pytest.mark.parametrize("seqs", [1, 2, 3])
    def test_twice_as_many_requests_as_slots_never_share_one(self, seqs: int) -> None:
        rig = Rig(256, 256, seqs=seqs, budget=96)
        for number in range(2 * seqs + 1):
            rig.submit(f"{number}", numbers(20 + number, number), 12)
        while rig.loop.busy:
            rig.land()
            rig.step()
            live = [w.slot for w in rig.steps[-1].works]
            assert len(set(live)) == len(live)
        rig.cold(*rig.requests)
        rig.drained()


class TestStateMissing:
    def test_kv_without_its_state_resumes_at_the_next_lower_rung(self) -> None:
        rig = Rig(host=0)
        rig.ask("first", PROMPT[:21], 1)
        rig.ask("second", PROMPT, 1)
        drop_rung(rig, 36)
        outcome = rig.ask("a", PROMPT)
        assert outcome.boundary == 20 and outcome.reason is Reason.NO_RUNG
        rig.drained()

    def test_kv_with_no_state_at_all_starts_from_a_zero_state_on_shared_pages(self) -> None:
        rig = Rig(host=0)
        rig.ask("first", PROMPT, 1)
        drop_rung(rig, 36)
        rig.submit("a", PROMPT)
        rig.step()
        work = rig.steps[-1].works[0]
        assert isinstance(work.state, Fresh) and work.start == 0 and work.write_from == 40
        rig.run()
        rig.cold("a")
        rig.drained()

    def test_kv_in_host_without_its_image_counts_for_nothing_by_itself(self) -> None:
        rig = Rig()
        rig.ask("first", PROMPT, 1)
        rig.drop(PROMPT, 0, (36,))
        rig.drop(PROMPT, None, (36,), Tier.HOST)
        outcome = rig.ask("a", PROMPT)
        assert (outcome.cached, outcome.reason) == (0, Reason.NO_RUNG)
        rig.drained()

    def test_a_live_slot_used_again_starts_clean(self) -> None:
        rig = Rig(seqs=1, host=0)
        rig.ask("secret", numbers(30, 1), 6)
        rig.memory.live[:] = 0x7F7F7F7F
        rig.ask("other", numbers(30, 2), 6)
        rig.drained()


class TestIsolation:
    def test_another_salt_shares_nothing(self) -> None:
        rig = Rig()
        rig.ask("a", PROMPT, salt="one")
        outcome = rig.ask("b", PROMPT, salt="two")
        assert outcome.cached == 0 and rig.answer("a") != rig.answer("b")
        assert rig.ask("c", PROMPT, salt="one").boundary == 36
        rig.drained()

    def test_a_prompt_that_diverges_and_comes_back_uses_each_path_for_itself(self) -> None:
        stem, left, right = numbers(24), numbers(20, 1), numbers(20, 2)
        rig = Rig()
        rig.ask("x", join(stem, left))
        rig.ask("y", join(stem, right))
        assert rig.ask("x again", join(stem, left)).boundary == 40
        assert rig.ask("y again", join(stem, right)).boundary == 40
        rig.drained()

    def test_reading_and_writing_the_cache_can_be_declined(self) -> None:
        rig = Rig()
        rig.ask("a", PROMPT)
        unread = rig.ask("b", PROMPT, read=False)
        assert unread.cached == 0 and unread.reason is Reason.NOT_READ
        before = rig.directory.use(Tier.DEVICE).cached
        rig.ask("c", numbers(40, 9), write=False)
        assert rig.directory.use(Tier.DEVICE).cached == before
        assert rig.ask("d", numbers(40, 9)).cached == 0
        rig.drained()

    def test_with_the_cache_off_nothing_is_kept(self) -> None:
        rig = Rig(cache=False)
        rig.ask("a", PROMPT)
        assert rig.ask("b", PROMPT).cached == 0
        assert rig.directory.use(Tier.DEVICE).cached == 0
        rig.drained()


class TestLongAnswers:
    """A rolling rung every 8 tokens; one in 32 tokens stays."""

    def answered(self, rig: Rig, tokens: int = 120) -> Ints:
        rig.ask("first", PROMPT, tokens)
        return join(PROMPT, rig.answer("first"))

    @pytest.mark.parametrize(("parts_at", "resumed"), [(60, 40), (75, 64), (110, 96), (158, 152)])
    def test_whoever_goes_on_from_the_middle_resumes_near_it(self, parts_at: int, resumed: int) -> None:
        """The prompt itself ends at 40; rungs stay at 64, 96 and 128, and the last one rolls."""
        rig = Rig(waypoint=32)
        told = self.answered(rig)
        outcome = rig.ask("edited", join(told[:parts_at], numbers(9, 5)), 2)
        assert outcome.cached == resumed
        rig.drained()

    @pytest.mark.parametrize(
        ("every", "stay"), [(4, (64, 96, 128)), (12, (72, 96, 132)), (20, (80, 100)), (40, (80,)), (48, (48, 96))]
    )
    def test_the_first_of_them_in_each_stretch_stays_wherever_they_lie(self, every: int, stay: tuple[int, ...]) -> None:
        """The last one of all still rolls."""
        rig = Rig(waypoint=32, rolling=every)
        self.answered(rig)
        found = [node for node in rig.directory.tree.nodes() if node.rung and node.rung.kind == RungKind.WAYPOINT]
        assert sorted(node.end for node in found) == list(stay)
        rig.drained()

    def test_one_that_is_cut_off_is_gone_on_from_near_where_its_client_stopped_listening(self) -> None:
        rig = Rig(waypoint=32, budget=64)
        rig.submit("cut", PROMPT, 400)
        while len(rig.answer("cut")) < 103:
            rig.step()
        heard = join(PROMPT, rig.answer("cut")[:92])
        rig.loop.abort("cut")
        rig.run()
        assert rig.ask("on", join(heard, numbers(9, 5)), 2).cached == 128
        rig.drained()

    @pytest.mark.parametrize(("pages", "stay"), [(76, [64, 96, 128]), (52, [])])
    def test_they_are_left_while_an_eighth_of_the_device_is_free(self, pages: int, stay: list[int]) -> None:
        """What the two requests leave behind takes 43 pages without waypoints."""
        rig = Rig(pages=pages, host=0, waypoint=32)
        rig.ask("other", numbers(40, 7), 2)
        self.answered(rig)
        found = [n.end for n in rig.directory.tree.nodes() if n.rung and n.rung.kind == RungKind.WAYPOINT]
        assert sorted(found) == stay
        rig.drained()

    def test_they_go_before_anything_that_somebody_is_likely_to_ask_for(self) -> None:
        rig = Rig(pages=64, host=0, waypoint=32)
        self.answered(rig)
        rig.ask("other", numbers(120, 7), 4)
        again = rig.ask("again", PROMPT, 2)
        assert again.cached >= 36, "the prompt's own rung outlives them"
        rig.drained()
