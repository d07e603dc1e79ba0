"""How bytes come to the disk and go from it: the one thing here that knows of other tiers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

import numpy as np

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Extent, LiveState, Tier
from stepwell.store.arena import Arena, LiveImages, Rows, as_slice, check_slots

Fence: TypeAlias = object | None
"""Whatever a gate needs to know about the moment at which a move was asked for."""


class Gate(Protocol):
    """`fence` is called on the engine's thread, the rest on those of the disk mover, several at a time."""

    def fence(self) -> Fence:
        """A mark of what the engine has queued so far."""

    def memory(self, pages: int) -> Rows:
        """Memory of this many pages to read into, from which `deliver` is fast. Asked for a few times, kept for good."""

    def fetch(self, extent: Extent, fence: Fence) -> Rows:
        """Bytes of these slots, [n, page_bytes], as of the fence; perhaps the slots themselves, which are leased. StoreError."""

    def deliver(self, target: Extent | LiveState, rows: Rows, fence: Fence) -> None:
        """Copy rows to these slots, or an image to a live state; done when it returns. StoreError."""


class MemoryGate:
    """A gate to arenas in host memory and the live states beside them, as `HostCopier` serves them."""

    __slots__ = ("_arenas", "_live", "_page_bytes")

    def __init__(self, arenas: Mapping[Tier, Arena], live: LiveImages | None = None) -> None:
        self._arenas = dict(arenas)
        self._live = live
        self._page_bytes = next(iter(self._arenas.values())).rows.shape[1]

    def fence(self) -> Fence:
        return None

    def memory(self, pages: int) -> Rows:
        return np.zeros((pages, self._page_bytes), np.uint8)

    def fetch(self, extent: Extent, fence: Fence) -> Rows:
        arena = self._arena(extent)
        arena.check(extent.slots)
        whole = as_slice(extent.slots)
        return arena.rows[extent.slots if whole is None else whole]

    def deliver(self, target: Extent | LiveState, rows: Rows, fence: Fence) -> None:
        if isinstance(target, LiveState):
            if self._live is None:
                raise StoreError(f"a move goes to live state {target.slot}, but this engine has none")
            self._live.load_image(target.slot, rows.reshape(-1))
            return
        arena = self._arena(target)
        whole = as_slice(target.slots)
        arena.rows[target.slots if whole is None else whole] = rows
        arena.seal(target.slots, rows)

    def _arena(self, extent: Extent) -> Arena:
        """The arena of an extent, whose slots it has; StoreError if not."""
        name = f"the {extent.tier.name.lower()} arena"
        if extent.tier not in self._arenas:
            raise StoreError(f"a move names slots of {name}, which this engine does not have")
        arena = self._arenas[extent.tier]
        check_slots(extent.slots, len(arena.rows), name)
        return arena
