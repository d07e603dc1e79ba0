"""When an engine process collects garbage: while it has nothing to do, and then in full."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from stepwell.base.clock import VirtualClock
from stepwell.engine.process.garbage import SOME, Garbage


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """The collector of the tests' own process stays as it was."""
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture
def full(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Full collections that have been asked for."""
    asked: list[int] = []
    real = gc.collect
    monkeypatch.setattr(gc, "collect", lambda generation=2: asked.append(generation) or real(generation))
    return asked


def test_no_full_collection_begins_by_itself() -> None:
    Garbage(VirtualClock())
    began: list[int] = []
    gc.callbacks.append(lambda phase, info: began.append(info["generation"]))
    kept = [[number] for number in range(100_000)]
    gc.callbacks.pop()
    assert len(kept) and set(began) == {0, 1}


def test_what_was_built_is_looked_at_no_more() -> None:
    built = [[number] for number in range(1000)]
    Garbage(VirtualClock())
    assert gc.get_freeze_count() > len(built) and len(gc.get_objects()) < len(built)


def test_idle_it_collects_now_and_then(full: list[int]) -> None:
    clock = VirtualClock()
    garbage = Garbage(clock)
    full.clear()
    garbage.idle()
    assert not full
    for _ in range(3):
        clock.advance(SOME)
        garbage.idle()
        garbage.idle()
    assert full == [2, 2, 2]
