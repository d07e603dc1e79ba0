"""What the writer works with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepwell.store.disk.appending import Appender
from stepwell.store.disk.catalogue import DiskCatalogue
from stepwell.store.disk.health import Health
from stepwell.store.disk.layout import Layout
from stepwell.store.disk.ledger import Ids, Ledger
from stepwell.store.disk.places import Places
from stepwell.store.disk.points import Point
from stepwell.store.disk.segments import Segments
from stepwell.store.disk.space import Space
from stepwell.store.disk.stats import Counts


@dataclass(frozen=True, slots=True)
class Tools:
    """`wall` tells wall-clock seconds, for the index alone."""

    layout: Layout
    slots: int
    segments: Segments
    places: Places
    ledger: Ledger
    appender: Appender
    space: Space
    catalogue: DiskCatalogue
    health: Health
    counts: Counts
    ids: Ids
    wall: Callable[[], float]
    point: Point
