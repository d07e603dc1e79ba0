"""What a step leaves behind: published once, adopted by whoever computed the same, rungs replaced and withdrawn."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache import publish as publishing
from stepwell.cache.account import Lease
from stepwell.cache.check import check
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import demote
from stepwell.cache.life import REFUSED
from stepwell.cache.moves import Tier
from stepwell.cache.publish import advance, drop_replaced, leave_rung, publish
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import OLD, Rung, RungKind
from tests.cache.builders import copy_down, device_pages, directory, forget, join, keep, node_ending, numbers, rung_at

PROMPT = numbers(40)


class Writer:
    """A request at work: a lease at the root and pages of its own."""

    def __init__(self, shelf: Directory, pages: int, salt: str = "") -> None:
        self.shelf = shelf
        self.lease: Lease = shelf.lease(shelf.tree.root(salt, 0.0).kv, Tier.DEVICE)
        self.table = BlockTable(np.empty(0, np.int32))
        shelf.grow(self.table, pages)

    def publish(self, tokens: Ints, end: int, now: float = 0.0, adopt: bool = True) -> None:
        publish(self.shelf, self.lease, tokens, end, self.table, now, adopt)
        if len(retired := self.table.take_retired()):  # no launched step reads them
            self.shelf.give(Tier.DEVICE, retired)

    def rung(self, position: int, kind: RungKind = RungKind.ROLLING, now: float = 0.0) -> Rung | None:
        pages = self.shelf.pools[Tier.DEVICE].take(self.shelf.config.geometry.image_pages)
        return leave_rung(self.shelf, self.lease, position, pages, kind, now)

    def advance(self, rung: Rung, tokens: Ints, end: int, now: float = 0.0) -> Rung:
        """The rolling rung at `end` in the place of `rung`: moved on where that may be."""
        pages = self.shelf.pools[Tier.DEVICE].take(self.shelf.config.geometry.image_pages)
        if advance(self.shelf, self.lease, rung, tokens, end, self.table, pages, now):
            return rung
        self.publish(tokens, end, now)
        drop_replaced(self.shelf, rung)
        new = leave_rung(self.shelf, self.lease, end, pages, RungKind.ROLLING, now)
        assert new is not None
        return new

    def close(self) -> None:
        self.shelf.release(self.lease)
        self.shelf.close(self.table)


class TestPublish:
    def test_what_is_published_is_the_trees_and_held_by_the_request(self) -> None:
        shelf = directory()
        writer = Writer(shelf, 10)
        writer.publish(PROMPT, 20)
        assert len(writer.table.private) == 5 and shelf.use(Tier.DEVICE).leased == 5
        writer.publish(PROMPT, 40)
        assert len(writer.table.private) == 0 and len(shelf.survey("", PROMPT).path) == 1, "one run, not two"
        check(shelf, [writer.table.private])
        writer.close()
        assert shelf.use(Tier.DEVICE).cached == 10 and not shelf.leases

    def test_nothing_is_findable_before(self) -> None:
        shelf = directory()
        writer = Writer(shelf, 10)
        assert shelf.survey("", PROMPT).matched == 0
        writer.close()

    @pytest.mark.parametrize("first", range(4, 41, 4))
    def test_the_same_content_twice_keeps_the_first_and_gives_the_second_back(self, first: int) -> None:
        shelf = directory()
        one, two = Writer(shelf, 10), Writer(shelf, 10)
        one.publish(PROMPT, first)
        two.publish(PROMPT, 40)
        assert two.table.pages[: first // 4].tolist() == one.table.pages[: first // 4].tolist()
        assert shelf.use(Tier.DEVICE).cached == 10
        one.publish(PROMPT, 40)
        assert one.table.pages.tolist() == two.table.pages.tolist()
        check(shelf, [one.table.private, two.table.private])
        for writer in (one, two):
            shelf.give(Tier.DEVICE, writer.table.take_retired())
        assert shelf.pools[Tier.DEVICE].free == 54
        one.close()
        two.close()

    def test_pages_that_others_replace_are_the_requests_own_until_it_lets_them_go(self) -> None:
        """A launched step may still read them."""
        shelf = directory()
        one, two = Writer(shelf, 10), Writer(shelf, 10)
        one.publish(PROMPT, 40)
        publish(shelf, two.lease, PROMPT, 40, two.table, 0.0)
        check(shelf, [one.table.private, two.table.private])
        assert shelf.pools[Tier.DEVICE].free == 44 and len(two.table.private) == 10
        shelf.give(Tier.DEVICE, two.table.take_retired())
        check(shelf, [one.table.private, two.table.private])
        assert shelf.pools[Tier.DEVICE].free == 54
        one.close()
        two.close()

    @pytest.mark.parametrize("common", range(0, 40, 3))
    def test_prompts_that_part_share_whole_blocks_only(self, common: int) -> None:
        shelf = directory()
        other = join(PROMPT[:common], (numbers(40 - common, 1) + 1) % 1000)
        other[common] = (PROMPT[common] + 1) % 1000
        one, two = Writer(shelf, 10), Writer(shelf, 10)
        one.publish(PROMPT, 40)
        two.publish(other, 40)
        assert shelf.use(Tier.DEVICE).cached == 20 - common // 4
        check(shelf, [one.table.private, two.table.private])
        one.close()
        two.close()

    def test_content_known_below_alone_is_given_its_device_copy_back(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(40,))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, 0)
        writer = Writer(shelf, 10)
        writer.publish(PROMPT, 24)
        assert shelf.survey("", PROMPT).device == 24 and shelf.survey("", PROMPT).union == 40
        writer.close()
        check(shelf, [], 0)

    def test_without_adopting_it_only_adds_where_nothing_is(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 20)
        writer = Writer(shelf, 10)
        writer.publish(PROMPT, 40, adopt=False)
        assert len(writer.table.private) == 10 and shelf.survey("", PROMPT).matched == 20
        fresh = Writer(shelf, 10)
        fresh.publish(numbers(40, 1), 40, adopt=False)
        assert shelf.survey("", numbers(40, 1)).device == 40
        writer.close()
        fresh.close()
        check(shelf, [], 0)


class TestRungs:
    def test_a_rung_cuts_the_run_where_it_stands(self) -> None:
        shelf = directory()
        writer = Writer(shelf, 10)
        writer.publish(PROMPT, 40)
        writer.rung(20)
        assert [n.end for n in shelf.survey("", PROMPT).path] == [20, 40]
        writer.close()
        check(shelf, [], 0)

    def test_only_on_the_path_that_was_computed(self) -> None:
        shelf = directory()
        writer = Writer(shelf, 10)
        writer.publish(PROMPT, 20)
        with pytest.raises(AssertionError, match="not on the path"):
            writer.rung(24)

    def test_two_requests_leaving_the_same_rung_keep_the_first_image(self) -> None:
        shelf = directory()
        one, two = Writer(shelf, 10), Writer(shelf, 10)
        one.publish(PROMPT, 40)
        two.publish(PROMPT, 40)
        rung = one.rung(20)
        image = rung.image.at[Tier.DEVICE] if rung else None
        assert two.rung(20, RungKind.PROMPT_END) is None
        kept = rung_at(shelf, PROMPT, 20)
        assert kept is rung and kept.image.at[Tier.DEVICE] is image
        assert kept.kind is RungKind.PROMPT_END, "the better reason to keep it counts"
        one.close()
        two.close()
        check(shelf, [], 0)

    def test_a_rung_known_below_alone_gets_its_device_image(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(20,))
        copy_down(shelf)
        forget(shelf, PROMPT, Tier.DEVICE, None, (20,))
        (rung,) = keep(shelf, PROMPT, 40, rungs=(20,))
        assert rung.image.has(Tier.DEVICE) and rung.image.has(Tier.HOST)

    def test_a_new_rung_supersedes_the_second_above(self) -> None:
        shelf = directory()
        keep(shelf, PROMPT, 40, rungs=(8, 20, 32))
        assert [rung_at(shelf, PROMPT, p).superseded for p in (8, 20, 32)] == [True, False, False]


class TestRetract:
    def rolling(self, shelf: Directory) -> Rung:
        (rung,) = keep(shelf, PROMPT, 40, rungs=(20,), kind=RungKind.ROLLING)
        return rung

    def test_a_rolling_rung_makes_way(self) -> None:
        shelf = directory()
        drop_replaced(shelf, self.rolling(shelf))
        found = shelf.survey("", PROMPT)
        assert not found.resume_points and not found.lost_rungs and len(found.path) == 1
        check(shelf)

    def test_with_its_copy_below_as_well(self) -> None:
        shelf = directory()
        rung = self.rolling(shelf)
        copy_down(shelf)
        drop_replaced(shelf, rung)
        assert shelf.use(Tier.HOST).cached in (0, 5), "the image is gone from both tiers"
        assert not shelf.survey("", PROMPT).resume_points
        check(shelf)

    @pytest.mark.parametrize("why", ["leased", "fork", "prompt end", "in flight", "gone"])
    def test_unless_it_is_needed_by_now(self, why: str) -> None:
        shelf = directory()
        rung = self.rolling(shelf)
        match why:
            case "leased":
                shelf.lease(rung.image, Tier.DEVICE)
            case "fork":
                keep(shelf, join(PROMPT[:20], numbers(8, 1)))
            case "prompt end":
                keep(shelf, PROMPT, 40, rungs=(20,), kind=RungKind.PROMPT_END)
            case "in flight":
                demote(shelf, 64)
            case "gone":
                shelf.drop(rung.image, Tier.DEVICE)
                keep(shelf, PROMPT, 40, rungs=(20,), kind=RungKind.ROLLING)
        drop_replaced(shelf, rung)
        assert node_ending(shelf, PROMPT, 20).rung is not None
        check(shelf)


class TestAdvance:
    """A rolling rung that moves on in place leaves what publishing, retracting and leaving one anew would."""

    def left(self, monkeypatch: pytest.MonkeyPatch, before: int = 0) -> tuple[Directory, Writer, Rung]:
        if before:
            monkeypatch.setattr(publishing, "MOST_JOINED", before)
        shelf = directory(host=0)
        keep(shelf, PROMPT, 8, rungs=(8,))
        writer = Writer(shelf, 10)
        writer.publish(PROMPT, 12)
        rung = writer.rung(12)
        assert rung is not None
        return shelf, writer, rung

    @pytest.mark.parametrize("most", [1, 20, 8192])
    def test_by_whichever_way_the_tree_is_the_same(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        shelf, writer, rung = self.left(monkeypatch, most)
        for end in (16, 24, 28, 40):
            rung = writer.advance(rung, PROMPT, end, float(end))
            check(shelf, [writer.table.private])
        assert [(n.end, n.rung is not None) for n in shelf.survey("", PROMPT).path] == [(8, True), (40, True)]
        assert rung_at(shelf, PROMPT, 40).used == 40.0 and rung_at(shelf, PROMPT, 8).depth == 1
        writer.close()
        check(shelf, [], 0)
        assert shelf.use(Tier.DEVICE).cached == 12

    def test_a_run_that_is_long_enough_stays_as_it_is(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As where two are not joined to one that long: else a long answer would go all at once."""
        _, writer, rung = self.left(monkeypatch, 20)
        for end in (16, 32):
            assert (writer.advance(rung, PROMPT, end) is rung) == (end == 16)
        writer.close()

    def test_what_is_given_up_and_what_is_not_is_as_of_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        shelf, writer, rung = self.left(monkeypatch)
        shelf.answers.left_out = 100.0
        rung = writer.advance(rung, PROMPT, 16)
        assert rung.depth == OLD
        assert writer.advance(rung, PROMPT, 20) is rung, "nothing new: moved on in place"
        shelf.answers.left_out = 0.0
        rung = writer.advance(rung, PROMPT, 24)
        assert rung.depth == 0 and REFUSED not in rung.image.life
        rung.uses = 2
        assert writer.advance(rung, PROMPT, 28).uses == 0, "nobody has resumed from the new one"
        writer.close()
        check(shelf, [], 0)


def test_publishing_again_takes_no_page() -> None:
    shelf = directory()
    writer = Writer(shelf, 10)
    writer.publish(PROMPT, 40)
    before = device_pages(shelf, PROMPT, 40)
    epoch = shelf.epoch
    writer.publish(PROMPT, 40)
    assert device_pages(shelf, PROMPT, 40) == before and shelf.epoch == epoch
    writer.close()
