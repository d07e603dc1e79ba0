"""Room for who waits, and ahead of need: from the lowest tier up, and without a loss as long as anything else can be done."""

from __future__ import annotations

import pytest

from stepwell.cache.check import check
from stepwell.cache.config import Costs
from stepwell.cache.copies import copy_landed
from stepwell.cache.directory import Directory
from stepwell.cache.disk.archive import Archive, WriteBudget
from stepwell.cache.evict.make_room import copy_ahead, free_pages, make_room
from stepwell.cache.moves import Report, Tier, moves_of
from stepwell.testing.shelf import Shelf
from tests.cache.builders import COSTS, config, content, copy_down, directory, forget, keep, numbers, planned
from tests.cache.disk.test_persist import DEAR, NAMES


class TestAhead:
    @pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
    def test_the_clean_share_is_reached_and_then_left_alone(self, share: float) -> None:
        shelf = directory(clean=share)
        for seed in range(10):
            keep(shelf, numbers(20, seed), rungs=(20,), now=float(seed))
        for move in copy_ahead(shelf, COSTS, 0.0):
            copy_landed(shelf, Report(move.ticket, True))
        use = shelf.use(Tier.DEVICE)
        assert use.free + use.clean >= int(64 * share)
        assert copy_ahead(shelf, COSTS, 0.0) == []
        if share < 1:
            assert use.free + use.clean < int(64 * share) + 11 or use.free >= int(64 * share)

    def test_copies_under_way_are_counted(self) -> None:
        shelf = directory(clean=0.5)
        for seed in range(10):
            keep(shelf, numbers(20, seed), rungs=(20,), now=float(seed))
        assert copy_ahead(shelf, COSTS, 0.0) and copy_ahead(shelf, COSTS, 0.0) == []

    @pytest.mark.parametrize("host", [1, 5, 6, 11, 30, 200])
    def test_it_ends_whatever_the_size_of_host(self, host: int) -> None:
        shelf = directory(64, host)
        for seed in range(10):
            keep(shelf, numbers(20, seed), rungs=(8, 20), now=float(seed))
        rounds = 0
        while moves := copy_ahead(shelf, COSTS, 0.0):
            for move in moves:
                copy_landed(shelf, Report(move.ticket, True))
            check(shelf, [], 0)
            rounds += 1
            assert rounds < 20
        assert ended(shelf)


def ended(shelf: Directory) -> bool:
    before = content(shelf)
    return copy_ahead(shelf, COSTS, 0.0) == [] and content(shelf) == before


SLOW = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e9, 1.0))
"""Nothing is sooner read back from disk than computed."""


def three(
    host: int, pages: int = 33, disk: int = 256, budget: WriteBudget | None = None, clean: float = 0.0
) -> Directory:
    return Directory(config(pages, host, disk=disk, clean=clean), Archive(NAMES, budget=budget or WriteBudget()))


def full(shelf: Directory, prompts: int) -> None:
    """Host full of prompts of 40 tokens (11 pages with their image) that are nowhere else, and two more on the device alone."""
    for seed in range(prompts):
        keep(shelf, numbers(40, seed), 40, rungs=(40,), now=float(seed))
        copy_down(shelf)
        forget(shelf, numbers(40, seed), Tier.DEVICE, 0, (40,))
    for seed in (prompts, prompts + 1):
        keep(shelf, numbers(40, seed), 40, rungs=(40,), now=float(seed))


def found(shelf: Directory, prompts: int) -> list[int]:
    """How much of each prompt can be resumed, from wherever."""
    return [planned(shelf, numbers(48, seed)[:44], costs=DEAR).aim.boundary for seed in range(prompts)]


class Compacting(Shelf):
    """One of a record that nobody can look for."""

    @property
    def pages(self) -> int:
        return 1

    def hold(self, seconds: float = 0.0) -> bool:
        return False


def land_all(shelf: Directory, ok: bool = True) -> None:
    for ticket in list(shelf.in_flight):
        assert copy_landed(shelf, Report(ticket, ok))
    check(shelf)


class TestWithADisk:
    """Room is made on the device by a copy to host, and there by a write to disk."""

    def test_ahead_of_need_the_write_comes_first_and_nothing_is_lost(self) -> None:
        shelf = three(22, clean=0.5)
        full(shelf, 2)
        turns = 0
        while copy_ahead(shelf, DEAR, 9.0) or shelf.in_flight:
            assert found(shelf, 4) == [40] * 4
            land_all(shelf)
            turns += 1
            assert turns < 20
        use = shelf.use(Tier.DEVICE)
        assert use.free + use.clean >= 16 and found(shelf, 4) == [40] * 4

    def test_who_waits_is_told_of_the_write_and_then_of_the_copy(self) -> None:
        shelf = three(22)
        full(shelf, 2)
        first = make_room(shelf, 22, DEAR, 9.0)
        assert first.coming and not first.moves and shelf.coming(Tier.HOST) > 0
        assert {move.target.tier for move in moves_of(shelf.archive.send())} == {Tier.DISK}  # type: ignore[union-attr]
        turns = 0
        while not free_pages(shelf, 22):
            assert make_room(shelf, 22, DEAR, 9.0).coming
            land_all(shelf)
            turns += 1
            assert turns < 20
        assert found(shelf, 4) == [40] * 4

    def test_only_who_waits_takes_an_only_copy_where_nothing_may_be_written(self) -> None:
        shelf = three(22, budget=WriteBudget(rate=1.0, burst=0.0), clean=0.5)
        full(shelf, 2)
        assert not copy_ahead(shelf, DEAR, 0.0) and not shelf.in_flight and found(shelf, 4) == [40] * 4
        making = make_room(shelf, 11, DEAR, 0.0)
        assert making.coming and making.moves and found(shelf, 4) == [0, 40, 40, 40]

    def test_a_write_that_is_put_off_is_waited_for_but_not_for_ever(self) -> None:
        """What an earlier process left has to be looked up first, and a compaction commits."""
        shelf = Directory(config(33, 22, disk=256, clean=0.0), Archive(NAMES, Compacting((), 4, 4)))
        full(shelf, 2)
        for now in (0.0, 1.0, 2.0):
            shelf.archive.lookups.turn(64, now, 3.0)
            making = make_room(shelf, 22, DEAR, now)
            assert making.coming and not making.moves and not shelf.in_flight and found(shelf, 4) == [40] * 4
        shelf.archive.lookups.turn(64, 3.0, 3.0)
        assert make_room(shelf, 22, DEAR, 3.0).moves and found(shelf, 4) == [0, 0, 40, 40]

    def test_what_is_not_worth_a_write_makes_room_at_once(self) -> None:
        shelf = three(22)
        full(shelf, 2)
        making = make_room(shelf, 11, SLOW, 9.0)
        assert making.coming and making.moves and not shelf.coming(Tier.HOST)
        assert found(shelf, 4)[2:] == [40, 40]

    def test_writes_that_fail_make_room_in_the_end(self) -> None:
        shelf = three(22)
        full(shelf, 2)
        turns = 0
        while not free_pages(shelf, 22):
            assert make_room(shelf, 22, DEAR, 9.0).coming
            land_all(shelf, ok=False)
            turns += 1
            assert turns < 20

    def test_with_nothing_to_copy_nothing_is_coming(self) -> None:
        shelf = three(22)
        assert not make_room(shelf, 22, DEAR, 0.0).coming
        keep(shelf, numbers(40), 40, rungs=(40,))
        lease = shelf.lease(shelf.survey("", numbers(40)).path[-1].kv, Tier.DEVICE)
        image = shelf.lease(shelf.survey("", numbers(44)).resume_points[-1].rung.image, Tier.DEVICE)
        assert not make_room(shelf, 33, DEAR, 0.0).coming
        shelf.release(lease)
        shelf.release(image)
