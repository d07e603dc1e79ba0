"""Where the chunks of prompts lie."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("triton")

from hypothesis import given, settings
from hypothesis import strategies as st

from stepwell.model.cuda.chunk_plan import plan_chunks


@st.composite
def prompts(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    counts = draw(st.lists(st.integers(1, 300), min_size=1, max_size=5))
    cuts = [(s, after) for s, n in enumerate(counts) for after in sorted(draw(st.sets(st.integers(1, n), max_size=4)))]
    return counts, cuts


@settings(deadline=None)
@given(prompts())
def test_chunks_cover_every_row_once_and_end_at_cuts(made: tuple[list[int], list[tuple[int, int]]]) -> None:
    counts, cuts = made
    slots = np.arange(len(counts)) + 7
    first, count, column, begin, slot, ends, own, last = plan_chunks(np.array(counts), slots, cuts)
    assert all(field.dtype == np.int64 for field in (first, count, column, begin, slot, ends, own, last))
    rows = [row for a, n in zip(first.tolist(), count.tolist(), strict=True) for row in range(a, a + n)]
    assert rows == list(range(sum(counts)))
    assert count.min() >= 1 and count.max() <= 64
    assert own.tolist() == slots.tolist() and last.tolist() == np.cumsum(counts).tolist()
    for s, (a, b) in enumerate(zip(ends.tolist(), ends[1:].tolist(), strict=False)):
        assert set(begin[a:b].tolist()) == {int(last[s]) - counts[s]} and set(slot[a:b].tolist()) == {s + 7}
        assert int(count[a:b].sum()) == counts[s]
    found = {int(c): int(a + n - b) for a, n, c, b in zip(first, count, column, begin, strict=True) if c >= 0}
    assert found == {i: after for i, (_, after) in enumerate(cuts)}
    if not cuts:
        assert not ((first - begin) % 64).any()
