"""How one move is carried out: `HostCopier` copies memory to memory, `stepwell.store.streams` on a CUDA stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Extent, LiveState, Move, Tier
from stepwell.store.arena import Arena, LiveImages, Rows, as_slice, check_slots, joint_runs, region

Fence: TypeAlias = object | None
"""Whatever a copier needs to know about the moment at which a move was asked for."""


class Flight(Protocol):
    """A copy that has begun."""

    def arrived(self) -> bool:
        """Whether `land` would not have to wait."""

    def land(self) -> None:
        """Wait until every byte has arrived; StoreError if they are not the right ones."""


class Copier(Protocol):
    """Carries out single moves. `begin` and `Flight.land` are called on the mover's thread, `fence` on the engine's."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one slot, in every tier."""

    def fence(self) -> Fence:
        """A mark of what the engine has queued so far: a copy may begin once the device has got there."""

    def begin(self, move: Move, fence: Fence) -> Flight:
        """Start one copy. Raises if it cannot start; nothing then reports it but the caller."""


class Landed:
    """A copy that was complete as soon as it was made."""

    __slots__ = ()

    def arrived(self) -> bool:
        return True

    def land(self) -> None:
        return


class HostCopier:
    """Plain copies between arenas in host memory: complete when `begin` returns.

    No ordering is needed beyond the leases: whoever asks for a move has leased its source and target, so no step
    writes the one or reads the other until the move is reported. A step's own writes are complete when it returns.
    """

    __slots__ = ("_arenas", "_live", "_page_bytes")

    def __init__(self, arenas: Mapping[Tier, Arena], live: LiveImages | None = None) -> None:
        widths = {arena.rows.shape[1] for arena in arenas.values()}
        assert len(widths) == 1, f"arenas must agree on the size of a page, not {widths}"
        self._arenas = dict(arenas)
        self._live = live
        self._page_bytes = int(widths.pop())

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    def fence(self) -> Fence:
        return None

    def begin(self, move: Move, fence: Fence = None) -> Flight:
        """Copy now. StoreError on bad slots, bytes that fail their checksum, or a tier without an arena."""
        self.copy(move)
        return Landed()

    def copy(self, move: Move) -> None:
        """`begin`, for callers with nothing to wait for (tests)."""
        source = self._arena(move.source)
        source.check(move.source.slots)
        if isinstance(move.target, LiveState):
            self._to_live(move, source.rows)
        else:
            self._between(move, source.rows, move.target)

    def _between(self, move: Move, rows: Rows, target: Extent) -> None:
        check_lengths(move)
        arena = self._arena(target)
        slots = move.source.slots
        # Run by run rather than `a[i] = b[j]` over all: a gather into a temporary costs more than the calls it saves.
        for run in joint_runs(slots, target.slots):
            arena.rows[region(target.slots, run)] = rows[region(slots, run)]
        arena.seal(target.slots, (rows[slot] for slot in slots.tolist()))

    def _to_live(self, move: Move, rows: Rows) -> None:
        assert isinstance(move.target, LiveState)
        if self._live is None:
            raise StoreError(
                f"move {move.ticket} goes to live state {move.target.slot}, but this mover has no live states"
            )
        whole = as_slice(move.source.slots)
        image = rows[move.source.slots if whole is None else whole]
        self._live.load_image(move.target.slot, image.reshape(-1))

    def _arena(self, extent: Extent) -> Arena:
        """The arena of an extent, whose slots it has; StoreError if not."""
        name = f"the {extent.tier.name.lower()} arena"
        if extent.tier not in self._arenas:
            raise StoreError(f"a move names slots of {name}, which this engine does not have")
        arena = self._arenas[extent.tier]
        check_slots(extent.slots, len(arena.rows), name)
        return arena


def check_lengths(move: Move) -> None:
    """StoreError unless source and target have as many slots."""
    assert isinstance(move.target, Extent)
    have, want = len(move.source.slots), len(move.target.slots)
    if have != want:
        raise StoreError(f"move {move.ticket} copies {have} slots to {want}: both sides must be as long")
