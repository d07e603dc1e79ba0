"""Engines of several ranks: one directory, a memory and faults for each rank, every law on every rank's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.config import CacheConfig
from stepwell.cache.moves import Report, Tier
from stepwell.cache.reuse.outcome import AdmissionOutcome, Reason
from stepwell.sched.request import Request, SamplingParams
from stepwell.store.ranks import JointMover, RankCount
from stepwell.testing import ranks as joint
from stepwell.testing import telltale
from stepwell.testing.faults import LIVE, FaultPlan, Where
from stepwell.testing.harness import Harness
from stepwell.testing.laws import LawBroken
from tests.amounts import amount
from tests.laws.driver import fuzz

KV = Where("kv", Tier.HOST)
STATE = Where(target=LIVE)
DOWN = Where(target=Tier.HOST)
HIT, BOUNDARY = 8, 24
RUNS = 16


def _prompt(count: int = 30) -> Ints:
    return np.arange(1, count + 1, dtype=np.int32)


def _engine(ranks: int = 2, same_kv: bool = False) -> Harness:
    """Copies down begin when a test says so: an idle engine would replace what a failed load has condemned in host."""
    cache = CacheConfig(
        telltale.geometry(),
        device_pages=40,
        host_slots=80,
        chunk=16,
        interval=8,
        min_load_tokens=4,
        copy_idle=False,
    )
    return Harness(cache, ranks=ranks, rank_faults=[FaultPlan() for _ in range(ranks)], same_kv=same_kv)


def _submit(harness: Harness, name: str, count: int = 30) -> None:
    harness.submit(Request(name, _prompt(count), SamplingParams(max_tokens=6)))


def _ask(harness: Harness, name: str) -> AdmissionOutcome:
    _submit(harness, name)
    harness.drain()
    outcome = harness.told[name].outcome
    assert outcome is not None and harness.told[name].finished is not None
    return outcome


def _left_below(harness: Harness) -> None:
    """A prompt of which the device has the first HIT tokens, and host a boundary at BOUNDARY."""
    _ask(harness, "first")
    harness.flush(Tier.DEVICE, demote_first=True, keep=HIT)


def _counts(harness: Harness) -> tuple[RankCount, ...]:
    assert isinstance(harness.ranks.mover, JointMover)
    return harness.ranks.mover.counts()


# ---- every rank its own shard ----------------------------------------------------------------------------------


@pytest.mark.parametrize("same_kv", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_every_rank_resumes_from_its_own_bytes(ranks: int, same_kv: bool) -> None:
    harness = _engine(ranks, same_kv)
    _left_below(harness)
    outcome = _ask(harness, "again")
    assert (outcome.device, outcome.host, outcome.reason) == (HIT, BOUNDARY - HIT, Reason.COMPLETE)
    cold = telltale.answer(_prompt(), 6, harness.vocab, ranks=telltale.shards(ranks, same_kv))
    assert harness.told["again"].tokens == harness.told["first"].tokens == cold


def test_ranks_that_keep_one_copy_below_for_all_are_found_out_though_their_kv_is_the_same() -> None:
    harness = _engine(same_kv=True)
    first, second = (memory.arenas for memory in harness.memories)
    second[Tier.HOST] = first[Tier.HOST]  # the last to write wins
    with pytest.raises(LawBroken, match=r"image .* of rank 0 is of another state"):
        _left_below(harness)


@pytest.mark.parametrize("tier", [Tier.DEVICE, Tier.HOST])
def test_one_wrong_word_on_one_rank_is_noticed(tier: Tier) -> None:
    harness = _engine()
    _left_below(harness)
    node = next(node for node in harness.loop.directory.tree.nodes() if node.kv.at[tier] is not None)
    harness.memories[1].arenas[tier][node.kv.at[tier], 3] ^= np.uint64(1)
    with pytest.raises(LawBroken, match="of rank 1"):
        harness.check_all()


# ---- one rank fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize(
    ("legs", "reason", "left"),
    [
        ([KV], Reason.LOAD_FAILED_KV, HIT),
        ([STATE], Reason.LOAD_FAILED_STATE, 16),
        ([KV, STATE], Reason.LOAD_FAILED_KV, HIT),
    ],
)
def test_one_rank_that_fails_a_leg_sends_all_back_to_the_hit(
    rank: int, legs: list[Where], reason: Reason, left: int
) -> None:
    harness = _engine()
    _left_below(harness)
    for leg in legs:
        harness.ranks.plans[rank].fail(leg, count=1)
    outcome = _ask(harness, "again")
    assert (outcome.boundary, outcome.reason) == (HIT, reason)
    assert _counts(harness)[rank].failed == len(legs) and _counts(harness)[1 - rank].failed == 0
    harness.flush(Tier.DEVICE, keep=HIT)
    assert _ask(harness, "after").boundary == left  # what one rank could not read is found on none, the rest still is


def test_different_ranks_may_fail_different_legs() -> None:
    harness = _engine(ranks=3)
    _left_below(harness)
    harness.ranks.plans[2].fail(KV, count=1)
    harness.ranks.plans[0].fail(STATE, count=1)
    outcome = _ask(harness, "again")
    assert (outcome.boundary, outcome.reason) == (HIT, Reason.LOAD_FAILED_KV)


def test_bytes_that_came_half_way_on_one_rank_are_used_by_none() -> None:
    harness = _engine()
    _left_below(harness)
    harness.ranks.plans[1].fail(KV, copied="half", count=1)
    assert _ask(harness, "again").boundary == HIT


@pytest.mark.parametrize("rank", [0, 1])
def test_a_copy_down_that_one_rank_fails_is_found_on_none(rank: int) -> None:
    harness = _engine()
    _ask(harness, "first")
    harness.ranks.plans[rank].fail(DOWN)
    harness.flush(Tier.DEVICE, demote_first=True)
    use = harness.loop.directory.use(Tier.HOST)
    assert _counts(harness)[rank].failed > 0
    assert (use.cached, use.leased, use.free) == (0, 0, use.total)
    assert _ask(harness, "again").cached == 0


# ---- one rank is late ------------------------------------------------------------------------------------------


def test_nobody_starts_before_the_slowest_rank() -> None:
    harness = _engine(ranks=3)
    _left_below(harness)
    harness.ranks.plans[1].delay(polls=6, count=2)
    _submit(harness, "again")
    for _ in range(5):
        harness.step()
        assert [count.open for count in _counts(harness)][1] == 2
        assert "again" in harness.loop.queues.parked
    assert [count.open for count in _counts(harness)] == [0, 2, 0]
    harness.drain()
    assert harness.told["again"].outcome is not None and harness.told["again"].outcome.host == BOUNDARY - HIT


def test_others_are_served_while_a_rank_is_slow() -> None:
    harness = _engine()
    _left_below(harness)
    harness.ranks.plans[1].delay(polls=60, count=2)
    _submit(harness, "again")
    harness.step()
    harness.submit(Request("other", _prompt(20)[::-1].copy(), SamplingParams(max_tokens=6)))
    while harness.told["other"].finished is None:
        harness.step()
    assert "again" in harness.loop.queues.parked
    harness.drain()


def test_a_failure_on_one_rank_ends_nothing_that_another_still_writes() -> None:
    harness = _engine()
    _left_below(harness)
    harness.ranks.plans[0].fail(KV, count=1).fail(STATE, count=1)
    harness.ranks.plans[1].delay(polls=6, count=2)
    _submit(harness, "again")
    for _ in range(5):
        harness.step()
        assert "again" in harness.loop.queues.parked
    harness.drain()
    assert harness.told["again"].outcome is not None and harness.told["again"].outcome.boundary == HIT


def test_pages_of_an_aborted_load_are_kept_until_the_last_rank_has_ended() -> None:
    harness = _engine()
    _left_below(harness)
    harness.ranks.plans[1].delay(polls=6, count=2)
    _submit(harness, "again")
    harness.step()
    harness.abort("again")
    for _ in range(4):
        harness.step()
        assert harness.stats().draining == 1  # rank 0 has written all it will
    harness.drain()


# ---- one rank says too much, or too late ---------------------------------------------------------------------------


def test_a_rank_that_reports_twice_does_not_speak_for_another() -> None:
    harness = _engine()
    _left_below(harness)
    harness.ranks.plans[0].duplicate()
    harness.ranks.plans[1].delay(polls=6, count=2)
    _submit(harness, "again")
    for _ in range(5):
        harness.step()
    assert "again" in harness.loop.queues.parked and _counts(harness)[0].ignored == 2
    harness.drain()


@pytest.mark.parametrize("ok", [True, False])
def test_a_report_after_the_request_is_gone_changes_nothing(ok: bool) -> None:
    harness = _engine()
    _left_below(harness)
    _submit(harness, "again")
    harness.step()
    tickets = [move.ticket for move in harness.loop.queues.parked["again"].loading.moves]
    harness.abort("again")
    harness.drain()
    before = [count.ignored for count in _counts(harness)]
    for mover in harness.ranks.movers:
        for ticket in [*tickets, 10**6]:
            mover.deliver(Report(ticket, ok, "late"))
    outcome = _ask(harness, "after")
    assert [count.ignored for count in _counts(harness)] == [n + len(tickets) + 1 for n in before]
    assert outcome.host == BOUNDARY - HIT


# ---- random runs, and bugs that they find ------------------------------------------------------------------------


@pytest.mark.more
def test_no_random_run_breaks_a_law_on_any_rank(pytestconfig: pytest.Config) -> None:
    seen: Counter[str] = Counter()
    for seed in range(amount(pytestconfig, 5, RUNS)):
        try:
            harness = fuzz(seed, 60, ranks=2 + seed % 2).harness
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        seen.update(harness.stats().tally.reasons)
        for count, mover in zip(_counts(harness), harness.ranks.movers, strict=True):
            seen.update(mover.tally)
            seen.update(done=count.done, failed=count.failed, ignored=count.ignored)
    wanted = ("done", "failed", "ignored", "delayed", "dropped", Reason.LOAD_FAILED_KV, Reason.LOAD_FAILED_STATE)
    assert not [name for name in wanted if not seen[name]], seen


def _first_success_counts(patch: pytest.MonkeyPatch) -> None:
    real = JointMover._hear

    def hasty(self: Any, rank: int, report: Report) -> Report | None:
        if report.ok and report.ticket in self._open:
            self._open[report.ticket].waiting = {rank}
        return real(self, rank, report)

    patch.setattr(JointMover, "_hear", hasty)


def _first_failure_counts(patch: pytest.MonkeyPatch) -> None:
    real = JointMover._hear

    def hasty(self: Any, rank: int, report: Report) -> Report | None:
        if not report.ok and report.ticket in self._open:
            self._open[report.ticket].waiting = {rank}
        return real(self, rank, report)

    patch.setattr(JointMover, "_hear", hasty)


def _failures_are_overheard(patch: pytest.MonkeyPatch) -> None:
    real = JointMover._hear
    patch.setattr(JointMover, "_hear", lambda self, rank, report: real(self, rank, replace(report, ok=True)))


def _any_rank_speaks_for_any(patch: pytest.MonkeyPatch) -> None:
    real = JointMover._hear

    def counting(self: Any, rank: int, report: Report) -> Report | None:
        waiting = self._open[report.ticket].waiting if report.ticket in self._open else set()
        return real(self, rank if rank in waiting else min(waiting, default=rank), report)

    patch.setattr(JointMover, "_hear", counting)


def _the_last_rank_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(joint, "JointMover", lambda movers: JointMover(movers[:-1]))


def _all_ranks_share_what_is_below(patch: pytest.MonkeyPatch) -> None:
    real = joint.Ranks.__init__

    def sharing(self: Any, memories: Any, *rest: Any) -> None:
        real(self, memories, *rest)
        for memory in memories:
            memory.arenas[Tier.HOST] = memories[0].arenas[Tier.HOST]

    patch.setattr(joint.Ranks, "__init__", sharing)


@pytest.mark.parametrize(
    "plant",
    [
        _first_success_counts,
        _first_failure_counts,
        _failures_are_overheard,
        _any_rank_speaks_for_any,
        _the_last_rank_is_forgotten,
        _all_ranks_share_what_is_below,
    ],
)
def test_random_runs_notice(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(LawBroken):
        for seed in range(RUNS):
            fuzz(seed, 60, ranks=2 + seed % 2)
