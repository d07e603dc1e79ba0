"""Leases, totals, and what becomes of content as it is evicted, copied, refused and remembered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from stepwell.cache.check import check
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import free_pages
from stepwell.cache.life import IllegalTransition
from stepwell.cache.moves import Tier
from stepwell.cache.slots import BlockTable
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
    planned,
    rung_at,
    state_of,
    where,
)

PROMPT = numbers(40)


class TestLeases:
    def test_a_kv_lease_holds_the_whole_path_and_an_image_lease_the_image(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20,))
        kv = shelf.lease(node_ending(shelf, PROMPT, 40).kv, Tier.DEVICE)
        assert shelf.use(Tier.DEVICE).leased == 10
        image = shelf.lease(rung_at(shelf, PROMPT, 20).image, Tier.DEVICE)
        assert shelf.use(Tier.DEVICE).leased == 11
        for lease in (kv, image):
            shelf.release(lease)
        assert shelf.use(Tier.DEVICE).leased == 0
        check(shelf, [], 0)

    def test_closing_twice_is_harmless_and_takes_no_one_elses_hold(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40)
        item = node_ending(shelf, PROMPT, 40).kv
        one, two = shelf.lease(item, Tier.DEVICE), shelf.lease(item, Tier.DEVICE)
        shelf.release(one)
        epoch = shelf.epoch
        shelf.release(one)
        assert shelf.epoch == epoch and shelf.leases == {two} and item.locks[Tier.DEVICE] == 1
        shelf.release(two)
        check(shelf, [], 0)

    def test_what_is_leased_cannot_be_dropped(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20,))
        rung = rung_at(shelf, PROMPT, 20)
        lease = shelf.lease(rung.image, Tier.DEVICE)
        with pytest.raises(IllegalTransition, match="HERE with 1 slots and 1 locks cannot become ABSENT"):
            shelf.drop(rung.image, Tier.DEVICE)
        assert not free_pages(shelf, 64, force=True)
        assert rung.image.has(Tier.DEVICE)
        shelf.release(lease)
        assert free_pages(shelf, 64, force=True)
        check(shelf, [], 0)

    def test_a_lease_survives_splits_and_joins_of_what_it_holds(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40)
        lease = shelf.lease(node_ending(shelf, PROMPT, 40).kv, Tier.DEVICE)
        keep(shelf, join(PROMPT[:12], numbers(8, 1)))
        keep(shelf, PROMPT, 32, rungs=(32,))
        check(shelf, [], 0)
        assert shelf.use(Tier.DEVICE).leased == 10
        shelf.release(lease)
        check(shelf, [], 0)

    def test_host_leases_are_counted_apart(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(40,))
        copy_down(shelf)
        lease = shelf.lease(node_ending(shelf, PROMPT, 40).kv, Tier.HOST)
        assert (shelf.use(Tier.HOST).leased, shelf.use(Tier.DEVICE).leased) == (10, 0)
        shelf.release(lease)


class TestTotals:
    def test_free_cached_and_total_always_add_up(self) -> None:
        shelf = directory(24, 24)
        for seed in range(12):
            keep(shelf, join(numbers(8), numbers(4 * (seed % 5), seed)), rungs=(8,))
            copy_down(shelf)
            for tier in shelf.pools:
                use = shelf.use(tier)
                assert use.free + use.cached == use.total
        assert shelf.use(Tier.DISK).total == 0

    def test_reservations_follow_promises_and_growth(self) -> None:
        shelf = directory()
        table = BlockTable(np.empty(0, np.int32))
        shelf.promise(table, 5)
        shelf.grow(table, 3)
        assert (shelf.reserved, table.promised) == (2, 2)
        shelf.grow(table, 4)
        assert (shelf.reserved, len(table.private)) == (0, 7)
        shelf.promise(table, 2)
        shelf.close(table)
        assert shelf.reserved == 0 and shelf.pools[Tier.DEVICE].free == 64

    def test_the_epoch_moves_with_leases_pages_and_removals_and_not_with_planning(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20,))
        before = state_of(shelf)
        assert planned(shelf, PROMPT) == planned(shelf, PROMPT)
        assert state_of(shelf) == before
        epochs = [shelf.epoch]
        lease = shelf.lease(rung_at(shelf, PROMPT, 20).image, Tier.DEVICE)
        epochs.append(shelf.epoch)
        shelf.release(lease)
        epochs.append(shelf.epoch)
        shelf.drop(rung_at(shelf, PROMPT, 20).image, Tier.DEVICE)
        epochs.append(shelf.epoch)
        shelf.give(Tier.DEVICE, shelf.pools[Tier.DEVICE].take(1))
        epochs.append(shelf.epoch)
        assert epochs == sorted(set(epochs))


class TestRemoval:
    def test_a_rung_taken_out_by_choice_is_not_lost_but_an_evicted_one_is(self) -> None:
        shelf = directory(host=0)
        keep(shelf, PROMPT, 40, rungs=(8, 20))
        shelf.remove_rung(rung_at(shelf, PROMPT, 8))
        forget(shelf, PROMPT, Tier.DEVICE, None, (20,))
        assert shelf.survey("", PROMPT).lost_rungs == (20,)

    def test_a_rung_left_again_is_no_longer_lost(self) -> None:
        shelf = directory(host=0)
        keep(shelf, PROMPT, 40, rungs=(20,))
        forget(shelf, PROMPT, Tier.DEVICE, None, (20,))
        keep(shelf, PROMPT, 40, rungs=(20,))
        assert shelf.survey("", PROMPT).lost_rungs == ()

    def test_when_a_rung_goes_its_two_runs_become_one(self) -> None:
        shelf = directory(host=0)
        keep(shelf, PROMPT, 40, rungs=(20,))
        assert len(shelf.survey("", PROMPT).path) == 2
        shelf.remove_rung(rung_at(shelf, PROMPT, 20))
        assert len(shelf.survey("", PROMPT).path) == 1
        check(shelf)

    def test_a_failed_copy_is_invisible_at_once_and_gone_with_its_last_reader(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20,))
        copy_down(shelf)
        image = rung_at(shelf, PROMPT, 20).image
        lease = shelf.lease(image, Tier.HOST)
        shelf.condemn(image, Tier.HOST)
        shelf.condemn(image, Tier.HOST)
        assert where(image) == "d" and image.at[Tier.HOST] is not None
        check(shelf)
        shelf.release(lease)
        assert image.at[Tier.HOST] is None
        check(shelf)

    def test_a_failed_copy_that_nobody_reads_goes_at_once(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20,))
        copy_down(shelf)
        image = rung_at(shelf, PROMPT, 20).image
        free = shelf.pools[Tier.HOST].free
        shelf.condemn(image, Tier.HOST)
        assert image.at[Tier.HOST] is None and shelf.pools[Tier.HOST].free == free + 1
        shelf.condemn(image, Tier.HOST)
        check(shelf, [], 0)

    def test_an_empty_directory_keeps_no_root(self) -> None:
        shelf = directory(host=0, ghosts=0)
        for salt in ("a", "b"):
            keep(shelf, PROMPT, 40, salt=salt)
        assert free_pages(shelf, 64, force=True)
        assert not shelf.tree.roots and shelf.items == 0
        check(shelf, [], 0)


class TestGhosts:
    def test_evicted_tokens_are_remembered_up_to_a_bound(self) -> None:
        shelf = directory(20, 0, ghosts=15)
        for seed in range(30):
            keep(shelf, numbers(20, seed))
        assert 0 < shelf.ghost_blocks <= 15
        known = [seed for seed in range(30) if shelf.survey("", numbers(20, seed)).matched]
        assert known[-4:] == [26, 27, 28, 29], "the latest are remembered"
        assert shelf.survey("", numbers(20, known[0])).union == 0
        check(shelf)

    def test_many_short_ones_are_bounded_too(self) -> None:
        """A path of one block is a node like a long one: blocks alone would let a million nodes stay."""
        shelf = Directory(replace(config(20, 0), ghost_nodes=12))
        for seed in range(200):
            keep(shelf, join(numbers(4, seed % 5), numbers(4, seed)))
        resident = sum(node.kv.at[Tier.DEVICE] is not None for node in shelf.tree.nodes())
        assert len(shelf.ghosts) <= 12 and shelf.items - resident <= 2 * 12
        assert shelf.survey("", join(numbers(4, 3), numbers(4, 188))).matched == 8, "the latest are remembered"
        check(shelf)

    def test_what_is_evicted_and_computed_again_and_again_leaves_no_trail(self) -> None:
        shelf = directory(10, 0)
        for _ in range(200):
            keep(shelf, PROMPT, 40)
            assert free_pages(shelf, 10, force=True)
        assert len(shelf.ghosts) <= 2 and shelf.items <= 2
        check(shelf)


class TestMemory:
    def test_candidates_take_memory_for_what_is_cached_and_not_for_what_has_happened(self) -> None:
        shelf = directory(400, 400)
        keep(shelf, PROMPT, 40, rungs=(20, 40))
        copy_down(shelf)
        item = node_ending(shelf, PROMPT, 40).kv
        for _ in range(5000):
            shelf.release(shelf.lease(item, Tier.DEVICE))
        sizes = [len(ranking) for ranking in (*shelf.candidates.drops.values(), *shelf.candidates.dirty.values())]
        assert max(sizes) < 2000, sizes
        check(shelf)

    def test_an_answered_ghost_is_no_ghost(self) -> None:
        """A run that is evicted, comes back and joins its neighbour is not kept alive by the list of what to forget."""
        shelf = directory(64, 0)
        for turn in range(100):
            keep(shelf, PROMPT, 20)
            keep(shelf, PROMPT, 40, rungs=(20,) if turn % 2 else ())
            assert free_pages(shelf, 64, force=True)
        assert len(shelf.ghosts) <= 3
        check(shelf)

    def test_many_prompts_leave_the_directory_as_large_as_its_tiers(self) -> None:
        shelf = directory(40, 40, ghosts=20)
        for seed in range(300):
            keep(shelf, join(numbers(8), numbers(12, seed)), rungs=(16,))
            copy_down(shelf)
        assert shelf.items < 120 and len(shelf.ghosts) < 200
        check(shelf)


class TestRefusal:
    """What is not worth a copy is dropped without one, until it becomes worth it."""

    def test_kv_past_the_last_rung_is_not_copied(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20,))
        copy_down(shelf)
        assert where(node_ending(shelf, PROMPT, 20).kv) == "dh" and where(node_ending(shelf, PROMPT, 40).kv) == "d"

    def test_once_the_conversation_goes_on_it_is(self) -> None:
        """Turn 1 leaves a tail past its rung, which is refused; turn 2 builds on the tail: without it in host, turn 2 is out of reach."""
        shelf = directory()
        keep(shelf, PROMPT[:24], 24, rungs=(20,))
        copy_down(shelf)
        keep(shelf, PROMPT, 40, rungs=(36,))
        copy_down(shelf)
        assert [where(n.kv) for n in shelf.survey("", PROMPT).path if n.end <= 36] == ["dh"] * 2
        assert free_pages(shelf, 64)
        assert shelf.survey("", PROMPT).union == 36

    def test_content_that_comes_back_after_its_eviction_is_judged_anew(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40)
        copy_down(shelf)
        assert free_pages(shelf, 64), "refused: dropped as it is"
        keep(shelf, PROMPT, 40, rungs=(40,))
        copy_down(shelf)
        assert where(node_ending(shelf, PROMPT, 40).kv) == "dh"

    def test_an_image_whose_kv_is_back_on_the_device_is_worth_a_copy_again(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(40,))
        image = rung_at(shelf, PROMPT, 40).image
        forget(shelf, PROMPT, Tier.DEVICE, 0)
        copy_down(shelf)
        assert where(image) == "d", "nothing could resume from it"
        keep(shelf, PROMPT, 40)
        copy_down(shelf)
        assert where(image) == "dh"

    def test_a_leaf_that_failed_to_be_copied_gets_another_try_when_it_grows(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT[:20], 20, rungs=(20,))
        copy_down(shelf, ok=False)
        assert content(shelf)[0][3] == "d"
        keep(shelf, PROMPT, 40, rungs=(40,))
        copy_down(shelf)
        assert where(node_ending(shelf, PROMPT, 20).kv) == "dh"


class TestFailedPaths:
    def test_two_failed_runs_that_join_as_they_go_give_their_slots_back_once(self) -> None:
        shelf = directory(64, 64, ghosts=0)
        keep(shelf, PROMPT, 24, rungs=(8, 16, 24))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 0, (8, 16, 24))
        lease = shelf.lease(node_ending(shelf, PROMPT, 24).kv, Tier.HOST)
        top, middle, bottom = shelf.survey("", PROMPT).path
        shelf.condemn(middle.kv, Tier.HOST)
        for node in (top, middle, bottom):
            assert node.rung is not None
            shelf.drop(node.rung.image, Tier.HOST)
        shelf.condemn(top.kv, Tier.HOST)
        shelf.condemn(bottom.kv, Tier.HOST)
        shelf.release(lease)
        check(shelf)
        assert shelf.use(Tier.HOST).free == 64
