"""What is below the device comes back ahead of its request, at nobody's expense."""

from __future__ import annotations

import pytest

from stepwell.cache.check import check
from stepwell.cache.copies import copy_landed
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import free_pages
from stepwell.cache.hints import Fetch, Status, fetch, resident
from stepwell.cache.moves import Report, Tier
from stepwell.cache.slots import BlockTable
from tests.cache.builders import copy_down, directory, forget, hold, join, keep, node_ending, numbers, rung_at

PROMPT = numbers(40)
NEXT = join(PROMPT, numbers(8, 9))


def below(pages: int = 32, whole: bool = False) -> Directory:
    """Rungs at 20 and 40 and all KV in host alone."""
    shelf = directory(pages, 64, whole=whole)
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    copy_down(shelf)
    forget(shelf, PROMPT, Tier.DEVICE, 0, (20, 40))
    return shelf


def begin(shelf: Directory, table: BlockTable | None = None) -> Fetch:
    """`table` has pages of its own meanwhile."""
    found = shelf.survey("", NEXT)
    begun = fetch(shelf, [node for node in found.path if node.end <= found.matched], 5.0)
    check(shelf, [table.private] if table else [])
    return begun


def land(
    shelf: Directory,
    begun: Fetch,
    failing: tuple[int, ...] = (),
    reverse: bool = False,
    table: BlockTable | None = None,
) -> None:
    others = [table.private] if table else []
    for index, move in sorted(enumerate(begun.moves), key=lambda one: one[0], reverse=reverse):
        assert copy_landed(shelf, Report(move.ticket, index not in failing))
        check(shelf, others)
    if begun.hold is not None:
        shelf.release(begun.hold)
    check(shelf, others)


def test_kv_and_image_come_to_the_device() -> None:
    shelf = below()
    begun = begin(shelf)
    assert (begun.status, begun.tokens, begun.loads) == (Status.LOADED, 40, ((Tier.HOST, 40),))
    land(shelf, begun)
    hit = shelf.survey("", NEXT).hit
    assert hit is not None and hit.position == 40 and resident(node_ending(shelf, PROMPT, 40)) == 40
    assert begin(shelf).status == Status.RESIDENT


def test_only_what_is_missing_is_copied() -> None:
    shelf = below()
    land(shelf, begin(shelf))
    forget(shelf, PROMPT, Tier.DEVICE, rungs=(40,))
    begun = begin(shelf)
    assert [move.what for move in begun.moves] == ["image"] and not begun.loads
    land(shelf, begun)
    assert resident(node_ending(shelf, PROMPT, 40)) == 40


def test_it_takes_what_is_free_or_clean_and_no_more() -> None:
    shelf = below(pages=24)
    keep(shelf, numbers(40, 1), 40, rungs=(40,), now=9.0)  # eleven dirty pages
    blocker = hold(shelf, 2)
    free = shelf.pools[Tier.DEVICE].free
    assert free == 11
    begun = begin(shelf, blocker)
    assert begun.tokens == 40
    land(shelf, begun, table=blocker)
    assert shelf.survey("", numbers(40, 1)).device == 40


def test_where_the_deepest_rung_has_no_room_a_nearer_one_comes() -> None:
    shelf = below(pages=24)
    blocker = hold(shelf, 17)
    begun = begin(shelf, blocker)
    assert (begun.status, begun.tokens) == (Status.PARTIAL, 20)
    land(shelf, begun, table=blocker)


def test_promised_pages_are_not_for_it() -> None:
    shelf = below(pages=24)
    table = hold(shelf, 1)
    shelf.promise(table, 20)
    assert begin(shelf, table).status == Status.NO_ROOM


def test_clean_pages_make_room_for_it() -> None:
    shelf = below(pages=24)
    other = numbers(60, 2)
    keep(shelf, other, 60, rungs=(60,), now=1.0)
    copy_down(shelf)
    land(shelf, begin(shelf))
    assert resident(node_ending(shelf, PROMPT, 40)) == 40 and shelf.survey("", other).union == 60


def test_what_it_stands_on_is_held_meanwhile() -> None:
    shelf = below()
    land(shelf, begin(shelf))
    forget(shelf, PROMPT, Tier.DEVICE, 20, (40,))
    begun = begin(shelf)
    assert begun.tokens == 40
    free_pages(shelf, shelf.pools[Tier.DEVICE].total, force=True)
    assert shelf.survey("", PROMPT).device == 20
    land(shelf, begun)
    assert shelf.survey("", PROMPT).device == 40


def test_an_image_on_the_device_makes_no_room_for_its_own_kv() -> None:
    shelf = below(pages=24)
    land(shelf, begin(shelf))
    forget(shelf, PROMPT, Tier.DEVICE, 0)
    keep(shelf, numbers(60, 2), 60, rungs=(60,), now=1.0)
    copy_down(shelf)
    assert resident(node_ending(shelf, PROMPT, 40)) == 0 and rung_at(shelf, PROMPT, 40).image.has(Tier.DEVICE)
    begun = begin(shelf)
    assert {move.what for move in begun.moves} == {"kv"}
    land(shelf, begun)
    assert resident(node_ending(shelf, PROMPT, 40)) == begun.tokens == 40


def test_a_failed_copy_condemns_its_source_and_what_hangs_on_it_stays_below() -> None:
    shelf = below()
    begun = begin(shelf)
    land(shelf, begun, failing=(0,))
    found = shelf.survey("", NEXT)
    assert found.device == 0 and found.union == 0
    assert rung_at(shelf, PROMPT, 40).image.has(Tier.HOST)


def test_copies_that_land_out_of_order_come_to_nothing_worse() -> None:
    shelf = below()
    land(shelf, begin(shelf), reverse=True)
    assert shelf.survey("", NEXT).union == 40


def test_whoever_computes_it_meanwhile_stays() -> None:
    shelf = below(pages=48)
    begun = begin(shelf)
    keep(shelf, PROMPT, 40)
    land(shelf, begun)
    assert shelf.survey("", PROMPT).device == 40


def test_a_split_meanwhile_hands_the_copy_to_both_halves() -> None:
    shelf = below(pages=48)
    begun = begin(shelf)
    keep(shelf, join(PROMPT[:12], numbers(8, 3)), 20)
    land(shelf, begun)
    assert shelf.survey("", PROMPT).device == 40


def test_what_moves_already_is_left_alone() -> None:
    shelf = below()
    begun = begin(shelf)
    assert begin(shelf).status == Status.BUSY
    land(shelf, begun)


def test_nothing_is_known_of_a_new_prompt() -> None:
    shelf = below()
    assert fetch(shelf, [], 5.0).status == Status.UNKNOWN


@pytest.mark.parametrize("resident_kv", [True, False])
def test_a_store_of_whole_chunks_gives_images_alone(resident_kv: bool) -> None:
    shelf = below(whole=True)
    if resident_kv:
        keep(shelf, PROMPT, 40)
    begun = begin(shelf)
    assert begun.status == (Status.LOADED if resident_kv else Status.UNKNOWN)
    land(shelf, begun)
