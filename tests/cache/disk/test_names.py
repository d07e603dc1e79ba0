"""Digests in place of tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepwell.base.geometry import Ints
from stepwell.cache.disk.names import Names

NAMES = Names(b"k" * 32, 8)


def ints(tokens: list[int]) -> Ints:
    return np.array(tokens, np.int32)


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40), st.data())
def test_two_prefixes_share_a_digest_only_if_they_are_the_same(a: list[int], b: list[int], data: st.DataObject) -> None:
    i, j = data.draw(st.integers(0, len(a))), data.draw(st.integers(0, len(b)))
    same = NAMES.trail("s", ints(a)).at(i) == NAMES.trail("s", ints(b)).at(j)
    assert same == (a[:i] == b[:j])


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=60), st.data())
def test_a_digest_does_not_depend_on_how_it_is_reached(tokens: list[int], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(tokens)))
    whole, asked = NAMES.trail("", ints(tokens)), NAMES.trail("", ints(tokens[:at]))
    for _ in range(3):
        whole.at(data.draw(st.integers(0, len(tokens))))
    assert whole.at(at) == asked.at(at)


def test_another_salt_or_key_gives_another_name_throughout() -> None:
    tokens = ints(list(range(20)))
    trails = [NAMES.trail("a", tokens), NAMES.trail("b", tokens), Names(b"l" * 32, 8).trail("a", tokens)]
    for at in (0, 5, 8, 20):
        assert len({trail.at(at) for trail in trails}) == 3


def test_records_are_cut_at_chunk_boundaries_and_chained() -> None:
    trail = NAMES.trail("", ints(list(range(24))))
    names = list(trail.records(4, 20))
    assert [(n.start, n.end) for n in names] == [(4, 8), (8, 16), (16, 20)]
    assert [n.parent for n in names] == [trail.at(4), trail.at(8), trail.at(16)]
    assert [n.digest for n in names] == [trail.at(8), trail.at(16), trail.at(20)]
    assert trail.image(20).parent == names[-1].digest == trail.image(20).digest
