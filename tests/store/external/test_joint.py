"""Ranks whose stores have lost different things: an answer is leased on all of them, or on none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stepwell.cache.disk.names import Names
from stepwell.cache.external.ledger import What
from stepwell.cache.external.query import Query, QueryAnswer
from stepwell.cache.moves import Name
from stepwell.store.external.joint import JointStore

CHUNK, CHUNKS = 16, 6
TRAIL = Names(b"k" * 32, CHUNK).trail("", np.arange(CHUNK * CHUNKS, dtype=np.int32))
KV = tuple(TRAIL.records(0, CHUNK * CHUNKS))
IMAGES = tuple(TRAIL.image(end) for end in range(CHUNK, CHUNK * CHUNKS + 1, CHUNK))


class Stores:
    """Of each rank: ends of the chunks and of the images that it has. An answer is given as the test asks for it."""

    def __init__(self, kv: Sequence[set[int]], images: Sequence[set[int]]) -> None:
        self.kv, self.images = kv, images
        self.leases: set[tuple[int, int]] = set()
        self.asked: list[tuple[int, Query]] = []
        self.forgotten: list[Name] = []

    def look_up(self, query: Query, ranks: int) -> None:
        self.asked += [(rank, query) for rank in range(ranks)]

    def answers(self) -> Sequence[tuple[int, QueryAnswer]]:
        due, self.asked = self.asked[-1:], self.asked[:-1]  # the last rank answers first
        return [(rank, self._answer(rank, query)) for rank, query in due]

    def _answer(self, rank: int, query: Query) -> QueryAnswer:
        reach = query.start
        for name in query.kv:
            if name.end not in self.kv[rank]:
                break
            reach = name.end
        boundary = max((n.end for n in query.images if n.end <= reach and n.end in self.images[rank]), default=0)
        if boundary:
            self.leases.add((query.number, rank))
        return QueryAnswer(query.number, reach, boundary)

    def release(self, number: int) -> None:
        self.leases = {lease for lease in self.leases if lease[0] != number}
        self.asked = [one for one in self.asked if one[1].number != number]

    def forget(self, what: What, names: Sequence[Name]) -> None:
        self.forgotten += names


def heard(joint: JointStore, stores: Stores) -> list[QueryAnswer]:
    found: list[QueryAnswer] = []
    for _ in range(4 * CHUNKS):
        found += joint.answers()
    assert not stores.asked
    return found


ends = st.sets(st.sampled_from([name.end for name in KV]))
ranks = st.lists(st.tuples(ends, ends), min_size=1, max_size=4)


@given(ranks, st.integers(0, CHUNKS - 1))
def test_the_answer_is_the_deepest_state_that_all_ranks_have(has: list[tuple[set[int], set[int]]], first: int) -> None:
    stores = Stores([kv for kv, _ in has], [images for _, images in has])
    joint = JointStore(stores, len(has))
    joint.look_up(Query(7, first * CHUNK, KV[first:], IMAGES))
    (answer,) = heard(joint, stores)
    reach = first * CHUNK
    while all(reach + CHUNK in kv for kv, _ in has):
        reach += CHUNK
    common = set.intersection(*(images for _, images in has))
    assert answer == QueryAnswer(7, reach, max((end for end in common if end <= reach), default=0))
    assert len(stores.leases) == (len(has) if answer.boundary else 0)
    joint.release(7)
    assert not stores.leases


@given(ranks, st.integers(0, 12))
def test_what_is_given_up_at_any_time_leaves_no_lease_and_no_answer(
    has: list[tuple[set[int], set[int]]], polls: int
) -> None:
    stores = Stores([kv for kv, _ in has], [images for _, images in has])
    joint = JointStore(stores, len(has))
    joint.look_up(Query(7, 0, KV, IMAGES))
    before = [answer for _ in range(polls) for answer in joint.answers()]
    joint.release(7)
    joint.release(7)
    assert not stores.leases and not stores.asked
    assert not heard(joint, stores) and len(before) <= 1


def test_a_lookup_of_the_first_rank_asks_no_other() -> None:
    stores = Stores([{16}, set()], [{16}, set()])
    joint = JointStore(stores, 1)
    joint.look_up(Query(1, 0, KV, IMAGES))
    assert heard(joint, stores) == [QueryAnswer(1, 16, 16)] and stores.leases == {(1, 0)}
    joint.forget("kv", KV[:1])
    assert stores.forgotten == [KV[0]]
