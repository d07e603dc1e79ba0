"""Tells what each turn of the engine's loop has changed in the cache."""

from __future__ import annotations

import time
from collections.abc import Mapping

from stepwell.cache.changes import Journal
from stepwell.cache.directory import Directory
from stepwell.engine.events.form import cleared, encoded
from stepwell.engine.events.publisher import Publisher


class Teller:
    """Keeps the directory's journal. Begins by saying that nothing is cached: a process before this one may have said otherwise."""

    __slots__ = ("_block", "_journal", "_publisher")

    def __init__(self, directory: Directory, publisher: Publisher) -> None:
        geometry = directory.config.geometry
        self._block = geometry.block
        self._journal = directory.journal = Journal(geometry.block, rungs=geometry.image_pages > 0)
        self._publisher = publisher
        publisher.publish(cleared(time.time()))

    def tell(self) -> None:
        """Send what has changed since the last call, as one batch. Never blocks; O(tokens of what has come)."""
        if changes := self._journal.take():
            self._publisher.publish(encoded(changes, self._block, time.time()))

    @property
    def counts(self) -> Mapping[str, int]:
        """Batches that were sent, and that were dropped since too many waited."""
        return {"sent": self._publisher.published, "dropped": self._publisher.dropped}
