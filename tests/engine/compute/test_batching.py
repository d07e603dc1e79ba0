"""A step as arrays: rows, places of keys and values, cuts and wanted logits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.engine.compute.batching import Laid, Layout, lay_out  # noqa: E402
from stepwell.engine.compute.wishes import Wishes  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.sched.step import FIRST_DRAFT, LAST_DRAW, Carry, Cut, Decodes, Sample, Score, Step, Work  # noqa: E402

BLOCK, SPARE = 4, 99
GREEDY = Sample(SamplingParams(), 0)


def of(
    slot: int,
    start: int,
    tokens: list[int],
    write_from: int = 0,
    cuts: tuple[int, ...] = (),
    score: Score | None = None,
    sample: Sample | None = GREEDY,
) -> Work:
    pages = np.arange(10, dtype=np.int32) + 10 * slot
    marks = tuple(Cut(at, np.array([at], np.int32)) for at in cuts)
    ids = np.array(tokens, np.int32)
    return Work(f"r{slot}", slot, 0, start, ids, pages, write_from, Carry(), marks, sample, score)


WORKS = (
    of(3, 6, [7, 8, 9], write_from=8, cuts=(9, 8)),
    of(2, 5, [LAST_DRAW]),
    of(0, 0, [1, 2, 3, 4, 5], cuts=(4,), sample=None, score=Score(np.array([2, 3], np.int32), 0)),
    of(1, 9, [6], write_from=12, cuts=(10,)),
)


def laid_out(step: Step, held: bool = False) -> Laid:
    return lay_out(step, Layout(BLOCK, SPARE, held), Wishes(8))


def test_rows_are_decodes_by_slot_then_the_others_as_they_come() -> None:
    batch = laid_out(Step(WORKS), False).batch
    assert batch.decodes == 2
    assert batch.slots.tolist() == [1, 2, 3, 0]
    assert batch.tokens.tolist() == [6, LAST_DRAW, 7, 8, 9, 1, 2, 3, 4, 5]
    assert batch.positions.tolist() == [9, 5, 6, 7, 8, 0, 1, 2, 3, 4]
    assert (batch.starts.tolist(), batch.counts.tolist()) == ([9, 5, 6, 0], [1, 1, 3, 5])


def test_what_is_shared_goes_to_the_spare_page() -> None:
    batch = laid_out(Step(WORKS), False).batch
    assert batch.page.tolist() == [SPARE, 21, SPARE, SPARE, 32, 0, 0, 0, 0, 1]
    assert batch.offset.tolist() == [1, 1, 2, 3, 0, 0, 1, 2, 3, 0]


def test_cuts_inside_works_have_columns_and_those_at_ends_are_live_states() -> None:
    laid = laid_out(Step(WORKS), False)
    assert laid.batch.cuts.pairs() == [(2, 2), (3, 4)]
    assert [pages.tolist() for pages in laid.inner] == [[8], [4]]
    assert [(slot, pages.tolist()) for slot, pages in laid.ends] == [(3, [9]), (1, [10])]


def test_where_single_tokens_stay_pending_the_state_behind_one_is_looked_at_ahead() -> None:
    laid = laid_out(Step(WORKS), True)
    assert laid.batch.cuts.pairs() == [(2, 2), (3, 4)]
    assert [pages.tolist() for pages in laid.inner] == [[8], [4]]
    assert [(slot, pages.tolist()) for slot, pages in laid.ends] == [(3, [9])]
    assert [pages.tolist() for pages in laid.ahead.pages] == [[10]] and laid.ahead.rows.tolist() == [0]
    ahead = laid.ahead.ahead
    assert (ahead.slots.tolist(), ahead.starts.tolist(), ahead.after.tolist()) == ([1], [9], [1])


def test_a_cut_among_drafts_is_told_by_the_row_before_it() -> None:
    drafted = replace(of(4, 6, [7], cuts=(8,), sample=Sample(SamplingParams(), 3)), drafts=3)
    laid = laid_out(Step((*WORKS, drafted)), True)
    assert laid.ahead.rows.tolist() == [0, 3] and laid.ahead.ahead.after.tolist() == [1, 2]
    assert laid.batch.tokens[2:6].tolist() == [7, FIRST_DRAFT, FIRST_DRAFT - 1, FIRST_DRAFT - 2]
    assert laid.asked.works == (3, 1, 4, 4, 4, 4, 0)


def test_logits_are_asked_for_by_row_of_the_batch_and_told_by_work_of_the_step() -> None:
    laid = laid_out(Step(WORKS), False)
    assert laid.asked.works == (3, 1, 0) and [i for i, _ in laid.scoring] == [2]
    assert laid.batch.asked.tolist() == [0, 1, 4, 5, 6]


def test_a_prompts_single_token_may_stand_with_the_prompts() -> None:
    answering = of(5, 7, [3], sample=Sample(SamplingParams(), 1))
    laid = lay_out(Step((*WORKS, answering)), Layout(BLOCK, SPARE, True, apart=True), Wishes(8))
    assert laid.batch.decodes == 1 and laid.batch.slots.tolist() == [5, 3, 2, 0, 1]
    assert [(slot, pages.tolist()) for slot, pages in laid.ends] == [(3, [9]), (1, [10])], "nothing of it is pending"


PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.5, top_k=9, top_p=0.9, min_p=0.1, seed=(1 << 64) - 3),
    SamplingParams(logprobs=0),
)
DECODES = Decodes(
    names=("a", "b", "c"),
    slots=np.array([5, 4, 6], np.int32),
    roots=np.zeros(3, np.int64),
    starts=np.array([7, 8, 3], np.int32),
    tokens=np.array([LAST_DRAW, LAST_DRAW, 1], np.int32),
    tables=tuple(np.arange(3, dtype=np.int32) + 10 * slot for slot in (5, 4, 6)),
    known=np.array([2, 3, 0], np.int32),
    params=PARAMS,
    indices=np.array([4, 5, 2], np.int32),
    cuts=((0, Cut(8, np.array([77], np.int32))),),
)


@pytest.mark.parametrize("held", [False, True])
def test_decodes_alone_are_laid_out_as_works_would_be(held: bool) -> None:
    histories = ((1, np.arange(9, dtype=np.int32)),)
    step = Step((), replace(DECODES, histories=histories))
    one, other = laid_out(step, held), laid_out(Step(step.works), held)
    for name in ("tokens", "positions", "page", "offset", "slots", "starts", "counts", "known", "asked"):
        mine, theirs = getattr(one.batch, name), getattr(other.batch, name)
        assert mine.tolist() == theirs.tolist() and mine.dtype == theirs.dtype == np.int64, name
    assert [table.tolist() for table in one.batch.tables] == [table.tolist() for table in other.batch.tables]
    assert one.batch.decodes == other.batch.decodes == 3 and one.batch.plain == other.batch.plain
    for name in ("works", "names", "params", "special", "kept"):
        assert getattr(one.asked, name) == getattr(other.asked, name), name
    assert [row for row, _ in one.asked.histories] == [row for row, _ in other.asked.histories] == [0]
    assert [slot for slot, _ in one.ends] == [slot for slot, _ in other.ends] == ([] if held else [5])
    assert one.ahead.rows.tolist() == other.ahead.rows.tolist() == ([1] if held else [])
    assert one.sampled.tolist() == other.sampled.tolist() and not one.inner and not one.scoring


def test_answers_that_go_on_are_laid_out_as_if_for_the_first_time() -> None:
    """What is remembered of them from step to step changes nothing but the time that it takes."""
    wishes, layout = Wishes(8), Layout(BLOCK, SPARE, False)
    two = Decodes(
        *(DECODES.names[:2], DECODES.slots[:2], DECODES.roots[:2], DECODES.starts[:2], DECODES.tokens[:2]),
        *(DECODES.tables[:2], DECODES.known[:2], DECODES.params[:2], DECODES.indices[:2]),
    )
    others = replace(DECODES, params=(PARAMS[2], PARAMS[0], PARAMS[1]))
    for base in (DECODES, two, DECODES, others):
        for more in range(4):
            step = Step((), replace(base, starts=base.starts + np.int32(more), indices=base.indices + np.int32(more)))
            known, fresh = lay_out(step, layout, wishes), laid_out(step)
            assert (known.asked.works, known.asked.special) == (fresh.asked.works, fresh.asked.special)
            for name in ("temperature", "top_p", "min_p", "top_k", "seed", "index", "slots"):
                assert getattr(known.batch.draws, name).tolist() == getattr(fresh.batch.draws, name).tolist(), name
            assert known.batch.tokens.tolist() == fresh.batch.tokens.tolist()


def test_decodes_are_laid_out_as_the_works_they_stand_for() -> None:
    step = Step(WORKS, DECODES)
    one, other = laid_out(step), laid_out(Step(step.works))
    for name in ("tokens", "positions", "page", "offset", "slots", "starts", "counts", "known", "asked"):
        assert getattr(one.batch, name).tolist() == getattr(other.batch, name).tolist(), name
    assert [table.tolist() for table in one.batch.tables] == [table.tolist() for table in other.batch.tables]
    assert (one.asked.works, one.asked.params) == (other.asked.works, other.asked.params)
    assert [(slot, pages.tolist()) for slot, pages in one.ends] == [(5, [77]), (3, [9]), (1, [10])]
    assert one.batch.decodes == 5 and one.batch.slots.tolist() == [1, 2, 4, 5, 6, 3, 0]


def test_how_tokens_are_drawn_is_columns_of_the_rows_that_draw() -> None:
    laid = laid_out(Step((), DECODES))
    draws = laid.batch.draws
    assert draws.slots.tolist() == [4, 5, 6]
    assert (draws.temperature.tolist(), draws.top_k.tolist()) == ([0.5, 0, 0], [9, 0, 0])
    assert (draws.top_p.tolist(), draws.min_p.tolist()) == ([0.9, 1, 1], [0.1, 0, 0])
    assert (draws.seed.tolist(), draws.index.tolist()) == ([-3, 0, 0], [5, 4, 2])
    assert not draws.greedy and laid.asked.special == (2,) and not laid.batch.plain


def test_a_slot_that_changes_hands_draws_as_its_new_request_wants() -> None:
    wishes = Wishes(3)
    slots, index = np.array([1]), np.array([3])
    assert not wishes.draws(slots, (SamplingParams(temperature=1, min_tokens=9),), index).greedy
    assert wishes.special(slots, index) == [0]
    assert wishes.draws(slots, (SamplingParams(temperature=1, top_k=1),), index).greedy
    assert wishes.special(slots, index) == []
