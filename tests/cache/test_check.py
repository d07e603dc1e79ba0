"""The check itself: each thing that could be wrong with a directory is noticed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from stepwell.base.geometry import Ints
from stepwell.cache.check import check
from stepwell.cache.directory import Directory
from stepwell.cache.life import Life, Standing
from stepwell.cache.moves import Tier
from stepwell.cache.tree import Node
from tests.cache.builders import copy_down, directory, forget, keep, node_ending, numbers, rung_at

PROMPT = numbers(40)
Harm = Callable[[Directory], object]


def sound() -> Directory:
    """Two runs and two rungs on the device, the second run and rung in host too, and a lease."""
    shelf = directory()
    keep(shelf, PROMPT, 40, rungs=(20, 40))
    copy_down(shelf)
    forget(shelf, PROMPT, Tier.HOST, None, (20,))
    shelf.lease(node_ending(shelf, PROMPT, 20).kv, Tier.DEVICE)
    return shelf


def upper(shelf: Directory) -> Node:
    return node_ending(shelf, PROMPT, 20)


def lower(shelf: Directory) -> Node:
    return node_ending(shelf, PROMPT, 40)


def pages(node: Node) -> Ints:
    """The device pages themselves, not a copy."""
    slots = node.kv.at[Tier.DEVICE]
    assert slots is not None
    return slots


HARMS: dict[str, Harm] = {
    "a page is lost": lambda s: s.pools[Tier.DEVICE].take(1),
    "a page is free and cached": lambda s: s.pools[Tier.DEVICE].give(pages(lower(s))[:1]),
    "a host slot is lost": lambda s: s.pools[Tier.HOST].take(1),
    "two runs hold one page": lambda s: pages(upper(s)).__setitem__(0, pages(lower(s))[0]),
    "an extent is too short": lambda s: lower(s).kv.at.__setitem__(0, pages(lower(s))[:-1]),
    "an image is too short": lambda s: rung_at(s, PROMPT, 40).image.at.__setitem__(0, np.empty(0, np.int32)),
    "the device has a gap": lambda s: upper(s).kv.at.__setitem__(0, None),
    "cached is miscounted": lambda s: s.cached.__setitem__(Tier.DEVICE, 1),
    "leased is miscounted": lambda s: s.leased.__setitem__(Tier.HOST, 1),
    "clean is miscounted": lambda s: setattr(s, "clean", s.clean + 1),
    "items are miscounted": lambda s: setattr(s.candidates, "items", s.items + 1),
    "ghosts are miscounted": lambda s: setattr(s, "ghost_blocks", s.ghost_blocks + 1),
    "a copy under way is miscounted": lambda s: s.moving.__setitem__((Tier.DEVICE, Tier.HOST), 1),
    "backed is miscounted": lambda s: setattr(s, "backed", s.backed + 1),
    "a standing that is not so": lambda s: setattr(upper(s).kv, "standing", Standing.FREE),
    "held children are miscounted": lambda s: setattr(upper(s).kv, "held_up", upper(s).kv.held_up + 1),
    "dirty children are miscounted": lambda s: setattr(upper(s).kv, "soiled", upper(s).kv.soiled + 1),
    "a copy that nobody may read, and nobody condemned": lambda s: lower(s).kv.life.__setitem__(0, Life.ABSENT),
    "a copy that comes from nowhere": lambda s: rung_at(s, PROMPT, 20).image.life.__setitem__(2, Life.ARRIVING),
    "a copy that is read for nobody": lambda s: lower(s).kv.life.__setitem__(0, Life.LEAVING),
    "a lock without a lease": lambda s: lower(s).kv.locks.__setitem__(Tier.HOST, 1),
    "a lease without a lock": lambda s: upper(s).kv.locks.__setitem__(0, 0),
    "a lease forgotten": lambda s: s.leases.clear(),
    "a run filed under other tokens": lambda s: setattr(lower(s), "raw", lower(s).raw[4:] + bytes(4)),
    "a run that starts elsewhere": lambda s: setattr(lower(s), "start", 24),
    "a rung without an image": lambda s: setattr(rung_at(s, PROMPT, 20).image, "at", [None, None, None]),
    "a candidate nobody offers": lambda s: s.candidates.drops[Tier.DEVICE].clear(),
    "a lost rung elsewhere": lambda s: setattr(lower(s), "lost", (8,)),
}


def test_a_sound_directory_passes() -> None:
    check(sound(), [], 0)


@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS.keys())
def test_harm_is_noticed(harm: Harm) -> None:
    shelf = sound()
    harm(shelf)
    with pytest.raises(AssertionError):
        check(shelf, [], 0)


def test_reservations_and_private_pages_are_compared_with_what_the_caller_knows() -> None:
    shelf = sound()
    with pytest.raises(AssertionError, match="0 pages reserved, tables hold 1"):
        check(shelf, [], 1)
    mine = shelf.pools[Tier.DEVICE].take(2)
    check(shelf, [mine], 0)
    with pytest.raises(AssertionError, match="neither free nor used exactly once"):
        check(shelf, [mine[:1]], 0)
