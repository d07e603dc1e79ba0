"""A step as arrays: rows, places of keys and values, cuts and wanted logits."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from stepwell.engine.batching import end_cuts, lay_out  # noqa: E402
from stepwell.sched.request import SamplingParams  # noqa: E402
from stepwell.sched.step import LAST_DRAW, Carry, Cut, Sample, Score, Work  # noqa: E402

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


def test_rows_are_decodes_by_slot_then_the_others_as_they_come() -> None:
    batch = lay_out(WORKS, BLOCK, SPARE, False).batch
    assert batch.decodes == 2
    assert batch.slots.tolist() == [1, 2, 3, 0]
    assert batch.tokens.tolist() == [6, LAST_DRAW, 7, 8, 9, 1, 2, 3, 4, 5]
    assert batch.positions.tolist() == [9, 5, 6, 7, 8, 0, 1, 2, 3, 4]
    assert (batch.starts.tolist(), batch.counts.tolist()) == ([9, 5, 6, 0], [1, 1, 3, 5])


def test_what_is_shared_goes_to_the_spare_page() -> None:
    batch = lay_out(WORKS, BLOCK, SPARE, False).batch
    assert batch.page.tolist() == [SPARE, 21, SPARE, SPARE, 32, 0, 0, 0, 0, 1]
    assert batch.offset.tolist() == [1, 1, 2, 3, 0, 0, 1, 2, 3, 0]


def test_cuts_inside_works_have_columns_and_those_at_ends_are_live_states() -> None:
    laid = lay_out(WORKS, BLOCK, SPARE, False)
    assert laid.batch.cuts.pairs() == [(2, 2), (3, 4)]
    assert [pages.tolist() for pages in laid.inner] == [[8], [4]]
    assert [(slot, pages.tolist()) for slot, pages in end_cuts(WORKS, False)] == [(3, [9]), (1, [10])]


def test_where_single_tokens_stay_pending_a_cut_behind_one_has_a_column_too() -> None:
    laid = lay_out(WORKS, BLOCK, SPARE, True)
    assert laid.batch.cuts.pairs() == [(0, 1), (2, 2), (3, 4)]
    assert [pages.tolist() for pages in laid.inner] == [[10], [8], [4]]
    assert [(slot, pages.tolist()) for slot, pages in end_cuts(WORKS, True)] == [(3, [9])]


def test_logits_are_asked_for_by_row_of_the_batch_and_told_by_work_of_the_step() -> None:
    laid = lay_out(WORKS, BLOCK, SPARE, False)
    assert laid.sampling == (3, 1, 0) and laid.scoring == (2,)
    assert laid.batch.asked.tolist() == [0, 1, 4, 5, 6]
