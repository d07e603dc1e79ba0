"""What an external store must do, and one that is a dictionary."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from stepwell.base.errors import StoreError
from stepwell.cache.external.ledger import What
from stepwell.cache.external.query import Query, QueryAnswer
from stepwell.cache.moves import Name
from stepwell.store.arena import Rows
from stepwell.store.external import objects


class Backend(Protocol):
    """Called from several threads. Any call may take as long as it likes: `ExternalMover` waits for none of them beyond its deadline."""

    def find(self, query: Query, waited_for: Callable[[], bool]) -> QueryAnswer:
        """Lease what `query` asks for, as far as it is there. May give up, with nothing leased, once nobody waits any more."""

    def get(self, what: What, name: Name) -> Rows:
        """The object's bytes, uint8 [n], valid until its lease is released. StoreError where it is not there."""

    def put(self, what: What, name: Name, rows: Rows) -> None:
        """Store `rows`, uint8 [pages, page_bytes], as the object of this name, unless it is there. StoreError where there is no room."""

    def release(self, number: int) -> None:
        """End the lease of a query; unknown numbers are ignored."""

    def forget(self, what: What, names: Sequence[Name]) -> None:
        """Drop these objects wherever they are, leased or not."""

    def close(self) -> None:
        """Let go of everything."""


class DictBackend:
    """Keeps everything, in this process. Leases hold nothing, since nothing goes by itself."""

    def __init__(self, rank: int = 0) -> None:
        self._rank = rank
        self.objects: dict[tuple[What, bytes], Rows] = {}
        self.leases: set[int] = set()
        self._lock = threading.Lock()

    def find(self, query: Query, waited_for: Callable[[], bool]) -> QueryAnswer:
        reach, boundary = query.start, 0
        with self._lock:
            for name in query.kv:
                if ("kv", name.digest) not in self.objects:
                    break
                reach = name.end
            for name in query.images:
                if name.end <= reach and ("image", name.digest) in self.objects:
                    boundary = name.end
            if boundary:
                self.leases.add(query.number)
        return QueryAnswer(query.number, reach, boundary)

    def get(self, what: What, name: Name) -> Rows:
        with self._lock:
            found = self.objects.get((what, name.digest))
        if found is None:
            raise StoreError(f"{objects.describe(what, name, self._rank)}: the store has it no more")
        return found

    def put(self, what: What, name: Name, rows: Rows) -> None:
        made = np.empty(objects.size_of(*rows.shape), np.uint8)
        objects.write(made, what, name, rows)
        with self._lock:
            self.objects[what, name.digest] = made

    def release(self, number: int) -> None:
        with self._lock:
            self.leases.discard(number)

    def forget(self, what: What, names: Sequence[Name]) -> None:
        with self._lock:
            for name in names:
                self.objects.pop((what, name.digest), None)

    def close(self) -> None:
        return
