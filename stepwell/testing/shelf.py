"""A disk that is a few arrays: what a store must do about names, orders and restarts, without a file.

The bytes lie in the ranks' memories, by slot, as those of the other tiers. The shelf knows which record each slot is part of, as
a manifest would, and is the `Catalogue` of what an earlier engine left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.disk.archive import Dormant
from stepwell.cache.disk.names import Names
from stepwell.cache.moves import DiskNote, Divide, Extent, Forget, Move, Name, Tier, Touch
from stepwell.testing.telltale import Memory, Words

GONE = -1
"""In place of a slot whose page was forgotten."""


@dataclass(frozen=True, slots=True)
class Record:
    """One published record: `slots` of the process that wrote or adopted it, `used` by count of orders."""

    what: Literal["kv", "image"]
    name: Name
    slots: tuple[int, ...]
    used: int


class Shelf:
    """`records` are those of this process, `dormant` those of an earlier one, by number.

    adopted     slots that have been given to records of an earlier process since the engine last asked for reports of copies
    compacting  how many more times nobody can hold it: a compaction commits
    asked       questions so far, those among them that found it held
    """

    def __init__(self, memories: Sequence[Memory], block: int, chunk: int) -> None:
        self.names = Names(bytes(range(32)), chunk)
        self.records: dict[int, Record] = {}
        self.dormant: dict[int, Record] = {}
        self.adopted: set[int] = set()
        self.compacting = self.asked = 0
        self._memories = tuple(memories)
        self._saved: list[tuple[Words, Words]] = []  # rows and their checksums, of each rank
        self._open: dict[int, set[int]] = {}
        self._doomed: set[int] = set()
        self._written: Counter[int] = Counter()
        self._taken: set[int] = set()
        self._late: Counter[int] = Counter()
        self._block = block
        self._numbers = 0
        self._ticks = 0

    # ---- the catalogue ------------------------------------------------------------------------------------------

    @property
    def pages(self) -> int:
        return sum(len(record.slots) for record in self.dormant.values())

    def hold(self, seconds: float = 0.0) -> bool:
        if not self.compacting:
            return True
        self.compacting -= 1
        self.asked += 1
        return False

    def let_go(self) -> None:
        return

    def under(self, parent: bytes, digests: Sequence[bytes]) -> Sequence[Dormant]:
        self.asked += 1
        wanted = [(number, r) for number, r in self.dormant.items() if r.name.digest in digests]
        found = [(number, r) for number, r in wanted if r.name.parent == parent]
        return [Dormant(number, r.what, r.name, len(r.slots)) for number, r in found]

    def adopt(self, dormant: Dormant, slots: Ints) -> None:
        record = self.dormant.pop(dormant.record)
        self.adopted.update(slots.tolist())
        self._forget_early(set(slots.tolist()))
        for memory, saved in zip(self._memories, self._saved, strict=True):
            rows, sums = saved
            memory.arenas[Tier.DISK][slots] = rows[list(record.slots)]
            memory.sums[Tier.DISK][slots] = sums[list(record.slots)]
        self.records[dormant.record] = replace(record, slots=tuple(slots.tolist()))

    def discard(self, dormant: Dormant) -> None:
        del self.dormant[dormant.record]

    def expel(self, root: bytes) -> int:
        gone = {number: r for number, r in self.dormant.items() if r.name.root == root}
        self.dormant = {number: r for number, r in self.dormant.items() if number not in gone}
        return sum(len(r.slots) for r in gone.values())

    def trim_dormant(self, pages: int) -> int:
        gone = 0
        for number, record in sorted(self.dormant.items(), key=lambda pair: pair[1].used):
            if gone >= pages:
                break
            del self.dormant[number]
            gone += len(record.slots)
        return gone

    # ---- the store ----------------------------------------------------------------------------------------------

    def begin(self, move: Move) -> None:
        """`move` is to be carried out, however late. An order that follows it concerns what it will have written."""
        if isinstance(move.target, Extent) and move.target.tier == Tier.DISK:
            self._open[move.ticket] = set(move.target.slots.tolist())
            self._taken |= self._open[move.ticket]

    def publish(self, move: Move) -> None:
        """One rank has copied `move` to disk, or a part of it. Its records can be found once every rank has written all of it."""
        assert isinstance(move.target, Extent)
        slots = move.target.slots.tolist()
        if move.ticket in self._doomed or set(slots) != self._open[move.ticket]:
            return
        self._written[move.ticket] += 1
        if self._written[move.ticket] < len(self._memories):
            return
        del self._open[move.ticket]
        for name in move.names:
            size = (name.end - name.start) // self._block or len(slots)
            self._add(Record(move.what, name, tuple(slots[:size]), self._tick()))
            slots = slots[size:]

    def obey(self, order: DiskNote) -> None:
        match order:
            case Forget(slots=slots):
                told = set(slots.tolist())
                self._doomed |= {ticket for ticket, target in self._open.items() if not told.isdisjoint(target)}
                early = {slot for slot in told if self._late[slot]}
                self._late.subtract(early)
                self._forget(told - early)
            case Touch(slots=slots):
                used, now = set(slots.tolist()), self._tick()
                for number, record in self.records.items():
                    if not used.isdisjoint(record.slots):
                        self.records[number] = replace(record, used=now)
            case Divide():
                self._divide(order)

    def restart(self) -> None:
        """The process is gone, and its memories with it; only the records are left."""
        self.records = {n: r for n, r in self.records.items() if GONE not in r.slots}
        self.dormant |= self.records  # numbers are never used twice
        old = [(m.arenas[Tier.DISK].copy(), m.sums[Tier.DISK].copy()) for m in self._memories]
        before = self._saved or old
        shift = len(before[0][0])
        saved = [(np.concatenate([a, c]), np.concatenate([b, d])) for (a, b), (c, d) in zip(before, old, strict=True)]
        for number in self.records:
            record = self.dormant[number]
            self.dormant[number] = replace(record, slots=tuple(slot + shift for slot in record.slots))
        self._saved = saved
        for noted in (self._written, self._taken, self._late, self._open, self._doomed):
            noted.clear()
        self.records = {}

    def _forget_early(self, slots: set[int]) -> None:
        """An adoption takes its slots at once. That they were to be forgotten before is an order still to come: swallow it then."""
        early = slots & self._taken
        self._late.update(early)
        self._forget(early)
        self._taken |= slots

    def _forget(self, gone: set[int]) -> None:
        """A record of which a part goes without having been divided can be read for as long as the process lives, and no longer."""
        self._taken -= gone
        left = {n: replace(r, slots=tuple(GONE if s in gone else s for s in r.slots)) for n, r in self.records.items()}
        self.records = {n: r for n, r in left.items() if set(r.slots) != {GONE}}

    def _divide(self, order: Divide) -> None:
        for number, record in list(self.records.items()):
            if order.last in record.slots and order.first in record.slots:
                cut = record.slots.index(order.first)
                upper = replace(record.name, digest=order.digest, end=order.at)
                lower = replace(record.name, parent=order.digest, start=order.at)
                self.records[number] = replace(record, name=upper, slots=record.slots[:cut])
                self._add(Record(record.what, lower, record.slots[cut:], record.used))
                return

    def _add(self, record: Record) -> None:
        self._numbers += 1
        self._taken.update(record.slots)
        self.records[self._numbers] = record

    def _tick(self) -> int:
        self._ticks += 1
        return self._ticks
