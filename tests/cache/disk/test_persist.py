"""What goes to disk, in which order, and what does not."""

from __future__ import annotations

import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.check import check
from stepwell.cache.config import Costs
from stepwell.cache.copies import copy_landed
from stepwell.cache.directory import Directory
from stepwell.cache.disk import persist
from stepwell.cache.disk.archive import Archive, Backlog, WriteBudget
from stepwell.cache.disk.names import Names
from stepwell.cache.disk.persist import persist_ahead, persist_idle
from stepwell.cache.evict.ranking import Candidates
from stepwell.cache.life import REFUSED
from stepwell.cache.moves import Divide, Forget, Move, Report, Tier, Touch
from stepwell.cache.tree import OLD, Item, Node, Root, RungKind, Tree
from tests.cache.builders import config, copy_down, forget, join, keep, node_ending, numbers, planned, rung_at

DEAR = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e9, 1e9), latency_s=0.0)
"""Prefill so slow that everything is worth a write."""

NAMES = Names(b"n" * 32, 16)
PROMPT = numbers(48)


def shelf(host: int = 64, disk: int = 64, budget: WriteBudget | None = None, clean: float = 1.0) -> Directory:
    return Directory(config(64, host, disk=disk, clean=clean), Archive(NAMES, budget=budget or WriteBudget()))


def moves(directory: Directory) -> list[Move]:
    """The writes that have been asked for."""
    return [task for task in directory.archive.send() if isinstance(task, Move)]


def land(directory: Directory, written: list[Move], ok: bool = True) -> None:
    for move in written:
        assert copy_landed(directory, Report(move.ticket, ok))
    check(directory)


def write_all(directory: Directory, costs: Costs = DEAR) -> list[Move]:
    """Write until nothing is left that is worth it."""
    done: list[Move] = []
    while persist_idle(directory, costs, 0.0):
        written = moves(directory)
        done += written
        land(directory, written)
    return done


def on_disk(directory: Directory, prompt: Ints) -> list[int]:
    """Positions on the prompt's path that the disk alone can resume."""
    found, reach, out = directory.survey("", prompt), 0, []
    for node in found.path:
        if node.kv.has(Tier.DISK) and reach == node.start:
            reach = node.end
            if node.rung is not None and node.rung.image.has(Tier.DISK):
                out.append(node.end)
    return out


class TestOrder:
    def test_a_rung_goes_with_all_that_it_hangs_on_topmost_first(self) -> None:
        directory = shelf()
        keep(directory, PROMPT, 48, rungs=(16,), now=1.0)
        keep(directory, PROMPT, 48, rungs=(40,), now=2.0)
        written = write_all(directory)
        assert [(m.what, m.tokens) for m in written] == [("kv", 16), ("kv", 40), ("image", 40), ("image", 16)]
        assert on_disk(directory, PROMPT) == [16, 40], "nothing resumes past 40: that KV is not written"

    def test_records_are_named_by_chunks_and_chained(self) -> None:
        directory = shelf()
        keep(directory, PROMPT, 40, rungs=(40,))
        kv, image = write_all(directory)
        trail = NAMES.trail("", PROMPT)
        assert kv.names == tuple(trail.records(0, 40)) and image.names == (trail.image(40),)
        assert [(n.start, n.end) for n in kv.names] == [(0, 16), (16, 32), (32, 40)]

    def test_nothing_is_written_twice(self) -> None:
        directory = shelf()
        keep(directory, PROMPT, 32, rungs=(32,))
        first = write_all(directory)
        copy_down(directory)
        longer = join(PROMPT, numbers(16, 5))
        keep(directory, longer, 64, rungs=(60,))
        second = write_all(directory)
        assert sum(len(m.source.slots) for m in (*first, *second) if m.what == "kv") == 60 // 4
        assert not write_all(directory)

    def test_host_is_read_where_it_has_a_copy(self) -> None:
        directory = shelf()
        keep(directory, PROMPT, 16, rungs=(16,))
        copy_down(directory)
        keep(directory, PROMPT, 40, rungs=(40,))
        assert {m.tokens: m.source.tier for m in write_all(directory) if m.what == "kv"} == {16: 1, 40: 0}

    def test_without_a_host_tier_the_device_is_written(self) -> None:
        directory = shelf(host=0)
        keep(directory, PROMPT, 40, rungs=(40,))
        persist_ahead(directory, DEAR, 0.0)
        assert {m.source.tier for m in moves(directory)} == {Tier.DEVICE}


class TestWorth:
    def test_what_is_sooner_computed_again_is_not_written(self) -> None:
        directory = shelf()
        keep(directory, PROMPT, 40, rungs=(40,))
        slow = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e9, 64 * 11 * 1000 / 40))
        assert not write_all(directory, slow)
        assert not persist_idle(directory, DEAR, 0.0), "decided once"

    def test_only_what_a_rung_spares_counts_for_it(self) -> None:
        """The image at 40 spares 8 tokens beyond the one at 32 that the disk has: a page of KV a token, two more and its image."""
        directory = shelf()
        keep(directory, PROMPT, 32, rungs=(32,))
        write_all(directory)
        keep(directory, PROMPT, 40, rungs=(40,))
        barely = Costs(prefill_tokens_per_s=1000.0, bytes_per_s=(float("inf"), 1e9, 64 * 3 * 1000 / 9))
        assert not write_all(directory, barely)
        assert on_disk(directory, PROMPT) == [32]

    @pytest.mark.parametrize(("kind", "written"), [(RungKind.PROMPT_END, False), (RungKind.INTERVAL, True)])
    def test_a_superseded_turn_is_not_written_but_insurance_is(self, kind: RungKind, written: bool) -> None:
        directory = shelf()
        keep(directory, PROMPT, 16, rungs=(16,), kind=kind)
        keep(directory, PROMPT, 48, rungs=(32, 48))
        assert rung_at(directory, PROMPT, 16).superseded
        write_all(directory)
        assert on_disk(directory, PROMPT) == ([16, 32, 48] if written else [32, 48])

    def test_kv_that_no_rung_reaches_is_not_written(self) -> None:
        directory = shelf()
        keep(directory, PROMPT, 48)
        assert not write_all(directory)

    def test_what_lies_below_a_gap_is_not_written(self) -> None:
        directory = shelf()
        keep(directory, PROMPT, 16, rungs=(16,))
        keep(directory, PROMPT, 40, rungs=(40,))
        copy_down(directory)
        forget(directory, PROMPT, Tier.DEVICE, 0, (16, 40))
        upper = directory.survey("", PROMPT).path[0]
        directory.condemn(upper.kv, Tier.HOST)
        assert not write_all(directory)

    def test_a_gap_that_comes_to_be_filled_again_is_written_again(self) -> None:
        directory = shelf()
        keep(directory, PROMPT, 40, rungs=(40,))
        write_all(directory)
        node = directory.survey("", PROMPT).path[0]
        upper = directory.node_at(node, 16)
        directory.condemn(upper.kv, Tier.DISK)
        assert [m.tokens for m in write_all(directory)] == [16]
        assert on_disk(directory, PROMPT) == [40]


class TestRoom:
    def test_what_was_of_use_less_recently_makes_room(self) -> None:
        directory = shelf(disk=14)
        keep(directory, PROMPT, 40, rungs=(40,), now=1.0)
        write_all(directory)
        other = numbers(48, 7)
        keep(directory, other, 40, rungs=(40,), now=2.0)
        write_all(directory)
        assert on_disk(directory, other) == [40] and not on_disk(directory, PROMPT)

    def test_nothing_more_recent_does(self) -> None:
        directory = shelf(disk=14)
        other = numbers(48, 7)
        keep(directory, other, 40, rungs=(40,), now=2.0)
        write_all(directory)
        keep(directory, PROMPT, 40, rungs=(40,), now=1.0)
        assert not write_all(directory), "or the two would take turns for ever"
        assert on_disk(directory, other) == [40]

    def test_nor_does_what_is_older_than_one_part_of_it_and_newer_than_another(self) -> None:
        directory = shelf(disk=16)
        other = numbers(48, 7)
        keep(directory, PROMPT, 40, rungs=(40,), now=3.0)
        node_ending(directory, PROMPT, 40).used = 1.0  # its rung has been used since
        keep(directory, other, 40, rungs=(40,), now=2.0)
        turns = 0
        while persist_idle(directory, DEAR, 0.0):
            land(directory, moves(directory))
            turns += 1
            assert turns < 9, "the two take turns for ever"
        assert on_disk(directory, other) != on_disk(directory, PROMPT)

    def test_what_it_is_built_on_does_not_make_room_for_it(self) -> None:
        directory = shelf(disk=14)
        keep(directory, PROMPT, 32, rungs=(32,), now=1.0)
        write_all(directory)
        keep(directory, join(PROMPT, numbers(40, 3)), 88, rungs=(88,), now=2.0)
        write_all(directory)
        assert on_disk(directory, PROMPT) == [32]

    def test_the_budget_is_kept(self) -> None:
        directory = shelf(budget=WriteBudget(rate=1.0, burst=4.0, level=4.0))
        for seed in range(6):
            keep(directory, numbers(16, seed), 16, rungs=(16,), now=float(seed))
        persist_idle(directory, DEAR, 0.0)
        first = moves(directory)
        assert sum(len(m.source.slots) for m in first) == 5, "one batch may overdraw it"
        land(directory, first)
        assert persist_idle(directory, DEAR, 0.5), "more is left to be written later"
        assert not moves(directory)
        persist_idle(directory, DEAR, 3.0)
        assert moves(directory)

    def test_an_overdrawn_budget_is_not_waited_for_with_nothing_to_write(self) -> None:
        directory = shelf(budget=WriteBudget(rate=1.0, burst=4.0, level=4.0))
        keep(directory, numbers(16, 1), 16, rungs=(16,))
        persist_idle(directory, DEAR, 0.0)
        land(directory, moves(directory))
        assert not directory.archive.budget.allows(0.0) and not persist_idle(directory, DEAR, 0.0)

    def test_no_more_than_an_eighth_of_the_device_is_held_for_it(self) -> None:
        """Host has nothing yet: the device is read, and what is being read is no room for a request that comes meanwhile."""
        directory = shelf()
        for seed in range(8):
            keep(directory, numbers(16, seed), 16, rungs=(16,), now=float(seed))
        assert persist_idle(directory, DEAR, 9.0)
        assert directory.use(Tier.DEVICE).leased == 10, "an eighth, and what one batch may go beyond"
        assert persist_idle(directory, DEAR, 9.0) and directory.use(Tier.DEVICE).leased == 10
        land(directory, moves(directory))
        assert len(write_all(directory)) == 12 and len(on_disk(directory, numbers(16, 0))) == 1

    def test_one_turn_looks_at_so_many_items_and_no_more(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """None of them is worth it: there is no write to end the turn."""
        monkeypatch.setattr("stepwell.cache.disk.persist.AT_ONCE", 4)
        directory = shelf()
        for seed in range(6):
            (rung,) = keep(directory, numbers(16, seed), 16, rungs=(16,), now=float(seed))
            rung.depth = OLD
        assert persist_idle(directory, DEAR, 9.0)
        refused = [rung_at(directory, numbers(16, seed), 16).image.life[Tier.DISK] == REFUSED for seed in range(6)]
        assert refused == [False, False, True, True, True, True], "the most recent first"
        assert not persist_idle(directory, DEAR, 9.0) and not moves(directory)

    def test_a_write_that_fails_costs_nothing_but_the_copy(self) -> None:
        directory = shelf()
        keep(directory, PROMPT, 40, rungs=(40,))
        persist_idle(directory, DEAR, 0.0)
        land(directory, moves(directory), ok=False)
        assert isinstance(directory.archive.send()[0], Forget), "whatever it has left there is to be forgotten"
        assert directory.use(Tier.DISK).free == 64 and not persist_idle(directory, DEAR, 0.0)
        assert planned(directory, PROMPT).aim.boundary == 40


class TestAhead:
    def test_a_share_of_host_is_kept_free_or_on_disk(self) -> None:
        directory = shelf(host=44, clean=0.5)
        for seed in range(4):
            keep(directory, numbers(40, seed), 40, rungs=(40,), now=float(seed))
            copy_down(directory)
            forget(directory, numbers(40, seed), Tier.DEVICE, 0, (40,))
        assert directory.use(Tier.HOST).free == 0 and directory.backed == 0
        persist_ahead(directory, DEAR, 9.0)
        first = moves(directory)
        assert sum(len(m.source.slots) for m in first) == 11, "no more at a time than an eighth, or one batch"
        land(directory, first)
        persist_ahead(directory, DEAR, 9.0)
        land(directory, moves(directory))
        persist_ahead(directory, DEAR, 9.0)
        assert directory.backed == 22 and not moves(directory)
        assert on_disk(directory, numbers(40, 1)) == [40] and not on_disk(directory, numbers(40, 2))

    def test_a_copy_down_alone_loses_nothing_in_host(self) -> None:
        """Host is full of what is nowhere else, and no write has been made: the device keeps what it has."""
        directory = shelf(host=22, clean=0.0)
        for seed in range(2):
            keep(directory, numbers(40, seed), 40, rungs=(40,), now=float(seed))
            copy_down(directory)
            forget(directory, numbers(40, seed), Tier.DEVICE, 0, (40,))
        keep(directory, numbers(40, 2), 40, rungs=(40,), now=2.0)
        assert copy_down(directory) == 0
        assert [planned(directory, numbers(48, seed)[:44]).aim.boundary for seed in range(3)] == [40, 40, 40]


class TestOrders:
    def test_a_cut_on_disk_is_told_to_the_store(self) -> None:
        directory = shelf()
        keep(directory, PROMPT, 40, rungs=(40,))
        write_all(directory)
        node = directory.survey("", PROMPT).path[0]
        slots = node.kv.at[Tier.DISK]
        assert slots is not None
        directory.split(node, 20)
        (order,) = directory.archive.send()
        assert order == Divide(int(slots[4]), int(slots[5]), 20, NAMES.trail("", PROMPT).at(20))

    def test_what_is_dropped_is_forgotten_and_what_is_used_is_touched(self) -> None:
        directory = shelf()
        keep(directory, PROMPT, 40, rungs=(40,))
        write_all(directory)
        image = rung_at(directory, PROMPT, 40).image
        slots = image.at[Tier.DISK]
        assert slots is not None
        directory.drop(image, Tier.DISK)
        (order,) = directory.archive.send()
        assert isinstance(order, Forget) and order.slots.tolist() == slots.tolist()
        directory.archive.touch(slots)
        assert isinstance(directory.archive.send()[0], Touch) and not directory.archive.send()


class TestIdle:
    """Idle turns look at what has changed, however large the tree is."""

    def test_no_turn_walks_the_tree(self, monkeypatch: pytest.MonkeyPatch) -> None:
        directory = shelf()
        keep(directory, PROMPT, 48, rungs=(16, 40))
        with monkeypatch.context() as patch:
            patch.setattr(Tree, "nodes", lambda self: pytest.fail("the tree was walked"))
            while persist_idle(directory, DEAR, 0.0):
                for move in moves(directory):
                    assert copy_landed(directory, Report(move.ticket, True))
        assert on_disk(directory, PROMPT) == [16, 40]

    def test_what_has_been_looked_at_is_not_looked_at_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        directory = Directory(config(4000, 0, disk=8000), Archive(NAMES))
        for seed in range(200):
            keep(directory, numbers(40, seed), 40, rungs=(40,))
        write_all(directory)
        keep(directory, numbers(40, 1000), 40, rungs=(40,))
        looks: list[Item] = []
        real = Candidates.unsaved
        monkeypatch.setattr(Candidates, "unsaved", lambda self, item: looks.append(item) or real(self, item))
        while persist_idle(directory, DEAR, 0.0):
            for move in moves(directory):
                assert copy_landed(directory, Report(move.ticket, True))
        assert on_disk(directory, numbers(44, 1000)) == [40] and len(looks) < 20

    def test_long_prompts_share_several_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(persist, "TOKENS_AT_ONCE", 60)
        directory = Directory(config(400, 0, disk=800), Archive(NAMES))
        for seed in range(4):
            keep(directory, numbers(40, seed), 40, rungs=(40,))
        assert persist_idle(directory, DEAR, 0.0)
        begun = moves(directory)
        assert sum(move.what == "image" for move in begun) == 2
        land(directory, begun)
        write_all(directory)
        assert all(on_disk(directory, numbers(44, seed)) == [40] for seed in range(4))

    def test_what_has_gone_takes_no_memory_though_no_turn_is_idle(self) -> None:
        root = Root("", 0.0)
        alive: set[Item] = set()
        backlog = Backlog(alive.__contains__)
        for _ in range(5000):
            alive.clear()
            item = Node(root, 0, bytes(16), 0.0).kv
            alive.add(item)
            backlog.add(item, items=1)
            assert len(backlog) <= 4 + 1024 + 1
        assert backlog.pop() is item and backlog.empty and not len(backlog)
