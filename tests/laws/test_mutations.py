"""The laws would notice: one seeded bug after another, each found by the random runs within a bounded number of them.

Each bug replaces one function of cache/ or sched/. It counts as found when a law says so, or an invariant of the code itself.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepwell.base.units import floor_to
from stepwell.cache import account, copies, publish, slots, tree
from stepwell.cache import directory as directories
from stepwell.cache.disk import archive, learn, names
from stepwell.cache.evict import make_room, ranking, tenants
from stepwell.cache.moves import Tier
from stepwell.cache.reuse import admission, plan, survey
from stepwell.cache.slots import BlockTable
from stepwell.sched import admit, board, build, compose, finish, loop, queues, retention, step
from stepwell.sched.config import SchedConfig
from stepwell.sched.request import Finished, Tokens
from stepwell.sched.step import Fresh
from stepwell.testing import telltale
from stepwell.testing.laws import LawBroken
from tests.amounts import long
from tests.interpreted import interpreted
from tests.laws import bugs_of_quarantine  # noqa: F401  they are planted, too
from tests.laws.bugs import BUGS, Bug, bug
from tests.laws.driver import fuzz

pytestmark = interpreted

RUNS = 150


# ---- 1: nobody writes a page that anyone else references ------------------------------------------------------------


@bug(1)
def write_from_is_ignored(patch: pytest.MonkeyPatch) -> None:
    real = compose._work
    patch.setattr(compose, "_work", lambda board, share: replace(real(board, share), write_from=0))


@bug(1, 3)
def published_before_the_step_has_run(patch: pytest.MonkeyPatch) -> None:
    real = loop.build

    def early(queues: Any, directory: Any, *rest: Any, **options: Any) -> Any:
        built = real(queues, directory, *rest, **options)
        for share in built.shares.values() if isinstance(built, compose.Built) else ():
            job = share.running.job
            end = floor_to(min(share.end, len(job.tokens)), directory.tree.block)
            finish.publish(directory, share.running.path, job.tokens.view, end, share.running.table, 0.0)
        return built

    patch.setattr(loop, "build", early)


@bug(1, 2, 5, seed=248)
def abort_gives_back_what_a_load_still_writes(patch: pytest.MonkeyPatch) -> None:
    real = loop.EngineLoop.abort

    def hasty(self: loop.EngineLoop, request_id: str) -> None:
        real(self, request_id)
        for draining in self.queues.draining:
            admission.abandon(self.directory, draining.loading.held)
            self.queues.slots.append(draining.slot)
        self.queues.draining.clear()

    patch.setattr(loop.EngineLoop, "abort", hasty)


# ---- 2: KV and rung, both of the own root ----------------------------------------------------------------------------


@bug(2, seed=1)
def the_salt_is_ignored_on_lookup(patch: pytest.MonkeyPatch) -> None:
    real = survey.survey
    patch.setattr(directories, "survey", lambda tree, salt, prompt: real(tree, next(iter(tree.roots), salt), prompt))


@bug(2)
def a_boundary_is_taken_without_a_rung(patch: pytest.MonkeyPatch) -> None:
    real = admit._enter

    def further(queues: Any, directory: Any, config: Any, waiting: Any, slot: int, state: Any, now: float) -> None:
        if isinstance(state, admission.Runnable) and state.boundary < state.shared < len(waiting.job.tokens):
            state = replace(state, boundary=state.shared)
        real(queues, directory, config, waiting, slot, state, now)

    patch.setattr(admit, "_enter", further)


@bug(2)
def the_image_is_not_copied_to_the_live_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admit, "_start", lambda state: Fresh())


# ---- 3: published ⇒ computed -----------------------------------------------------------------------------------------


@bug(2, 3)
def a_rung_is_published_at_the_wrong_position(patch: pytest.MonkeyPatch) -> None:
    real = finish.leave_rung

    def shifted(directory: Any, lease: Any, position: int, *rest: Any) -> Any:
        return real(directory, lease, max(directory.tree.block, position - directory.tree.block), *rest)

    patch.setattr(finish, "leave_rung", shifted)


@bug(2, 3, 6, seed=3)
def a_failed_leg_counts_as_good(patch: pytest.MonkeyPatch) -> None:
    real = admission.reported
    patch.setattr(admit, "reported", lambda loading, report: real(loading, replace(report, ok=True)))


@bug(3)
def a_failed_copy_down_is_published(patch: pytest.MonkeyPatch) -> None:
    real = copies.copy_landed
    patch.setattr(admit, "copy_landed", lambda directory, report: real(directory, replace(report, ok=True)))


@bug(3, 10, seed=16)
def a_rung_moves_on_without_its_image(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(directories.Directory, "exchange", lambda self, rung, pages: pages)


# ---- 4: planning changes nothing; an exact fit never raises ------------------------------------------------------------


@bug(4)
def planning_marks_what_it_looks_at(patch: pytest.MonkeyPatch) -> None:
    real = directories.Directory.plan

    def marking(self: Any, salt: str, prompt: Any, *rest: Any, **more: Any) -> Any:
        for node in self.survey(salt, prompt).path:
            node.used += 1.0
        return real(self, salt, prompt, *rest, **more)

    patch.setattr(directories.Directory, "plan", marking)


@bug(0, 9, seed=13)
def what_the_plan_pins_is_counted_as_spendable(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "pinned_kv", lambda found, block: 0)
    patch.setattr(plan, "pinned_images", lambda chain: 0)


# ---- 5: leases and pools -----------------------------------------------------------------------------------------------


@bug(5)
def adopted_pages_are_not_given_back(patch: pytest.MonkeyPatch) -> None:
    real = publish._fill

    def leaking(directory: Any, node: Any, table: BlockTable, condemned: bool) -> None:
        here = node.kv.at[Tier.DEVICE]
        if here is None:
            real(directory, node, table, condemned)
        else:
            table.share(node.start // directory.tree.block, here)

    patch.setattr(publish, "_fill", leaking)


@bug(5)
def unlocking_forgets_the_leased_total(patch: pytest.MonkeyPatch) -> None:
    real = directories.unlock

    def forgetful(directory: Any, lease: Any) -> Any:
        leased = dict(directory.leased)
        try:
            return real(directory, lease)
        finally:
            directory.leased = leased

    patch.setattr(directories, "unlock", forgetful)


@bug(0, 5, seed=14)
def retracting_ignores_locks(patch: pytest.MonkeyPatch) -> None:
    def careless(directory: Any, rung: Any) -> None:
        if rung.image.node.rung is rung:
            directory.remove_rung(rung)

    patch.setattr(finish, "drop_replaced", careless)


@bug(0, 5)
def the_leases_of_a_load_are_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission.Committed, "leases", property(lambda self: []))


@bug(5)
def a_copy_down_does_not_hold_what_it_reads(patch: pytest.MonkeyPatch) -> None:
    real = copies.begin_copy

    def unheld(directory: Any, *rest: Any) -> Any:
        move = real(directory, *rest)
        directory.release(directory.in_flight[move.ticket].lease)
        return move

    patch.setattr(make_room, "begin_copy", unheld)


@bug(0, 1, 5)
def locked_copies_are_dropped(patch: pytest.MonkeyPatch) -> None:
    def blind(self: Any, tier: Tier, item: Any) -> bool:
        return item.at[tier] is not None and ranking.attached(item) and not item.below[tier]

    real = account.Account._permit

    def careless(self: Any, item: Any, tier: Tier, to: Any, slots: Any) -> None:
        locks, item.locks[tier] = item.locks[tier], 0
        try:
            real(self, item, tier, to, slots)
        finally:
            item.locks[tier] = locks

    patch.setattr(ranking.Candidates, "droppable", blind)
    patch.setattr(account.Account, "_permit", careless)


@bug(0, 5, seed=10005)
def resident_pages_are_not_shared_at_settle(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "_share_path", lambda directory, held: None)


@bug(0, 5, 9, seed=14)
def a_split_forgets_the_copy_in_flight(patch: pytest.MonkeyPatch) -> None:
    real = directories.Directory.split

    def forgetful(self: Any, node: Any, at: int) -> Any:
        upper = real(self, node, at)
        if upper.kv.pending is not None:
            self.in_flight[upper.kv.pending.ticket].items.remove(upper.kv)
        return upper

    patch.setattr(directories.Directory, "split", forgetful)


@bug(5)
def a_failed_source_is_copied_over_while_it_is_read(patch: pytest.MonkeyPatch) -> None:
    real = directories.Directory.condemn

    def early(self: Any, item: Any, tier: Tier) -> None:
        locks, item.locks[tier] = item.locks[tier], 0
        real(self, item, tier)
        item.locks[tier] = locks

    patch.setattr(directories.Directory, "condemn", early)


@bug(5, seed=6)
def host_widens_over_its_last_slot(patch: pytest.MonkeyPatch) -> None:
    real = slots.Pool.widen

    def overlapping(self: Any, count: int) -> None:
        real(self, count)
        if self.total > count > 0:
            self._stack[self.free - 1] = self.total - count - 1

    patch.setattr(slots.Pool, "widen", overlapping)


# ---- 6: a failed load resumes at its fallback ----------------------------------------------------------------------------


@bug(6)
def a_failed_load_starts_cold(patch: pytest.MonkeyPatch) -> None:
    real = admission._begin_loads

    def cold(directory: Any, held: Any, index: int, *rest: Any) -> Any:
        return real(directory, held, len(held.plan.options) - 1 if index else 0, *rest)

    patch.setattr(admission, "_begin_loads", cold)


@bug(6)
def plans_fall_back_to_nothing(patch: pytest.MonkeyPatch) -> None:
    real = plan._fallbacks

    def weak(aim: Any, *rest: Any) -> Any:
        for chain in real(aim, *rest):
            yield (chain[0], chain[-1]) if len(chain) > 1 else chain

    patch.setattr(plan, "_fallbacks", weak)


@bug(6)
def a_failed_source_can_still_be_found(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(directories.Directory, "condemn", lambda self, item, tier: None)


# ---- 8: sums, bounds, ends ------------------------------------------------------------------------------------------------


@bug(8)
def an_end_is_told_twice(patch: pytest.MonkeyPatch) -> None:
    real = finish._apply

    def again(queues: Any, *rest: Any) -> None:
        real(queues, *rest)
        if queues.events and isinstance(queues.events[-1], Finished):
            queues.events.append(queues.events[-1])

    patch.setattr(finish, "_apply", again)


@bug(8)
def resident_tokens_of_a_chunk_are_counted_twice(patch: pytest.MonkeyPatch) -> None:
    real = admission.outcome_of

    def twice(*rest: Any) -> Any:
        outcome = real(*rest)
        return replace(outcome, host=2 * outcome.host)

    patch.setattr(admission, "outcome_of", twice)


@bug(0, 2, 8, seed=16)
def the_last_token_is_not_computed(patch: pytest.MonkeyPatch) -> None:
    real = survey._measure

    def whole(path: Any, matched: int, count: int, *rest: Any) -> Any:
        return replace(real(path, matched, count + 1, *rest), tokens=count)

    patch.setattr(survey, "_measure", whole)


# ---- 9: progress -----------------------------------------------------------------------------------------------------------


@bug(9, 0, waits=16)
def nobody_asks_what_a_grammar_allows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(build, "_waits", lambda running, guidance: bool(running.job.request.params.grammar))


@bug(9)
def nobody_asks_the_index_on_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "look_up", lambda queues, directory, config, now: None)


@bug(9)
def the_preempted_wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    real = loop.admit

    def unwilling(queues: Any, *rest: Any) -> None:
        if not any(w.job.starts for w in queues.waiting):
            real(queues, *rest)

    patch.setattr(loop, "admit", unwilling)


@bug(9)
def followers_wait_for_ever(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admit, "is_following", lambda behind, come: behind is not None)


@bug(9)
def reports_of_retreats_are_lost(patch: pytest.MonkeyPatch) -> None:
    real = loop.land

    def deaf(queues: Any, directory: Any, config: Any, report: Any, clock: Any) -> None:
        if report.ok:
            real(queues, directory, config, report, clock)

    patch.setattr(loop, "land", deaf)


@bug(9, seed=14)
def copies_that_are_overdue_are_waited_for(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(directories.Directory, "miss", lambda self, ticket: None)


@bug(9, seed=14)
def nobody_makes_way_for_pages_that_lost_copies_hold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(loop, "relieve", lambda queues, directory, config: None)


# ---- 10: every answer is the cold one -----------------------------------------------------------------------------------------


@bug(2, 9, 10)
def preemption_forgets_a_token(patch: pytest.MonkeyPatch) -> None:
    real = build._release

    def forgetting(queues: Any, directory: Any, running: Any) -> None:
        real(queues, directory, running)
        if running.job.generated:
            running.job.tokens._count = len(running.job.tokens.view) - 1

    patch.setattr(build, "_release", forgetting)


# ---- the disk, and what a preempted request keeps -----------------------------------------------------------------------------


@bug(3, 5, seed=23)
def what_is_dropped_from_disk_is_not_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(archive.Archive, "forget", lambda self, slots: None)


@bug(2, 3, 10, seed=23)
def records_are_believed_without_their_digest(patch: pytest.MonkeyPatch) -> None:
    """Whatever goes on from a boundary is taken for what the prompt goes on with."""

    def any_after(directory: Any, trail: Any, position: int) -> Any:
        here = trail.at(position)
        known = [r.name.digest for r in directory.archive.catalogue.dormant.values()]
        return directory.archive.catalogue.under(here, known)

    patch.setattr(learn, "_after", any_after)
    patch.setattr(learn, "_matches", lambda directory, dormant, trail: dormant.name.end <= len(trail))


@bug(2, 3, 10, seed=27)
def all_salts_have_one_name(patch: pytest.MonkeyPatch) -> None:
    real = names.Names.root
    patch.setattr(names.Names, "root", lambda self, salt: real(self, ""))


@bug(0, 3, 5)
def a_failed_write_is_published(patch: pytest.MonkeyPatch) -> None:
    real = admit.copy_landed
    patch.setattr(admit, "copy_landed", lambda directory, report: real(directory, replace(report, ok=True)))


@bug(0, 1, 5)
def a_suspended_request_keeps_pages_that_are_free(patch: pytest.MonkeyPatch) -> None:
    real = build.suspend

    def twice(directory: Any, running: Any) -> Any:
        kept = real(directory, running)
        if kept is not None:
            directory.give(Tier.DEVICE, kept.pages)
        return kept

    patch.setattr(build, "suspend", twice)


@bug(2, 10, seed=33)
def a_suspended_request_goes_on_one_token_early(patch: pytest.MonkeyPatch) -> None:
    real = build.suspend

    def early(directory: Any, running: Any) -> Any:
        kept = real(directory, running)
        return kept and replace(kept, computed=kept.computed - (kept.computed % directory.tree.block > 1))

    patch.setattr(build, "suspend", early)


# ---- a step in flight ----------------------------------------------------------------------------------------------------------


@bug(0, 1, 5)
def a_page_is_reused_before_the_step_that_reads_it_is_collected(patch: pytest.MonkeyPatch) -> None:
    def hasty(directory: Any, node: Any, table: BlockTable) -> None:
        real(directory, node, table)
        directory.give(Tier.DEVICE, table.take_retired())

    real = publish._fill
    patch.setattr(publish, "_fill", hasty)


@bug(0, 1, 5, 8)
def an_abort_between_launch_and_collect_lets_go_at_once(patch: pytest.MonkeyPatch) -> None:
    def hasty(queues: Any, directory: Any, running: Any) -> None:
        build._release(queues, directory, running)
        queues.slots.append(running.slot)

    patch.setattr(loop, "release", hasty)


@bug(8, seed=12)
def an_extra_token_is_told(patch: pytest.MonkeyPatch) -> None:
    real = finish.dismiss

    def telling(queues: Any, directory: Any, share: Any) -> None:
        real(queues, directory, share)
        queues.events.append(Tokens(share.running.job.request.id, (1,)))

    patch.setattr(finish, "dismiss", telling)


@bug(2, 3, seed=67)
def an_extra_rung_is_published(patch: pytest.MonkeyPatch) -> None:
    real = finish.dismiss

    def publishing(queues: Any, directory: Any, share: Any) -> None:
        if share.rungs and share.end <= share.running.job.tokens.count:
            finish._publish(directory, SchedConfig(), share, 0.0)
            share = replace(share, rungs=())
        real(queues, directory, share)

    patch.setattr(finish, "dismiss", publishing)


@bug(0, 1, 2, 3, 10)
def a_change_of_a_block_table_does_not_cross_the_wire(patch: pytest.MonkeyPatch) -> None:
    """Pages that others' content has replaced in a table: only those that were added are sent."""
    real = BlockTable.share

    def silent(self: Any, start: int, pages: Any) -> Any:
        named = self._named
        try:
            return real(self, start, pages)
        finally:
            self._named = named

    patch.setattr(BlockTable, "share", silent)


@bug(2, 10)
def a_last_draw_is_stale(patch: pytest.MonkeyPatch) -> None:
    """What a slot has drawn reaches the next step but one."""
    real, late = telltale.TellTaleRunner._run, {}

    def stale(self: Any, work: Any) -> Any:
        told = real(self, work)
        if told[0]:
            self.draws[work.slot] = late.get(work.slot, telltale.UNDRAWN)
            late[work.slot] = told[0][0]
        return told

    patch.setattr(telltale.TellTaleRunner, "_run", stale)


@bug(0, 1, 2, 10)
def a_padded_row_writes(patch: pytest.MonkeyPatch) -> None:
    real = step.Decodes.padded

    def careless(self: Any, count: int, slot: int, page: int) -> Any:
        return real(self, count, int(self.slots[0]) if len(self) else slot, page)

    patch.setattr(step.Decodes, "padded", careless)


@bug(0, 1, 2, 3, 10)
def a_padded_row_writes_to_the_first_page(patch: pytest.MonkeyPatch) -> None:
    real = step.Decodes.padded
    patch.setattr(step.Decodes, "padded", lambda self, count, slot, page: real(self, count, slot, 0))


@bug(0, 2, 5, 10)
def a_request_is_preempted_while_its_step_is_in_flight(patch: pytest.MonkeyPatch) -> None:
    real = build._grow_or_preempt
    patch.setattr(build, "_grow_or_preempt", lambda *rest: real(*rest[:-1], False))


# ---- drafts -----------------------------------------------------------------------------------------------------------------------


@bug(0, 2, 3, 9, 10)
def rejected_drafts_count(patch: pytest.MonkeyPatch) -> None:
    def all_of_them(share: Any, drawn: int) -> Any:
        return replace(share, drafts=0)

    patch.setattr(finish, "_settled", all_of_them)


@bug(3)
def the_block_of_a_rejected_draft_is_published(patch: pytest.MonkeyPatch) -> None:
    real = finish._publish

    def beyond(directory: Any, config: Any, share: Any, now: float) -> None:
        real(directory, config, replace(share, end=share.end + 1), now)

    patch.setattr(finish, "_publish", beyond)


@bug(0, 3)
def a_rung_behind_a_rejected_draft_is_left_before_it(patch: pytest.MonkeyPatch) -> None:
    real = finish._publish

    def moved(directory: Any, config: Any, share: Any, now: float) -> None:
        end = floor_to(share.end, directory.tree.block)
        rungs = tuple((min(position, end), kind, pages) for position, kind, pages in share.rungs)
        real(directory, config, replace(share, rungs=rungs), now)

    patch.setattr(finish, "_publish", moved)


@bug(0, 2, 10)
def a_step_with_drafts_is_not_waited_for(patch: pytest.MonkeyPatch) -> None:
    real = build._can_decode

    def hasty(drafting: bool, running: Any) -> bool:
        running.guessing = False
        return real(False, running)

    patch.setattr(build, "_can_decode", hasty)


@bug(0, 2, 3, 10)
def drafts_are_taken_that_nobody_made(patch: pytest.MonkeyPatch) -> None:
    real = compose.compose

    def hopeful(queues: Any, *rest: Any) -> Any:
        built = real(queues, *rest)
        for running in queues.running:
            running.guessed = True
        return built

    patch.setattr(build, "compose", hopeful)


@bug(0, 2, 10)
def a_live_state_folds_rejected_drafts(patch: pytest.MonkeyPatch) -> None:
    real = telltale.TellTaleRunner._verify

    def careless(self: Any, work: Any, drawn: list[int]) -> None:
        real(self, work, drawn)
        if len(drawn) <= work.drafts:
            for memory in self._ranks:
                self._forward(memory, work, np.array([0], np.int32), work.start + len(drawn))

    patch.setattr(telltale.TellTaleRunner, "_verify", careless)


# ---- decodes that nobody looks at ------------------------------------------------------------------------------------------------


@bug(5)
def a_calm_answer_ends_a_block_unseen(patch: pytest.MonkeyPatch) -> None:
    real = board.Board.ends_block
    patch.setattr(board.Board, "ends_block", lambda self, slots, block: real(self, slots, block) & (slots != 1))


@bug(5, 8)
def a_calm_answer_runs_past_its_limit(patch: pytest.MonkeyPatch) -> None:
    real = compose.calm_until
    patch.setattr(compose, "calm_until", lambda running, drafting: 2 * real(running, drafting))


@bug(0, 2, 3, 10)
def a_calm_answer_stays_on_its_page(patch: pytest.MonkeyPatch) -> None:
    real = board.Board.lacks_page
    patch.setattr(board.Board, "lacks_page", lambda self, slots, block: real(self, slots, block) & (slots != 1))


@bug(0, 2, 5, 10)
def a_calm_answer_does_not_hear_of_pages_that_others_replaced(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockTable, "is_named", True)


@bug(2, 3, 10)
def a_token_that_is_still_being_drawn_is_taken_for_the_last_known_one(patch: pytest.MonkeyPatch) -> None:
    real = compose._decodes

    def stale(columns: Any, lineup: Any, *rest: Any) -> Any:
        return replace(real(columns, lineup, *rest), tokens=columns.last[lineup.slots])

    patch.setattr(compose, "_decodes", stale)


@bug(0, 2, 3, 10)
def a_row_of_another_request_is_kept(patch: pytest.MonkeyPatch) -> None:
    """A live slot has gone from one answer to the next between two steps."""
    patch.setattr(queues.Queues, "regroup", lambda self: setattr(self, "_line", None))


# ---- hints ------------------------------------------------------------------------------------------------------------------------


@bug(2, 3, 10, hints=40, seed=41)
def a_failed_prefetch_is_published(patch: pytest.MonkeyPatch) -> None:
    real = copies._risen
    patch.setattr(copies, "_risen", lambda directory, item, pending, ok: real(directory, item, pending, True))


@bug(0, 5, seed=2, hints=40)
def a_split_forgets_what_is_pinned(patch: pytest.MonkeyPatch) -> None:
    real = tree.Tree.split

    def forgetful(self: Any, node: Any, at: int) -> Any:
        upper = real(self, node, at)
        upper.kv.pins = 0
        return upper

    patch.setattr(tree.Tree, "split", forgetful)


@bug(5, seed=12, hints=40)
def a_tenant_is_not_told_of_what_has_gone(patch: pytest.MonkeyPatch) -> None:
    real = tenants.Tenants.moved
    patch.setattr(tenants.Tenants, "moved", lambda self, name, tier, gained: real(self, name, tier, max(gained, 0)))


@bug(5, hints=40, seed=1)
def a_prefetch_never_lets_go(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(retention.Retention, "_end", lambda self, order: self._tell(retention._outcome(order)))


def _first_failure(planted: Bug) -> BaseException | None:
    """What the first run that fails says; None if none does."""
    for seed in (planted.seed, *range(RUNS)):
        try:
            fuzz(seed, actions=60, hints=planted.hints, corrupt=planted.corrupt, waits=planted.waits)
        except Exception as error:
            return error
    return None


SOME = [planted if number % 5 == 0 else long(planted) for number, planted in enumerate(BUGS)]


@pytest.mark.parametrize("planted", SOME, ids=lambda planted: planted.name)
def test_it_is_found(planted: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.plant(monkeypatch)
    error = _first_failure(planted)
    assert error is not None, f"{RUNS} runs have not noticed"
    law = error.law if isinstance(error, LawBroken) else 0
    assert law in planted.laws, f"noticed by {error!r}"


def test_every_law_has_a_bug() -> None:
    assert {law for planted in BUGS for law in planted.laws if law} == {1, 2, 3, 4, 5, 6, 8, 9, 10, 11}
