"""Copies as arrays: which bytes go where."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.store.pieces import Spans, pieces

SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def spread(sizes: list[int], seed: int) -> Spans:
    """Spans of these sizes, in random order and with gaps between them."""
    order = np.random.default_rng(seed).permutation(len(sizes))
    addresses = np.zeros(len(sizes), np.uint64)
    at = 0
    for i in order.tolist():
        addresses[i] = at
        at += sizes[i] + 1
    return Spans(addresses, np.array(sizes, np.uint64))


def bytes_of(spans: Spans) -> list[int]:
    """The address of every byte, in order."""
    pairs = zip(spans.addresses.tolist(), spans.sizes.tolist(), strict=True)
    return [address + i for address, size in pairs for i in range(size)]


@given(SIZES, SIZES, st.integers(0, 9))
def test_every_byte_of_the_target_comes_from_its_place_in_the_source(
    source: list[int], target: list[int], seed: int
) -> None:
    source = [*source, max(1, sum(target) - sum(source))]  # at least as many bytes
    ours, theirs = spread(source, seed), spread(target, seed + 1)
    found = pieces(ours, theirs)
    assert bytes_of(Spans(found.targets, found.sizes)) == bytes_of(theirs)
    assert bytes_of(Spans(found.sources, found.sizes)) == bytes_of(ours)[: sum(target)]
    assert found.bytes == sum(target) and len(found.sizes) <= len(source) + len(target)


def test_rows_are_spans_of_one_width() -> None:
    spans = Spans.of_rows(1000, 64, np.array([3, 0, 1], np.int32))
    assert spans.addresses.tolist() == [1192, 1000, 1064] and spans.sizes.tolist() == [64, 64, 64]


def test_nothing_goes_nowhere() -> None:
    nothing = Spans.of_rows(0, 64, np.array([], np.int32))
    assert pieces(nothing, nothing).bytes == 0


def test_a_target_is_never_filled_with_bytes_that_are_not_there() -> None:
    with pytest.raises(AssertionError, match="4 bytes cannot fill 5"):
        pieces(spread([4], 0), spread([5], 0))
