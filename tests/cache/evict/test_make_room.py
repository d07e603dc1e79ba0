"""Making room, and copying down ahead of need."""

from __future__ import annotations

from dataclasses import replace

from stepwell.cache.check import check
from stepwell.cache.copies import begin_copy, copy_landed
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import Price, demote, demotion, free_pages
from stepwell.cache.moves import Move, Report, Tier
from tests.cache.builders import (
    config,
    content,
    copy_down,
    directory,
    forget,
    join,
    keep,
    node_ending,
    numbers,
    rung_at,
    where,
)

PROMPT = numbers(40)


class TestSecure:
    def test_free_pages_are_enough_by_themselves(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40)
        before = content(shelf)
        assert free_pages(shelf, 54) and content(shelf) == before

    def test_clean_content_makes_room_and_dirty_content_does_not(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(40,))
        assert not free_pages(shelf, 60)
        copy_down(shelf)
        assert free_pages(shelf, 60)
        assert shelf.survey("", PROMPT).union == 40, "nothing is lost"

    def test_by_force_everything_unleased_makes_room(self) -> None:
        for need in range(65):
            shelf = directory()
            keep(shelf, PROMPT, 40, rungs=(20, 40))
            keep(shelf, join(PROMPT[:12], numbers(20, 1)), rungs=(32,))
            lease = shelf.lease(node_ending(shelf, PROMPT, 12).kv, Tier.DEVICE)
            room = shelf.room()
            assert free_pages(shelf, need, force=True) == (need <= room.free + room.idle)
            check(shelf, [], 0)
            shelf.release(lease)

    def test_by_force_goes_what_a_write_that_will_come_to_nothing_reads_in_host(self) -> None:
        shelf = Directory(config(64, 64, disk=64))
        keep(shelf, PROMPT, 40, rungs=(40,))
        copy_down(shelf)
        image = rung_at(shelf, PROMPT, 40).image
        begin_copy(shelf, image, Tier.HOST, Tier.DISK)
        shelf.condemn(image, Tier.HOST)
        assert free_pages(shelf, 64, force=True)
        check(shelf, [], 0)

    def test_by_force_goes_what_was_computed_anew_while_its_copy_on_disk_is_loaded(self) -> None:
        """Nothing is lost by that, and the load is then of use after all."""
        shelf = Directory(config(64, 64, disk=64))
        keep(shelf, PROMPT, 40, rungs=(40,))
        node = node_ending(shelf, PROMPT, 40)
        loads: list[Move] = []
        for item in node.items():
            for source, target in ((Tier.DEVICE, Tier.HOST), (Tier.HOST, Tier.DISK)):
                copy_landed(shelf, Report(begin_copy(shelf, item, source, target).ticket, True))
                shelf.drop(item, source)
            loads.append(begin_copy(shelf, item, Tier.DISK, Tier.DEVICE))
        keep(shelf, PROMPT, 40, rungs=(40,))
        free, idle = shelf.room().free, shelf.room().idle
        assert idle == 11
        assert free_pages(shelf, free + idle, force=True)
        check(shelf, [], 0)
        for load in loads:
            copy_landed(shelf, Report(load.ticket, True))
        check(shelf, [], 0)
        assert all(item.has(Tier.DEVICE) and item.has(Tier.DISK) for item in node.items())

    def test_what_a_load_that_will_come_to_nothing_reads_is_not_copied_down_meanwhile(self) -> None:
        """The load was overtaken: its image was computed anew, and what it reads on disk is condemned."""
        shelf = Directory(config(64, 64, disk=64))
        keep(shelf, PROMPT, 40, rungs=(40,))
        copy_down(shelf)
        image = rung_at(shelf, PROMPT, 40).image
        copy_landed(shelf, Report(begin_copy(shelf, image, Tier.HOST, Tier.DISK).ticket, True))
        shelf.drop(image, Tier.DEVICE)
        shelf.drop(image, Tier.HOST)
        load = begin_copy(shelf, image, Tier.DISK, Tier.DEVICE)
        keep(shelf, PROMPT, 40, rungs=(40,))
        shelf.condemn(image, Tier.DISK)
        assert not demote(shelf, 64)
        copy_landed(shelf, Report(load.ticket, True))
        assert [move.what for move in demote(shelf, 64)] == ["image"]

    def test_by_force_it_goes_from_the_leaves_up_past_what_is_clean(self) -> None:
        """A stem that is dirty, above a run that is clean, above one that is dirty: the stem cannot go first."""
        shelf = directory()
        keep(shelf, PROMPT, 20, rungs=(20,), now=1.0)
        keep(shelf, PROMPT, 32, rungs=(32,), now=0.0)
        stem, middle = (node_ending(shelf, PROMPT, end) for end in (20, 32))
        stem.used = 5.0
        while middle.kv.pending is None:
            assert demote(shelf, shelf.coming(Tier.DEVICE) + 1)
        for ticket in list(shelf.in_flight):
            copy_landed(shelf, Report(ticket, True))
        assert (where(stem.kv), where(middle.kv)) == ("d", "dh")
        keep(shelf, PROMPT, 40, rungs=(40,), now=9.0)
        stem.used = 0.0
        assert free_pages(shelf, 64, force=True)
        check(shelf, [], 0)

    def test_without_a_host_tier_nothing_is_dirty(self) -> None:
        shelf = directory(host=0)
        keep(shelf, PROMPT, 40, rungs=(40,))
        assert free_pages(shelf, 64) and demote(shelf, 64) == []


class TestDemote:
    def test_a_copy_holds_its_source_and_is_not_found_until_it_has_landed(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(40,))
        moves = demote(shelf, 64)
        assert {m.what for m in moves} == {"kv", "image"} and all(m.tokens == 40 for m in moves)
        assert shelf.coming(Tier.DEVICE) == 11 == shelf.use(Tier.DEVICE).leased
        assert not free_pages(shelf, 64, force=True)
        assert all(where(i) == "d" for n in shelf.tree.nodes() for i in n.items())
        for move in moves:
            assert copy_landed(shelf, Report(move.ticket, True))
        assert all(where(i) == "dh" for n in shelf.tree.nodes() for i in n.items())
        assert shelf.coming(Tier.DEVICE) == 0 == shelf.use(Tier.DEVICE).leased
        check(shelf, [], 0)

    def test_a_ticket_ends_once(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(40,))
        (move, *_) = demote(shelf, 64)
        assert copy_landed(shelf, Report(move.ticket, True))
        assert not copy_landed(shelf, Report(move.ticket, False)) and not copy_landed(shelf, Report(999, True))
        check(shelf, [], 0)

    def test_a_run_split_while_its_copy_is_in_flight_becomes_ready_in_both_halves(self) -> None:
        for ok in (True, False):
            shelf = directory()
            keep(shelf, PROMPT, 40, rungs=(40,))
            moves = demote(shelf, 64)
            keep(shelf, join(PROMPT[:12], numbers(8, 1)), rungs=())
            assert [n.end for n in shelf.survey("", PROMPT).path] == [12, 40]
            for move in moves:
                copy_landed(shelf, Report(move.ticket, ok))
            check(shelf, [], 0)
            assert [where(n.kv) for n in shelf.survey("", PROMPT).path] == ["dh" if ok else "d"] * 2

    def test_a_failed_copy_gives_its_slots_back_and_is_not_tried_for_ever(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(40,))
        assert copy_down(shelf, ok=False) == 2
        assert shelf.pools[Tier.HOST].free == 64 and demote(shelf, 64) == []
        assert free_pages(shelf, 64), "it may be dropped as it is"

    def test_what_is_larger_than_host_is_never_copied(self) -> None:
        shelf = directory(64, 4)
        keep(shelf, PROMPT, 40, rungs=(40,))
        assert [m.what for m in demote(shelf, 64)] == ["image"]
        check(shelf, [], 0)

    def test_what_does_not_fit_into_host_yet_waits_and_holds_up_nothing_else(self) -> None:
        prompt = PROMPT[:16]
        shelf = Directory(replace(config(64, 64, image=6), host_ready=4))
        keep(shelf, prompt, rungs=(16,))
        (move,) = demote(shelf, 64)
        assert move.what == "kv" and copy_landed(shelf, Report(move.ticket, True))
        forget(shelf, prompt, Tier.DEVICE, 0)
        assert demote(shelf, 64) == [] == demotion(shelf, 64, Price.ANY).moves
        assert node_ending(shelf, prompt, 16).kv.has(Tier.HOST), "nothing goes for what would not fit all the same"
        shelf.widen(Tier.HOST, 6)
        assert [move.what for move in demote(shelf, 64)] == ["image"], "it was not refused"
        check(shelf, [])

    def test_what_does_not_fit_into_host_waits_no_longer_once_host_grows_no_more(self) -> None:
        shelf = Directory(replace(config(64, 64), host_ready=4))
        keep(shelf, PROMPT, 40, rungs=(40,))
        assert copy_down(shelf) == 1 and not free_pages(shelf, 64)
        shelf.settle(Tier.HOST)
        assert demote(shelf, 64) == [] and free_pages(shelf, 64), "it may be dropped as it is"
        check(shelf, [])

    def test_a_full_host_makes_room_with_what_is_least_worth(self) -> None:
        shelf = directory(64, 11)
        keep(shelf, numbers(40, 1), rungs=(40,), now=1.0)
        copy_down(shelf)
        assert free_pages(shelf, 64)
        keep(shelf, PROMPT, 40, rungs=(40,), now=2.0)
        copy_down(shelf)
        assert shelf.survey("", PROMPT).path[-1].kv.has(Tier.HOST)
        assert shelf.survey("", numbers(40, 1)).union == 0

    def test_copies_of_what_a_running_request_holds_on_the_device_go_first(self) -> None:
        shelf = directory(64, 22)
        for seed, now in ((1, 1.0), (2, 2.0)):
            keep(shelf, numbers(40, seed), rungs=(40,), now=now)
            copy_down(shelf)
        lease = shelf.lease(node_ending(shelf, numbers(40, 2), 40).kv, Tier.DEVICE)
        keep(shelf, numbers(40, 3), rungs=(40,), now=3.0)
        copy_down(shelf)
        assert [shelf.survey("", numbers(40, seed)).path[0].kv.has(Tier.HOST) for seed in (1, 2, 3)] == [
            True,
            False,
            True,
        ]
        check(shelf, [])
        shelf.release(lease)
        check(shelf, [])
        assert shelf.survey("", numbers(40, 2)).device == 40, "nothing was lost"

    def test_a_host_full_of_leases_stops_copies_and_loses_nothing(self) -> None:
        shelf = directory(64, 11)
        keep(shelf, numbers(40, 1), rungs=(40,))
        copy_down(shelf)
        leases = [
            shelf.lease(node_ending(shelf, numbers(40, 1), 40).kv, Tier.HOST),
            shelf.lease(rung_at(shelf, numbers(40, 1), 40).image, Tier.HOST),
        ]
        assert free_pages(shelf, 64)
        keep(shelf, PROMPT, 40, rungs=(40,))
        assert demote(shelf, 64) == []
        assert shelf.survey("", numbers(40, 1)).union == 40
        for lease in leases:
            shelf.release(lease)
        assert len(demote(shelf, 64)) == 2

    def test_only_as_much_as_is_asked_for(self) -> None:
        shelf = directory()
        for seed in range(4):
            keep(shelf, numbers(20, seed), rungs=(20,), now=float(seed))
        moves = demote(shelf, 5)
        assert 5 <= shelf.coming(Tier.DEVICE) < 10 and 1 <= len(moves) <= 2
        assert shelf.survey("", numbers(20, 0)).path[0].kv.pending is not None, "the one used longest ago"


class TestImagesWhoseKvHasLeft:
    def test_they_are_still_copied_down(self) -> None:
        """KV goes to host and leaves the device first; its image is then least in rank there, and yet the only way back."""
        shelf = directory()
        keep(shelf, PROMPT, 20, rungs=(20,))
        node = node_ending(shelf, PROMPT, 20)
        assert node.rung is not None
        copy_down(shelf)
        shelf.drop(node.rung.image, Tier.HOST)
        shelf.drop(node.kv, Tier.DEVICE)
        (move,) = demote(shelf, 1)
        assert move.what == "image"
        assert copy_landed(shelf, Report(move.ticket, True))
        assert node.rung.image.has(Tier.HOST)
        assert shelf.survey("", PROMPT).resume_points[-1].position == 20
