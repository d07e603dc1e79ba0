"""Whether the store may write, and what it counts.

After a failed write it stops for a while, logs that once, and tries again. Reading goes on.
"""

from __future__ import annotations

import errno
import logging
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from stepwell.base.clock import Clock

log = logging.getLogger("stepwell.store.disk")

FIRST_PAUSE = 1.0
LONGEST_PAUSE = 60.0


class Health:
    """Whether the tier may write. `failed` and `worked` belong to the writer's thread, the rest to anyone.

    on_ruin   called once when the index turns out to be damaged, to see to it that the next start does not trust it
    """

    def __init__(self, clock: Clock, on_ruin: Callable[[], None]) -> None:
        self._clock = clock
        self._on_ruin = on_ruin
        self._lock = threading.Lock()
        self._problems: Counter[str] = Counter()
        self._pause = 0.0
        self._until = 0.0
        self._why = ""
        self.broken = False

    @property
    def problems(self) -> dict[str, int]:
        with self._lock:
            return dict(self._problems)

    @property
    def paused_until(self) -> float:
        """0 while writing."""
        return self._until if self._pause else 0.0

    @property
    def paused(self) -> bool:
        """Whether moves are to fail at once."""
        return bool(self._pause) and self._clock.now() < self._until

    @property
    def doubtful(self) -> bool:
        """Whether the last write failed: the next one is to be preceded by a trial."""
        return bool(self._pause)

    @property
    def why(self) -> str:
        return self._why

    def note(self, cause: str, text: str) -> None:
        """Count a problem that does not stop the writing; each cause is logged once."""
        with self._lock:
            self._problems[cause] += 1
            first = self._problems[cause] == 1
        if first:
            log.warning("disk cache: %s (%s)", text, cause)

    def failed(self, error: Exception) -> str:
        """Stop writing for a while: twice as long as the last time, 1 s at first. Returns what to tell those who wait."""
        cause, text = cause_of(error), f"{type(error).__name__}: {error}"
        self._pause = min(LONGEST_PAUSE, 2 * self._pause) if self._pause else FIRST_PAUSE
        self._until = self._clock.now() + self._pause
        self._why = f"the disk cache has stopped writing: {text}"
        self.note(cause, f"{self._why}; it tries again by itself")
        return self._why

    def ruined(self, error: Exception) -> None:
        """The index cannot be trusted: nothing is written or found until the next start, which begins anew."""
        if not self.broken:
            self.broken = True
            self._why = "the index of the disk cache is damaged: it begins anew at the next start"
            self._on_ruin()
        self.note(cause_of(error), f"{self._why}: {error}")

    def worked(self) -> None:
        """A write went well."""
        if self._pause:
            self._pause = self._until = 0.0
            self._why = ""
            log.info("disk cache: writing again")


def cause_of(error: Exception) -> str:
    """A short name for what went wrong, fit for a metric's label."""
    if isinstance(error, OSError):
        return errno.errorcode.get(error.errno or 0, "OSError")
    if isinstance(error, sqlite3.Error):
        # absent where the error is not SQLite's own
        return str(getattr(error, "sqlite_errorname", type(error).__name__))
    return type(error).__name__


PASSING = frozenset(
    {"SQLITE_IOERR", "SQLITE_FULL", "SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PERM"}
)


def is_ruin(error: Exception) -> bool:
    """Whether an error of the index is about its content, not about the disk under it."""
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    name = cause_of(error)
    short = name.startswith("SQLITE_IOERR_SHORT_READ")
    return short or not any(name == passing or name.startswith(f"{passing}_") for passing in PASSING)


Count: TypeAlias = Literal[
    "bytes_demoted",
    "bytes_written",
    "bytes_rewritten",
    "bytes_read",
    "published",
    "adopted",
    "forgotten",
    "deduplicated",
    "quarantined",
    "failed_writes",
    "failed_reads",
    "compactions",
]


@dataclass(frozen=True, slots=True)
class DiskStats:
    """One look. Bytes are payload where not said otherwise; all but the first four only ever grow.

    slots, dormant_pages   pages there is room for, and those among them that nobody has asked for since an earlier process
    segments, bytes        files of records, and their length with headers and dead space
    bytes_demoted          asked for by moves to disk        bytes_written   of them really written, with headers
    bytes_rewritten        written again by compaction       bytes_read      served to moves from disk
    published … quarantined  records; the last failed a check and are used no more
    failed_writes, failed_reads  moves
    problems               cause → how often it has stopped the writing, or broken a move
    paused_until           on the store's clock: nothing is written before; 0 while all is well
    """

    slots: int
    dormant_pages: int
    segments: int
    bytes: int
    bytes_demoted: int
    bytes_written: int
    bytes_rewritten: int
    bytes_read: int
    published: int
    adopted: int
    forgotten: int
    deduplicated: int
    quarantined: int
    failed_writes: int
    failed_reads: int
    compactions: int
    problems: Mapping[str, int]
    paused_until: float


class DiskCounts:
    """Counters that several threads add to."""

    __slots__ = ("_counts", "_lock")

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def add(self, name: Count, amount: int = 1) -> None:
        with self._lock:
            self._counts[name] += amount

    def get(self, name: Count) -> int:
        with self._lock:
            return self._counts[name]
