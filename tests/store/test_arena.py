"""Slot lists as slices: what may be copied in one go."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.base.errors import StoreError
from stepwell.store.arena import as_slice, check_slots, joint_runs

SLOTS = st.lists(st.integers(0, 12), max_size=12)


@given(SLOTS)
def test_a_slice_names_the_very_slots(slots: list[int]) -> None:
    found = as_slice(np.array(slots, np.int32))
    ascending = all(b == a + 1 for a, b in pairwise(slots))
    assert (found is not None) == ascending
    if found is not None:
        assert list(range(found.start, found.stop)) == slots


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=12))
def test_joint_runs_cover_every_index_once_and_are_consecutive_on_both_sides(pairs: list[tuple[int, int]]) -> None:
    source, target = (np.array([p[side] for p in pairs], np.int32) for side in (0, 1))
    runs = list(joint_runs(source, target))
    assert [i for run in runs for i in range(run.start, run.stop)] == list(range(len(pairs)))
    for run in runs:
        assert as_slice(source[run]) is not None
        assert as_slice(target[run]) is not None


def test_slots_that_numpy_would_wrap_or_clip_are_refused() -> None:
    check_slots(np.array([0, 3], np.int32), 4, "the arena")
    for bad in ([4], [-1], [0, 9]):
        with pytest.raises(StoreError, match="the arena, which has 4 slots"):
            check_slots(np.array(bad, np.int32), 4, "the arena")
