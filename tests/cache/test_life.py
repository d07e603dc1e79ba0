"""The life of a copy: which states follow which, and what a transition that may not be leaves alone."""

from __future__ import annotations

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.check import check
from stepwell.cache.copies import begin_copy, copy_landed
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import demote
from stepwell.cache.life import (
    ABSENT,
    ARRIVING,
    CONDEMNED,
    FREE,
    HERE,
    LEAVING,
    LEGAL,
    REFUSED,
    IllegalTransition,
    Life,
)
from stepwell.cache.moves import NATIVE, Report, Tier
from stepwell.cache.tree import Item
from tests.cache.builders import directory, keep, node_ending, numbers, state_of

PROMPT = numbers(40)


def shelf_with_kv() -> tuple[Directory, Item]:
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(40,))
    return shelf, node_ending(shelf, PROMPT, 40).kv


def lives(item: Item) -> tuple[Life, ...]:
    return tuple(item.life)


def test_a_copy_goes_down_and_comes_back() -> None:
    shelf, item = shelf_with_kv()
    assert lives(item) == (HERE, ABSENT, ABSENT)
    down = begin_copy(shelf, item, Tier.DEVICE, Tier.HOST)
    assert lives(item) == (LEAVING, ARRIVING, ABSENT)
    assert shelf.moving[Tier.DEVICE, Tier.HOST] == 10 and shelf.use(Tier.HOST).private == 10
    check(shelf)
    copy_landed(shelf, Report(down.ticket, True))
    assert lives(item) == (HERE, HERE, ABSENT) and not any(shelf.moving.values())
    shelf.drop(item, Tier.DEVICE)
    up = begin_copy(shelf, item, Tier.HOST, Tier.DEVICE)
    assert lives(item) == (ARRIVING, LEAVING, ABSENT)
    check(shelf)
    copy_landed(shelf, Report(up.ticket, True))
    assert lives(item) == (HERE, HERE, ABSENT)
    check(shelf)


def test_a_copy_down_that_failed_is_not_tried_again_until_the_item_is_worth_more() -> None:
    shelf, item = shelf_with_kv()
    copy_landed(shelf, Report(begin_copy(shelf, item, Tier.DEVICE, Tier.HOST).ticket, False))
    assert lives(item) == (HERE, REFUSED, ABSENT) and (item.standing, item.size(Tier.DEVICE)) == (FREE, 10)
    assert [move.what for move in demote(shelf, 64)] == ["image"]
    shelf.reconsider(item)
    assert lives(item) == (HERE, ABSENT, ABSENT) and item.standing is not FREE


def test_a_copy_up_that_failed_condemns_what_it_read() -> None:
    shelf, item = shelf_with_kv()
    copy_landed(shelf, Report(begin_copy(shelf, item, Tier.DEVICE, Tier.HOST).ticket, True))
    reader = shelf.lease(item, Tier.HOST)
    shelf.drop(item, Tier.DEVICE)
    copy_landed(shelf, Report(begin_copy(shelf, item, Tier.HOST, Tier.DEVICE).ticket, False))
    assert lives(item) == (ABSENT, CONDEMNED, ABSENT) and item.best() is None
    check(shelf)
    shelf.release(reader)
    assert lives(item) == (ABSENT, ABSENT, ABSENT) and shelf.use(Tier.HOST).cached == 0
    check(shelf)


def test_what_a_condemned_copy_was_being_copied_to_comes_to_nothing() -> None:
    shelf, item = shelf_with_kv()
    move = begin_copy(shelf, item, Tier.DEVICE, Tier.HOST)
    shelf.condemn(item, Tier.DEVICE)
    assert lives(item) == (CONDEMNED, ARRIVING, ABSENT)
    copy_landed(shelf, Report(move.ticket, True))
    assert not any(item.has(tier) or item.at[tier] is not None for tier in NATIVE)
    check(shelf)


def test_a_condemned_copy_below_keeps_the_one_above_until_it_can_be_copied_anew() -> None:
    """While an earlier load reads the slots of the copy that failed, the device's copy is the only good one: not one to be dropped for
    nothing."""
    shelf, item = shelf_with_kv()
    copy_landed(shelf, Report(begin_copy(shelf, item, Tier.DEVICE, Tier.HOST).ticket, True))
    reader = shelf.lease(item, Tier.HOST)
    shelf.condemn(item, Tier.HOST)
    assert item.standing is not FREE and [move.what for move in demote(shelf, 64)] == ["image"]
    check(shelf)
    shelf.release(reader)
    assert [move.what for move in demote(shelf, 64)] == ["kv"]


def _slots(life: Life) -> Ints | None:
    return np.arange(10, dtype=np.int32) if life >= CONDEMNED else None


@pytest.mark.parametrize("was", Life)
@pytest.mark.parametrize("to", Life)
def test_what_may_not_follow_is_refused_with_the_numbers(was: Life, to: Life) -> None:
    if to in LEGAL[was]:
        return
    shelf, item = shelf_with_kv()
    item.life[Tier.HOST], item.at[Tier.HOST] = was, _slots(was)
    before = state_of(shelf), lives(item)
    with pytest.raises(
        IllegalTransition, match=rf"\[0,40\).*in host: {was.name} with \d+ slots and 0 locks cannot become {to.name}"
    ):
        shelf.transition(item, Tier.HOST, to, _slots(to) if was < CONDEMNED else None)
    assert (state_of(shelf), lives(item)) == before


def test_what_is_locked_stays() -> None:
    shelf, item = shelf_with_kv()
    lease = shelf.lease(item, Tier.DEVICE)
    with pytest.raises(IllegalTransition, match="HERE with 10 slots and 1 locks cannot become ABSENT"):
        shelf.transition(item, Tier.DEVICE, ABSENT)
    shelf.condemn(item, Tier.DEVICE)
    with pytest.raises(IllegalTransition, match="CONDEMNED with 10 slots and 1 locks cannot become ABSENT"):
        shelf.transition(item, Tier.DEVICE, ABSENT)
    shelf.release(lease)
    check(shelf)


def test_slots_are_named_exactly_where_a_copy_comes() -> None:
    shelf, item = shelf_with_kv()
    with pytest.raises(IllegalTransition, match="ABSENT with 0 slots and 0 locks cannot become HERE with no slots"):
        shelf.transition(item, Tier.HOST, HERE)
    with pytest.raises(IllegalTransition, match="HERE with 10 slots and 0 locks cannot become CONDEMNED with 10 slots"):
        shelf.transition(item, Tier.DEVICE, CONDEMNED, _slots(HERE))


def test_every_state_is_reached_and_left() -> None:
    assert {life for after in LEGAL.values() for life in after} == set(Life) == set(LEGAL)
    assert all(LEGAL.values())
