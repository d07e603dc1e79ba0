"""Copies between tiers, down and up: how one begins, and what happens at its end.

While a copy is under way, what it fills is ARRIVING and what it reads is LEAVING (`stepwell.cache.life`), and leased.
"""

from __future__ import annotations

from stepwell.cache.account import CopyInFlight
from stepwell.cache.directory import Directory
from stepwell.cache.disk.archive import names_of
from stepwell.cache.disk.names import Trail
from stepwell.cache.life import Pending
from stepwell.cache.moves import DEVICE, Extent, Move, Report, Tier
from stepwell.cache.tree import Item


def begin_copy(directory: Directory, item: Item, source: Tier, target: Tier, trail: Trail | None = None) -> Move:
    """Begin a copy between tiers: locks the source and takes slots of the target, which has room. `trail` names records on disk. The caller
    carries out the move, and calls `copy_landed` with its report."""
    slots = item.at[source]
    assert slots is not None and item.at[target] is None, f"{item!r} cannot go from {source.name} to {target.name}"
    pending = directory.depart(item, source, target)
    directory.in_flight[pending.ticket] = CopyInFlight(directory.lease(item, source), [item])
    names = names_of(item, trail) if trail is not None else ()
    return Move(pending.ticket, item.what, Extent(source, slots), Extent(target, pending.slots), item.node.end, names)


def copy_landed(directory: Directory, report: Report) -> bool:
    """End a copy between tiers: the target becomes readable, or its slots free. Returns False for an unknown ticket."""
    flight = directory.in_flight.pop(report.ticket, None) or directory.overdue.pop(report.ticket, None)
    if flight is None:
        return False
    # from the top down: KV on the device needs the KV above it
    for item in sorted(flight.items, key=lambda part: part.node.start):
        pending = item.pending
        assert pending is not None and pending.ticket == report.ticket
        if pending.tier == DEVICE:
            _risen(directory, item, pending, report.ok)
        else:
            directory.arrive(item, report.ok and item.has(pending.source))  # a copy of condemned bytes is no good
    directory.release(flight.lease)
    if directory.external is not None:
        directory.external.landed(report)
    return True


def _risen(directory: Directory, item: Item, pending: Pending, ok: bool) -> None:
    """End a copy to the device. It is dropped if the KV above is not on the device, or if another copy came first.

    If the copy failed, its source is condemned.
    """
    above = item.node.parent
    gap = item.what == "kv" and above is not None and above.parent is not None and above.kv.at[DEVICE] is None
    directory.arrive(item, ok and not gap and item.has(pending.source) and item.at[DEVICE] is None)
    if not ok:
        directory.condemn(item, pending.source)
    directory.requeue(item)  # while it was copied, it was no candidate in any tier
