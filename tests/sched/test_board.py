"""Columns of all running requests tell the same together as one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepwell.sched.board import Board

BLOCK = 4
AROUND_A_BLOCK = st.integers(0, 2 * BLOCK)


@given(st.lists(st.tuples(AROUND_A_BLOCK, AROUND_A_BLOCK, st.integers(0, 3)), min_size=1, max_size=5))
def test_a_step_is_quiet_where_each_row_is_calm_has_its_page_and_ends_no_block(
    rows: list[tuple[int, int, int]],
) -> None:
    board, slots = Board(len(rows)), np.arange(len(rows), dtype=np.int32)[::-1]
    board.launched[:], board.calm[:], board.named[:] = np.array(rows).T
    each = board.is_calm(slots) & ~board.lacks_page(slots, BLOCK) & ~board.ends_block(slots, BLOCK)
    assert board.is_quiet(slots, BLOCK) == each.all()
