"""How one move is carried out: `HostCopier` copies memory to memory, `stepwell.store.streams` on a CUDA stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from stepwell.base.clock import Clock, WallClock
from stepwell.base.errors import StoreError
from stepwell.cache.moves import Extent, LiveState, Move, Tier
from stepwell.store.arena import Arena, LiveImages, Rows, as_slice, check_slots, joint_runs, region


class BegunCopy(Protocol):
    """A copy that has begun."""

    def arrived(self) -> bool:
        """Whether `land` would not have to wait."""

    def land(self) -> float:
        """Wait until every byte has arrived; the seconds that the bytes took. StoreError if they are not the right ones."""


class Copier(Protocol):
    """Carries out moves. Each direction has a thread, which calls `begin` and `BegunCopy.land`."""

    @property
    def page_bytes(self) -> int:
        """Bytes of one slot, in every tier."""

    @property
    def name(self) -> str:
        """What copies, for people."""

    @property
    def together(self) -> int:
        """Bytes of moves between the same two tiers that are worth one `begin`; 0: each is begun alone."""

    def begin(self, moves: Sequence[Move]) -> BegunCopy:
        """Start these copies. Raises if one of them cannot start; the others may be begun again, alone. Only the caller reports them."""


@dataclass(frozen=True, slots=True)
class Landed:
    """A copy that was complete as soon as it was made."""

    seconds: float = 0.0

    def arrived(self) -> bool:
        return True

    def land(self) -> float:
        return self.seconds


class HostCopier:
    """Plain copies between arenas in host memory: complete when `begin` returns.

    No ordering is needed beyond the leases: whoever asks for a move has leased its source and target, so no step
    writes the one or reads the other until the move is reported. A step's own writes are complete when it returns.
    """

    __slots__ = ("_arenas", "_clock", "_live", "_page_bytes")

    def __init__(
        self, arenas: Mapping[Tier, Arena], live: LiveImages | None = None, clock: Clock | None = None
    ) -> None:
        widths = {arena.rows.shape[1] for arena in arenas.values()}
        assert len(widths) == 1, f"arenas must agree on the size of a page, not {widths}"
        self._arenas = dict(arenas)
        self._live = live
        self._clock = clock or WallClock()
        self._page_bytes = int(widths.pop())

    @property
    def page_bytes(self) -> int:
        return self._page_bytes

    @property
    def name(self) -> str:
        return "plain memory copies"

    @property
    def together(self) -> int:
        return 0

    def begin(self, moves: Sequence[Move]) -> BegunCopy:
        """Copy now. StoreError on bad slots, bytes that fail their checksum, or a tier without an arena."""
        began = self._clock.now()
        for move in moves:
            self.copy(move)
        return Landed(self._clock.now() - began)

    def copy(self, move: Move) -> None:
        """`begin` for one move, for callers with nothing to wait for (tests)."""
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
