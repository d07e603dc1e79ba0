"""What earlier processes left on the disks of all ranks: only what every rank has can be resumed from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Literal, TypeAlias

from stepwell.base.geometry import Ints
from stepwell.cache.disk.archive import Dormant
from stepwell.cache.moves import Name
from stepwell.engine.ranks.wire import Adopt, Drop, Filing
from stepwell.store.disk.health import DiskStats

File: TypeAlias = Callable[[Filing], None]
"""Tells all ranks what becomes of records."""
Key: TypeAlias = tuple[Literal["kv", "image"], Name, int]


class JointCatalogue:
    """A `Catalogue` (see `stepwell.cache.disk.archive`) in memory, of records that are whole on all ranks: some 500 bytes each.

    A rank that has lost one since fails to read it, which fails the leg. What some ranks lack is dropped on the others.
    """

    def __init__(self, found: Sequence[Sequence[Dormant]], file: File) -> None:
        """`found`: each rank's records, least recently used first; the first rank's order counts."""
        self._file = file
        own = [{_key(dormant): dormant.record for dormant in records} for records in found]
        common = set(own[0]).intersection(*own[1:])
        self._records: dict[int, list[int]] = {}
        self._dormant: dict[int, Dormant] = {}
        self._under: dict[bytes, dict[int, Dormant]] = {}
        for key in filter(common.__contains__, own[0]):
            what, name, pages = key
            number = len(self._records)
            self._records[number] = [records[key] for records in own]
            self._dormant[number] = dormant = Dormant(number, what, name, pages)
            self._under.setdefault(name.parent, {})[number] = dormant
        self.pages = sum(dormant.pages for dormant in self._dormant.values())
        kept = [set(column) for column in zip(*self._records.values(), strict=True)] or [set[int]() for _ in own]
        lost = [[d.record for d in records if d.record not in own] for records, own in zip(found, kept, strict=True)]
        if any(lost):
            file(Drop(lost))

    def hold(self, seconds: float = 0.0) -> bool:
        del seconds  # nothing changes but by the calls below
        return True

    def let_go(self) -> None:
        return

    def under(self, parent: bytes, digests: Sequence[bytes]) -> Sequence[Dormant]:
        wanted = set(digests)
        return [dormant for dormant in self._under.get(parent, {}).values() if dormant.name.digest in wanted]

    def adopt(self, dormant: Dormant, slots: Ints) -> None:
        self._file(Adopt(self._take(dormant), slots.tobytes()))

    def discard(self, dormant: Dormant) -> None:
        self._drop([dormant])

    def expel(self, root: bytes) -> int:
        return self._drop([dormant for dormant in self._dormant.values() if dormant.name.root == root])

    def trim_dormant(self, pages: int) -> int:
        gone: list[Dormant] = []
        left = pages
        for dormant in self._dormant.values():
            if left <= 0:
                break
            gone.append(dormant)
            left -= dormant.pages
        return self._drop(gone)

    def _drop(self, gone: Sequence[Dormant]) -> int:
        if gone:
            taken = [self._take(dormant) for dormant in gone]
            self._file(Drop([list(records) for records in zip(*taken, strict=True)]))
        return sum(dormant.pages for dormant in gone)

    def _take(self, dormant: Dormant) -> list[int]:
        """It is dormant no more; its number on each rank."""
        del self._dormant[dormant.record]
        siblings = self._under[dormant.name.parent]
        del siblings[dormant.record]
        if not siblings:
            del self._under[dormant.name.parent]
        self.pages -= dormant.pages
        return self._records.pop(dormant.record)


def _key(dormant: Dormant) -> Key:
    return dormant.what, dormant.name, dormant.pages


def joint_stats(stats: Sequence[DiskStats]) -> DiskStats:
    """Of all ranks: sums, but for slots and what is dormant, of which each rank has its part under the same number."""
    first = stats[0]
    summed = {f.name: sum(getattr(one, f.name) for one in stats) for f in fields(DiskStats) if f.name not in _APART}
    problems: dict[str, int] = {}
    for one in stats:
        for cause, count in one.problems.items():
            problems[cause] = problems.get(cause, 0) + count
    paused = max(one.paused_until for one in stats)
    return DiskStats(
        slots=first.slots, dormant_pages=first.dormant_pages, problems=problems, paused_until=paused, **summed
    )


_APART = ("slots", "dormant_pages", "problems", "paused_until")
