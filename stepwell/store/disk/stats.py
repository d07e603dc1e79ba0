"""What the disk store counts."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

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


class Counts:
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
