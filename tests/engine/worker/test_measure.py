"""What is measured at the start, and tried once before anyone waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stepwell.base.errors import StoreError
from stepwell.base.geometry import Geometry
from stepwell.cache.config import Costs
from stepwell.cache.moves import Extent, LiveState, Move, Tier
from stepwell.engine.worker.measure import measure_copies
from stepwell.engine.worker.sizes import Sizes
from stepwell.store.copier import Landed
from stepwell.store.mover import CopyMover

PAGE = 1 << 20


class Noting:
    """A copier that takes a second a move and can refuse a way."""

    page_bytes, name, together = PAGE, "notes", 0

    def __init__(self, refuses: Tier | None = None) -> None:
        self.moves: list[Move] = []
        self._refuses = refuses

    def begin(self, moves: Sequence[Move]) -> Landed:
        self.moves += moves
        if any(move.source.tier == self._refuses for move in moves):
            raise StoreError("refused")
        return Landed(float(len(moves)))


def measured(copier: Noting, image_pages: int = 3, slots: int = 100) -> Costs:
    sizes = Sizes(Geometry(16, 64, PAGE, image_pages * PAGE), pages=40, slots=slots, max_model_len=640)
    with CopyMover(copier) as mover:
        return measure_copies(Costs(), mover, sizes, slots)


@pytest.mark.parametrize("image_pages", [3, 70])
def test_a_live_state_is_loaded_once_after_the_pages(image_pages: int) -> None:
    """Also one larger than what is copied otherwise: it takes its bytes from there again and again."""
    copier = Noting()
    costs = measured(copier, image_pages)
    *pages, image = copier.moves
    assert {move.what for move in pages} == {"kv"} and image.what == "image"
    assert image.target == LiveState(0) and image.source.tier == Tier.HOST
    written = {
        slot
        for move in pages
        if isinstance(move.target, Extent) and move.target.tier == Tier.HOST
        for slot in move.target.slots
    }
    assert len(image.source.slots) == image_pages and set(image.source.slots.tolist()) <= written
    ups = [move for move in pages if move.source.tier == Tier.HOST]
    assert costs.bytes_per_s[Tier.HOST] == 40 * PAGE / len(ups), "the state is not a part of what is measured"


def test_what_fails_leaves_the_costs_as_they_were() -> None:
    assert measured(Noting(Tier.HOST)) == Costs()


def test_where_there_is_no_host_or_no_state_nothing_is_loaded() -> None:
    copier = Noting()
    assert measured(copier, slots=0) == Costs() and not copier.moves
    measured(copier, image_pages=0)
    assert copier.moves and all(move.what == "kv" for move in copier.moves)
