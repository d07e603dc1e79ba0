"""The laws would notice: bugs of what serves an external store, each found by a run that takes that way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from stepwell.cache.external.ledger import External, What
from stepwell.cache.moves import Extent, Move, Name, Tier
from stepwell.cache.reuse import admission
from stepwell.testing.laws import LawBroken
from stepwell.testing.outside import OutsideStore
from stepwell.testing.telltale import Words
from tests.interpreted import interpreted
from tests.laws.test_external import Engine

pytestmark = interpreted
Patch = Callable[[pytest.MonkeyPatch], None]


def private_copies_of_shared_pages_are_kept(patch: pytest.MonkeyPatch) -> None:
    """The partial chunk's private pages do not give way to the shared ones once the load has ended."""
    patch.setattr(admission, "_share_path", lambda directory, held: None)


def shared_pages_are_loaded_over(patch: pytest.MonkeyPatch) -> None:
    """The chunks are written from the first page on, which is shared."""
    real = admission._begin_loads

    def too_low(held: admission.Committed, move: Move) -> Move:
        target = Extent(Tier.DEVICE, held.table.pages[: len(move.source.slots)].copy())
        return replace(move, target=target) if move.what == "kv" else move

    def begin(*given: Any) -> Any:
        state = real(*given)
        if not isinstance(state, admission.Loading):
            return state
        return replace(state, moves=tuple(too_low(state.held, move) for move in state.moves))

    patch.setattr(admission, "_begin_loads", begin)


def leases_are_never_let_go(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(admission, "_release_hit", lambda directory, held: None)


def what_failed_stays_believed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(External, "forget", lambda self, what, names: None)


def an_image_of_another_boundary_is_loaded(patch: pytest.MonkeyPatch) -> None:
    real = OutsideStore._read
    patch.setattr(
        OutsideStore,
        "_read",
        lambda self, rank, what, name: (
            next(one.rows for key, one in self.objects[rank].items() if key[0] == what)
            if what == "image"
            else real(self, rank, what, name)
        ),
    )


def wrong_bytes_are_not_noticed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OutsideStore, "_read", lambda self, rank, what, name: self.objects[rank][what, name.digest].rows)


def the_first_pages_of_a_chunk_are_kept(patch: pytest.MonkeyPatch) -> None:
    """What the device has already is not what is dropped."""
    real = OutsideStore._read

    def turned(self: OutsideStore, rank: int, what: What, name: Name) -> Words:
        rows = real(self, rank, what, name)
        return np.roll(rows, 1, axis=0) if what == "kv" and name.start == 16 else rows

    patch.setattr(OutsideStore, "_read", turned)


@pytest.mark.parametrize(
    ("bug", "laws"),
    [
        (private_copies_of_shared_pages_are_kept, {5}),
        (shared_pages_are_loaded_over, {1}),
        (leases_are_never_let_go, {5}),
        (what_failed_stays_believed, {6}),
        (an_image_of_another_boundary_is_loaded, {2}),
        (wrong_bytes_are_not_noticed, {2, 3, 10}),
        (the_first_pages_of_a_chunk_are_kept, {3}),
    ],
)
def test_it_is_found(bug: Patch, laws: set[int], monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(drops=bug is the_first_pages_of_a_chunk_are_kept)
    engine.ask()
    engine.store.objects, kept = [{}], engine.store.objects
    engine.keep(20)
    engine.store.objects = kept
    if bug in (what_failed_stays_believed, wrong_bytes_are_not_noticed):
        engine.store.spoil("kv")
    bug(monkeypatch)
    with pytest.raises(LawBroken) as found:
        engine.ask()
        engine.harness.flush(Tier.DEVICE)
        engine.ask()
    assert found.value.law in laws, found.value
