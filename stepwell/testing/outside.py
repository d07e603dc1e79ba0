"""An external store in memory: objects of each rank by name, faults on demand, no thread and no time.

It is what a store such as LMCache is to the engine: it answers lookups late or never, leases what it has found, loses and spoils objects
at any moment, and its copies fail where an object is not what its name says. Copies pass through the ranks' movers, with their faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from stepwell.base.errors import StoreError
from stepwell.cache.config import CacheConfig
from stepwell.cache.disk.names import Names
from stepwell.cache.external.ledger import External, What
from stepwell.cache.external.query import Query, QueryAnswer
from stepwell.cache.moves import Extent, LiveState, Move, Name, Tier
from stepwell.sched.loop import EngineLoop
from stepwell.store.external.joint import JointStore
from stepwell.testing.laws import require
from stepwell.testing.telltale import Memory, Words

Key = tuple[What, bytes]


@dataclass(frozen=True, slots=True, eq=False)
class Object:
    """One rank's part of a chunk or an image. `sums` is what its bytes were as it was stored."""

    name: Name
    rows: Words
    sums: int


class OutsideStore:
    """`objects` are those of each rank.

    delay    polls that an answer takes     silent   nothing is answered, and no copy comes to anything: a server that hangs
    deaf     what is given up is answered all the same
    joint    what the engine asks; each of the ranks is asked by it, and answers for itself
    leases   what each query that was answered holds, by its number among the ranks and by rank
    """

    def __init__(self, cache: CacheConfig, ranks: int, least: int) -> None:
        self.names = Names(bytes(reversed(range(32))), cache.external_chunk)
        self.objects: list[dict[Key, Object]] = [{} for _ in range(ranks)]
        self.leases: dict[tuple[int, int], tuple[Key, ...]] = {}
        self.delay = 0
        self._least = least
        self._engines = 0
        self.silent = self.deaf = False
        self.joint = JointStore(self, ranks)
        self.asked = self.answered = self.stored = self.loaded = 0
        self._block = cache.geometry.block
        self._waiting: list[tuple[int, int, Query]] = []  # polls, rank

    # ---- what the engine asks of the ranks ----------------------------------------------------------------

    def begin_anew(self) -> External:
        """Another engine takes the place of the one that asked."""
        self._waiting = []
        self.leases.clear()
        self._engines += 1
        self.joint = JointStore(self, len(self.objects))
        return External(self.names, self._least, life=str(self._engines))

    def look_up(self, query: Query, ranks: int) -> None:
        self.asked += 1
        self._waiting += [(self.delay + (rank if self.delay else 0), rank, query) for rank in range(ranks)]

    def answers(self) -> Sequence[tuple[int, QueryAnswer]]:
        if self.silent:
            return ()
        due = [(rank, query) for polls, rank, query in self._waiting if polls <= 0]
        self._waiting = [(polls - 1, rank, query) for polls, rank, query in self._waiting if polls > 0]
        self.answered += len(due)
        return [(rank, self._answer(rank, query)) for rank, query in due]

    def release(self, number: int) -> None:
        for rank in range(len(self.objects)):
            self.leases.pop((number, rank), None)
        self._waiting = [one for one in self._waiting if one[2].number != number or self.deaf]

    @property
    def waiting(self) -> int:
        """Questions to one rank that nobody has given up, and that have not been answered."""
        return len(self._waiting)

    def forget(self, what: What, names: Sequence[Name]) -> None:
        for name in names:
            for held in self.objects:
                held.pop((what, name.digest), None)

    def _answer(self, rank: int, query: Query) -> QueryAnswer:
        held, reach = self.objects[rank], query.start
        for name in query.kv:
            if ("kv", name.digest) not in held:
                break
            reach = name.end
        found = [name for name in query.images if name.end <= reach and ("image", name.digest) in held]
        if not found:
            return QueryAnswer(query.number, reach, 0)
        leased: list[Key] = [("kv", name.digest) for name in query.kv if name.end <= found[-1].end]
        self.leases[query.number, rank] = (*leased, ("image", found[-1].digest))
        return QueryAnswer(query.number, reach, found[-1].end)

    # ---- its bytes --------------------------------------------------------------------------------------------

    def carry(self, memory: Memory, move: Move) -> bool:
        """Carry out one rank's part of a move to or from here; False for any other move. StoreError names the object, the leg and the
        rank."""
        target = None if isinstance(move.target, LiveState) else move.target.tier
        if Tier.EXTERNAL not in (move.source.tier, target):
            return False
        rank = memory.shard.state
        if self.silent:
            raise StoreError(f"rank {rank}: the store does not answer")
        if move.source.tier == Tier.EXTERNAL:
            self._load(rank, memory, move)
        else:
            self._store(rank, memory, move)
        return True

    def _load(self, rank: int, memory: Memory, move: Move) -> None:
        parts = [self._read(rank, move.what, name) for name in move.names]
        rows = np.concatenate(parts)[-len(move.source.slots) :]  # the device may have the first of them
        if isinstance(move.target, LiveState):
            memory.live[move.target.slot] = memory.unpack(rows)
        else:
            memory.write(move.target.tier, move.target.slots, rows)
        self.loaded += 1

    def _read(self, rank: int, what: What, name: Name) -> Words:
        found = self.objects[rank].get((what, name.digest))
        where = f"{what} of tokens {name.start} to {name.end}, rank {rank}"
        if found is None:
            raise StoreError(f"{where}: not there any more")
        if found.name != name or found.sums != _sum(found.rows):
            raise StoreError(f"{where}: not what its name says")
        return found.rows

    def _store(self, rank: int, memory: Memory, move: Move) -> None:
        (name,) = move.names
        rows = memory.arenas[move.source.tier][move.source.slots].copy()
        pages = (name.end - name.start) // self._block
        if move.what == "kv" and len(rows) != pages:
            raise StoreError(f"{len(rows)} pages of a chunk of {pages}")
        if not memory.intact(move.source.tier, move.source.slots):
            raise StoreError(f"slots {move.source.slots.tolist()} fail their checksums")
        assert isinstance(move.target, Extent)
        self.objects[rank][move.what, name.digest] = Object(name, rows, _sum(rows))
        self.stored += 1

    # ---- what a test does to it -------------------------------------------------------------------------------

    def lose(self, what: What, count: int = 1, rank: int = 0, last: bool = True) -> int:
        """Drop objects of one rank, the deepest first or last, leased or not; how many it had."""
        keys = [key for key in self.objects[rank] if key[0] == what]
        keys.sort(key=lambda key: self.objects[rank][key].name.end, reverse=last)
        for key in keys[:count]:
            del self.objects[rank][key]
        return len(keys[:count])

    def spoil(self, what: What, rank: int = 0) -> int:
        """Make a bit wrong in each object of one rank; how many there are."""
        found = [(key, one) for key, one in self.objects[rank].items() if key[0] == what]
        for key, one in found:
            rows = one.rows.copy()
            rows[0, 0] ^= np.uint64(1)
            self.objects[rank][key] = replace(one, rows=rows)
        return len(found)

    def wipe(self) -> None:
        """The server is restarted, and has nothing."""
        self.objects = [{} for _ in self.objects]
        self.leases.clear()


def begin_with(store: OutsideStore | None) -> tuple[External | None, JointStore | None]:
    """What a new engine knows of a store, and whom it asks. The engine before is gone, and with it its questions and leases."""
    return (None, None) if store is None else (store.begin_anew(), store.joint)


def check_forgotten(loop: EngineLoop, failed: Sequence[Move]) -> None:
    """Law 6: what could not be loaded is to be stored again."""
    external = loop.directory.external
    for move in failed:
        known = external is not None and any(external.believes(move.what, name) for name in move.names)
        require(6, not known, f"{move.names} are believed to be stored, though a load of them failed")


def _sum(rows: Words) -> int:
    return hash(rows.tobytes())
