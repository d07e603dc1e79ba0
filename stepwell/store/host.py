"""The host tier: one allocation of page-sized slots, and checksums of all or some of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import compress
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from stepwell.base.errors import ConfigError, StoreError
from stepwell.base.geometry import Ints
from stepwell.base.units import format_size
from stepwell.store.arena import Rows, as_slice, check_slots

Allocate: TypeAlias = Callable[[int, int], Rows]
"""Memory for so many slots of so many bytes."""

POISON = 0xDB
"""The byte that a poisoned slot is full of."""


class HostArena:
    """`rows` uint8 [slots, page_bytes], allocated once; nothing else in the host tier holds bytes.

    The owner of every decision is the directory: the arena knows no free list and no index.

    verify    share of slots, drawn as they are written, of which an xxh3 checksum is kept: taken from the source, compared as the slot is
              read. It catches what no lease can: a torn copy, a slot that was never written, a stray write. One thread hashes 7 to
              30 GiB a second and holds the interpreter for it, so where a link is faster than that only a sample is affordable.
    allocate  makes the memory: `plain`, `pinned` (page-locked, for copies beside the compute on CUDA; takes about 0.5 s a GiB),
            or `stepwell.store.pinned.mapped`, to be page-locked in the background.
    """

    __slots__ = ("_draw", "_sealed", "_summed", "_sums", "rows", "verify")

    def __init__(self, slots: int, page_bytes: int, *, allocate: Allocate | None = None, verify: float = 1.0) -> None:
        self.rows = (allocate or plain)(slots, page_bytes)
        self.verify = verify
        self._sums: npt.NDArray[np.uint64] = np.zeros(slots, dtype=np.uint64)
        self._sealed: npt.NDArray[np.bool_] = np.zeros(slots, dtype=np.bool_)
        self._summed: npt.NDArray[np.bool_] = np.zeros(slots, dtype=np.bool_)
        self._draw = np.random.default_rng(0)

    @classmethod
    def within(
        cls,
        budget: int,
        page_bytes: int,
        *,
        allocate: Allocate | None = None,
        verify: float = 1.0,
        available: int | None = None,
    ) -> HostArena:
        """As many slots as `budget` bytes hold.

        ConfigError, before anything is allocated, where that is not one slot or more than `available` bytes (by
        default what the system says is free): memory is handed out lazily, and an arena too large would end the
        process much later.
        """
        free = available_memory() if available is None else available
        if budget > free:
            raise ConfigError(
                f"--host-memory {format_size(budget)} is more than the {format_size(free)} that are free: ask for less"
            )
        if budget < page_bytes:
            raise ConfigError(
                f"--host-memory {format_size(budget)} does not hold one page of {format_size(page_bytes)}: "
                "ask for more, or for 0 to have no host tier"
            )
        return cls(budget // page_bytes, page_bytes, allocate=allocate, verify=verify)

    @property
    def slots(self) -> int:
        """How many slots there are."""
        return len(self.rows)

    @property
    def page_bytes(self) -> int:
        """Bytes of one slot."""
        return int(self.rows.shape[1])

    def read(self, slots: Ints) -> Rows:
        """Bytes of these slots [n, page_bytes]; a view where they are consecutive. StoreError as in `check`."""
        self.check(slots)
        run = as_slice(slots)
        return self.rows[slots if run is None else run]

    def write(self, slots: Ints, rows: Rows) -> None:
        """Copy `rows` [n, page_bytes] into these slots, and seal them. StoreError on bad slots or another shape."""
        check_slots(slots, self.slots, "the host arena")
        if rows.shape != (len(slots), self.page_bytes):
            raise StoreError(
                f"{len(slots)} host slots of {self.page_bytes} bytes cannot take bytes of shape {rows.shape}"
            )
        self.rows[slots] = rows
        self.seal(slots, rows)

    def check(self, slots: Ints) -> None:
        """StoreError unless these slots exist, have been written and still hold what was written (see `verify`)."""
        check_slots(slots, self.slots, "the host arena")
        if not self.verify:
            return
        sealed = self._sealed[slots]
        if not sealed.all():
            raise StoreError(f"host slot {slots[~sealed][0]} was read before anything was written to it")
        summed = slots[self._summed[slots]]
        wrong = self._sums[summed] != _sums(self.rows[slot] for slot in summed.tolist())
        if wrong.any():
            raise StoreError(
                f"host slot {summed[wrong][0]} fails its checksum ({int(wrong.sum())} of {len(slots)} read)"
            )

    def seal(self, slots: Ints, source: Iterable[Rows] | None = None) -> None:
        """Take the checksums of what these slots should hold: `source`, or what they do hold where that is out of reach."""
        if self.verify:
            drawn = np.full(len(slots), True) if self.verify == 1 else self._draw.random(len(slots)) < self.verify
            self._summed[slots] = drawn
            rows = (self.rows[slot] for slot in slots.tolist()) if source is None else source
            self._sums[slots[drawn]] = _sums(compress(rows, drawn.tolist()))
        self._sealed[slots] = True

    def poison(self, slots: Ints) -> None:
        """Overwrite freed slots, so that a reader who still trusts them is found out. For tests."""
        check_slots(slots, self.slots, "the host arena")
        self.rows[slots] = POISON
        self._sealed[slots] = False


def _sums(rows: Iterable[Rows]) -> npt.NDArray[np.uint64]:
    """xxh3 of every row."""
    return np.fromiter((xxhash.xxh3_64_intdigest(row.data) for row in rows), dtype=np.uint64)


def plain(slots: int, page_bytes: int) -> Rows:
    """Memory as any other; handed out as it is touched."""
    return np.empty((slots, page_bytes), dtype=np.uint8)


def pinned(slots: int, page_bytes: int) -> Rows:
    """Page-locked memory, by torch."""
    import torch

    return np.asarray(torch.empty((slots, page_bytes), dtype=torch.uint8, pin_memory=True).numpy())


def available_memory(meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes that can be allocated without swapping: the system's estimate, or what the control group leaves if that
    is less.

    Where neither file exists (not Linux) nothing is known, and any budget passes.
    """
    free = _table(meminfo).get("MemAvailable:")
    known = [2**63 - 1 if free is None else free * 1024]
    limit, used = (_text(group / name).strip() for name in ("memory.max", "memory.current"))
    if limit.isdigit() and used.isdigit():
        cached = _table(group / "memory.stat").get("inactive_file", 0)  # counted as used, yet given up when asked for
        known.append(max(0, int(limit) - int(used) + cached))
    return min(known)


def _table(path: Path) -> dict[str, int]:
    """Lines of `name number …`."""
    pairs = (line.split() for line in _text(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) > 1 and pair[1].isdigit()}


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
