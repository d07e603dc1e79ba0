"""What every mover with threads keeps: moves started and not yet ended, reports not yet polled, totals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from stepwell.base.errors import StoreError
from stepwell.cache.moves import LiveState, Move, Report, Tier

Way = tuple[Tier, Tier | None]
"""(from, to); None is a live state."""


@dataclass(frozen=True, slots=True)
class CopyTotal:
    """What went from one tier to another: moves that ended well, moves that failed, bytes and seconds of the former."""

    moves: int = 0
    failed: int = 0
    bytes: int = 0
    seconds: float = 0.0


class Tickets:
    """Each move is opened once and ended once, on whichever thread; `changed` is notified at every end."""

    __slots__ = ("_open", "_page_bytes", "_reports", "_ring", "_totals", "changed")

    def __init__(self, page_bytes: int) -> None:
        self.changed = threading.Condition()
        self._page_bytes = page_bytes
        self._open: set[int] = set()
        self._reports: list[Report] = []
        self._totals: dict[Way, CopyTotal] = {}
        self._ring: Callable[[], None] | None = None

    def listen(self, ring: Callable[[], None]) -> None:
        """Have `ring` called, on any thread, after each report."""
        self._ring = ring

    def open(self, moves: Iterable[Move]) -> None:
        """These have been started. A ticket must not be open already."""
        with self.changed:
            for move in moves:
                assert move.ticket not in self._open, f"ticket {move.ticket} is already in flight"
                self._open.add(move.ticket)

    def end(self, move: Move, error: str = "", seconds: float = 0.0) -> None:
        """`move` has ended, well where there is no `error`, after `seconds`: report it."""
        way = (move.source.tier, None if isinstance(move.target, LiveState) else move.target.tier)
        size = len(move.source.slots) * self._page_bytes
        with self.changed:
            old = self._totals.get(way, CopyTotal())
            well = CopyTotal(old.moves + 1, old.failed, old.bytes + size, old.seconds + seconds)
            self._totals[way] = replace(old, failed=old.failed + 1) if error else well
            self._open.discard(move.ticket)
            self._reports.append(Report(move.ticket, not error, error, seconds))
            self.changed.notify_all()
        if self._ring is not None:
            self._ring()

    def poll(self) -> list[Report]:
        """Reports since the last call, in the order in which the moves ended; never waits."""
        with self.changed:
            reports, self._reports = self._reports, []
        return reports

    @property
    def has_reports(self) -> bool:
        """Whether `poll` would return something."""
        return bool(self._reports)

    def wait(self, seconds: float) -> None:
        """Wait until `poll` would return something, at most `seconds`."""
        with self.changed:
            self.changed.wait_for(lambda: bool(self._reports), timeout=seconds)

    def drain(self, seconds: float | None = None, also: Callable[[], bool] = lambda: True) -> bool:
        """Wait until every move has ended, and `also` holds; False if time ran out."""
        with self.changed:
            return self.changed.wait_for(lambda: not self._open and also(), timeout=seconds)

    def totals(self) -> dict[Way, CopyTotal]:
        """Moves so far. Bytes over seconds is the measured speed of that way."""
        with self.changed:
            return dict(self._totals)


def describe(error: Exception) -> str:
    """The text of an error of ours; the type as well where it is not."""
    return str(error) if isinstance(error, StoreError) and str(error) else f"{type(error).__name__}: {error}"
