"""Copies between tiers, down or up: how one begins, and what follows from its end.

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
    """Begin a copy between tiers: lock the source, take the target, name the copy by `trail`. The target has room."""
    slots = item.at[source]
    assert slots is not None and item.at[target] is None, f"{item!r} cannot go from {source.name} to {target.name}"
    pending = directory.depart(item, source, target)
    directory.in_flight[pending.ticket] = CopyInFlight(directory.lease(item, source), [item])
    names = names_of(item, trail) if trail is not None else ()
    return Move(pending.ticket, item.what, Extent(source, slots), Extent(target, pending.slots), item.node.end, names)


def copy_landed(directory: Directory, report: Report) -> bool:
    """End a copy between tiers: its bytes become findable, or their slots free. False for a ticket that is not one of ours."""
    flight = directory.in_flight.pop(report.ticket, None) or directory.overdue.pop(report.ticket, None)
    if flight is None:
        return False
    # from the top down: what comes to the device stands on what is above
    for item in sorted(flight.items, key=lambda part: part.node.start):
        pending = item.pending
        assert pending is not None and pending.ticket == report.ticket
        if pending.tier == DEVICE:
            _risen(directory, item, pending, report.ok)
        else:
            directory.arrive(item, report.ok and item.has(pending.source))  # of what is condemned, so is the copy
    directory.release(flight.lease)
    if directory.external is not None:
        directory.external.landed(report)
    return True


def _risen(directory: Directory, item: Item, pending: Pending, ok: bool) -> None:
    """End a copy to the device. It counts only if the KV above is on the device and no other copy came first.

    If the copy failed, its source is condemned.
    """
    above = item.node.parent
    gap = item.what == "kv" and above is not None and above.parent is not None and above.kv.at[DEVICE] is None
    directory.arrive(item, ok and not gap and item.has(pending.source) and item.at[DEVICE] is None)
    if not ok:
        directory.condemn(item, pending.source)
    directory.requeue(item)  # what is copied is no candidate, wherever else it is
