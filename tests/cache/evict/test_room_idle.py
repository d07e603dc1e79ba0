"""Copies down while nothing else is to be done: into free slots of host alone, and at no price."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from stepwell.cache import hints
from stepwell.cache.check import check
from stepwell.cache.config import Costs
from stepwell.cache.copies import copy_landed
from stepwell.cache.directory import Directory
from stepwell.cache.disk.archive import Archive
from stepwell.cache.evict import make_room as room
from stepwell.cache.evict.make_room import IDLE_PARTS, copy_ahead, copy_idle, free_pages
from stepwell.cache.moves import Move, Report, Tier
from stepwell.cache.tree import Item
from tests.cache.builders import COSTS, config, content, copy_down, forget, keep, node_ending, numbers, rung_at, where
from tests.cache.disk.test_persist import DEAR, NAMES
from tests.interpreted import interpreted


def idle(shelf: Directory, costs: Costs = COSTS) -> list[list[Move]]:
    """What each turn of an idle engine begins, all of which lands before the next."""
    turns: list[list[Move]] = []
    while moves := copy_idle(shelf, costs).moves:
        turns.append(moves)
        for move in moves:
            assert copy_landed(shelf, Report(move.ticket, True))
        check(shelf, [], 0)
    return turns


def filled(shelf: Directory, prompts: int, tokens: int = 20) -> Directory:
    """Prompts of 5 pages and an image each, the first the least valuable."""
    for seed in range(prompts):
        keep(shelf, numbers(tokens, seed), rungs=(tokens,), now=float(seed))
    return shelf


def found(shelf: Directory, prompts: int, tokens: int = 20) -> int:
    """Prompts of which everything is somewhere."""
    paths = [shelf.survey("", numbers(tokens, seed)) for seed in range(prompts)]
    return sum(bool(path.resume_points) and path.resume_points[-1].position == path.union == tokens for path in paths)


def items(shelf: Directory) -> list[Item]:
    return [item for node in shelf.tree.nodes() for item in node.items()]


def pages(moves: list[Move]) -> int:
    return sum(len(move.source.slots) for move in moves)


class TestPieces:
    def test_in_the_end_host_has_all_that_the_device_has(self) -> None:
        shelf = filled(Directory(config(64, 64, clean=0.0)), 10)
        idle(shelf)
        assert {where(item) for item in items(shelf) if item.node.parent} == {"dh"}
        assert shelf.use(Tier.DEVICE).clean == 60 and free_pages(shelf, 64)

    def test_the_least_valuable_goes_first(self) -> None:
        shelf = filled(Directory(config(64, 64, clean=0.0)), 10)
        first = idle(shelf)[0]
        assert {move.ticket for move in first} and where(node_ending(shelf, numbers(20, 0), 20).kv) == "dh"
        shelf = filled(Directory(config(64, 12, clean=0.0)), 10)
        idle(shelf)
        in_host = [seed for seed in range(10) if where(node_ending(shelf, numbers(20, seed), 20).kv) == "dh"]
        assert in_host == [0, 1]

    def test_a_piece_is_under_way_at_a_time(self) -> None:
        shelf = filled(Directory(config(64, 64, clean=0.0)), 10)
        moves = copy_idle(shelf, COSTS).moves
        assert 64 // IDLE_PARTS <= pages(moves) < 64 // IDLE_PARTS + 5
        assert not copy_idle(shelf, COSTS).moves, "this one has not landed"
        copy_landed(shelf, Report(moves[0].ticket, True))
        assert 0 < pages(copy_idle(shelf, COSTS).moves) <= pages(moves[:1]) + 5

    def test_a_slow_link_makes_it_smaller(self) -> None:
        shelf = filled(Directory(config(64, 64, clean=0.0)), 10)
        slow = Costs(bytes_per_s=(float("inf"), 64 / room.IDLE_SECONDS, 1.0))  # a page
        assert len(copy_idle(shelf, slow).moves) == 1

    def test_it_ends_where_a_copy_fails(self) -> None:
        shelf = filled(Directory(config(64, 64, clean=0.0)), 10)
        turns = 0
        while moves := copy_idle(shelf, COSTS).moves:
            for move in moves:
                copy_landed(shelf, Report(move.ticket, False))
            turns += 1
            assert turns < 30
        assert shelf.use(Tier.HOST).cached == 0

    def test_none_where_it_is_not_wanted_or_there_is_no_host(self) -> None:
        assert not idle(filled(Directory(replace(config(64, 64, clean=0.0), copy_idle=False)), 10))
        assert not idle(filled(Directory(config(64, 0, clean=0.0)), 10))


class TestPrice:
    @pytest.mark.parametrize("host", [1, 5, 6, 11, 30, 59])
    def test_nothing_in_host_goes_for_it(self, host: int) -> None:
        shelf = Directory(config(64, host, clean=0.0))
        keep(shelf, numbers(12, 77), rungs=(12,))
        copy_down(shelf)
        forget(shelf, numbers(12, 77), Tier.DEVICE, 0, (12,)) if host >= 4 else None
        filled(shelf, 10)
        before = [entry for entry in content(shelf) if entry[3] == "h"]
        idle(shelf)
        assert [entry for entry in content(shelf) if entry[3] == "h"] == before
        assert shelf.pools[Tier.HOST].free < 6, "what is left is too little for the next"

    def test_with_a_disk_host_keeps_its_clean_share_and_nothing_is_written_for_it(self) -> None:
        shelf = filled(Directory(config(64, 40, disk=256, clean=0.25), Archive(NAMES)), 10)
        while moves := copy_ahead(shelf, DEAR, 0.0):
            for move in moves:
                copy_landed(shelf, Report(move.ticket, True))
        idle(shelf)
        assert 10 <= shelf.pools[Tier.HOST].free < 16
        copy_ahead(shelf, DEAR, 0.0)
        assert not shelf.coming(Tier.HOST)

    def test_what_is_pinned_stays_the_only_copy_and_so_outlasts_all_others_on_the_device(self) -> None:
        shelf = filled(Directory(config(64, 64, clean=0.0)), 10)
        assert hints.pin(shelf, ("", "a"), numbers(20, 0), 100.0) == 20
        idle(shelf)
        assert {where(item) for item in items(shelf) if item.node.parent and not item.pins} == {"dh"}
        assert {where(item) for item in items(shelf) if item.pins} == {"d"}
        assert free_pages(shelf, 58) and shelf.survey("", numbers(21, 0)).device == 20

    @interpreted
    def test_what_would_take_the_place_of_something_is_noticed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The same with a planted bug: any price is paid."""
        real = room._room_in_host
        monkeypatch.setattr(room, "_room_in_host", lambda shelf, item, price: real(shelf, item, room.Price.ANY))
        with pytest.raises(AssertionError):
            self.test_nothing_in_host_goes_for_it(30)


class TestNothingIsKeptTwiceUnderPressure:
    """What host holds of the device takes the place of nothing, however much comes afterwards."""

    @pytest.mark.parametrize("seed", range(30))
    def test_as_much_is_found_as_without(self, seed: int) -> None:
        rng = Random(seed)
        device, host, clean = rng.randint(24, 60), rng.randint(6, 90), rng.choice((0.0, 0.05, 0.3))
        first, then = rng.randint(2, device // 6), rng.randint(1, 30)
        kept = [self._play(device, host, clean, first, then, copies) for copies in (True, False)]
        assert kept[0] >= kept[1], (device, host, clean, first, then)

    @staticmethod
    def _play(device: int, host: int, clean: float, first: int, then: int, copies: bool) -> int:
        """Prompts that are still whole: `first` of them came before a pause, `then` after it."""
        shelf = Directory(replace(config(device, host, clean=clean), copy_idle=copies))
        for seed in range(first + then):
            if seed == first:
                idle(shelf)
            while not free_pages(shelf, 6):
                made = room.make_room(shelf, 6, COSTS, 0.0)
                for move in made.moves:
                    copy_landed(shelf, Report(move.ticket, True))
                if not made.moves:
                    assert free_pages(shelf, 6, force=True)
            keep(shelf, numbers(20, seed), rungs=(20,), now=float(seed))
            for move in copy_ahead(shelf, COSTS, 0.0):
                copy_landed(shelf, Report(move.ticket, True))
        check(shelf, [], 0)
        return found(shelf, first + then)

    def test_what_is_worth_less_is_copied_before_better_things_go(self) -> None:
        """After a pause all is clean. What comes then and is used least is copied at once, though far more is clean than has to be."""
        shelf = filled(Directory(config(61, 200, clean=0.1)), 9)
        idle(shelf)
        keep(shelf, numbers(20, 50), rungs=(20,), now=-1.0)
        assert shelf.use(Tier.DEVICE).clean == 54 and shelf.pools[Tier.DEVICE].free == 1
        kv, image = node_ending(shelf, numbers(20, 50), 20).kv, rung_at(shelf, numbers(20, 50), 20).image
        for copied in (image, kv):
            (move,) = copy_ahead(shelf, COSTS, 0.0)
            copy_landed(shelf, Report(move.ticket, True))
            assert where(copied) == "dh"
            assert not copy_ahead(shelf, COSTS, 0.0), "the next to go is clean now"
            assert free_pages(shelf, shelf.pools[Tier.DEVICE].free + 1) and where(copied) == "h"
        assert all(where(node_ending(shelf, numbers(20, seed), 20).kv) == "dh" for seed in range(9))
