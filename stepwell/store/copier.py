"""How one move is carried out: `HostCopier` copies memory to memory, `stepwell.store.streams` on a CUDA stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Extent, LiveState, Move, Tier
from stepwell.store.arena import Arena, LiveImages, joint_runs

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

    __slots__ = ("_arenas", "_live")

    def __init__(self, arenas: Mapping[Tier, Arena], live: LiveImages | None = None) -> None:
        sizes = {arena.page_bytes for arena in arenas.values()}
        assert len(sizes) == 1, f"arenas must agree on the size of a page, not {sizes}"
        self._arenas = dict(arenas)
        self._live = live

    @property
    def page_bytes(self) -> int:
        return next(iter(self._arenas.values())).page_bytes

    def fence(self) -> Fence:
        return None

    def begin(self, move: Move, fence: Fence = None) -> Flight:
        """Copy now. StoreError on bad slots, bytes that fail their checksum, or a tier without an arena."""
        self.copy(move)
        return Landed()

    def copy(self, move: Move) -> None:
        """`begin`, for callers with nothing to wait for (tests)."""
        if isinstance(move.target, LiveState):
            self._to_live(move, move.target)
        else:
            self._between(move, move.target)

    def _between(self, move: Move, target: Extent) -> None:
        check_lengths(move)
        reader, writer = find_arena(self._arenas, move.source.tier), find_arena(self._arenas, target.tier)
        for run in joint_runs(move.source.slots, target.slots):
            writer.write(target.slots[run], reader.read(move.source.slots[run]))

    def _to_live(self, move: Move, target: LiveState) -> None:
        if self._live is None:
            raise StoreError(f"move {move.ticket} goes to live state {target.slot}, but this mover has no live states")
        rows = find_arena(self._arenas, move.source.tier).read(move.source.slots)
        self._live.load_image(target.slot, rows.reshape(-1))


def check_lengths(move: Move) -> None:
    """StoreError unless source and target have as many slots."""
    assert isinstance(move.target, Extent)
    have, want = len(move.source.slots), len(move.target.slots)
    if have != want:
        raise StoreError(f"move {move.ticket} copies {have} slots to {want}: both sides must be as long")


def find_arena(arenas: Mapping[Tier, Arena], tier: Tier) -> Arena:
    """The arena of a tier; StoreError if this engine has none."""
    if tier not in arenas:
        raise StoreError(f"a move names the {tier.name.lower()} tier, which this engine does not have")
    return arenas[tier]
