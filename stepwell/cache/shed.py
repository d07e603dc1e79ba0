"""Dropping what is safe to drop, and copying down what is not.

A copy down has a `Price`: what may go in the tier below to make room for it. Who asks for room, when, and what it may cost, is in
`stepwell.cache.room`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stepwell.cache.archive import names_of
from stepwell.cache.directory import Directory
from stepwell.cache.leases import Flight
from stepwell.cache.life import CONDEMNED, Pending
from stepwell.cache.moves import DEVICE, HOST, Extent, Move, Report, Tier
from stepwell.cache.names import Trail
from stepwell.cache.policy import worthless
from stepwell.cache.ranking import exposed
from stepwell.cache.tree import Item


def secure(directory: Directory, pages: int, force: bool = False) -> bool:
    """Free device pages until `pages` are, dropping clean candidates; with `force`, dirty ones too.

    Succeeds with `force` whenever `free + idle ≥ pages`.
    """
    pool = directory.pools[DEVICE]
    while pool.free < pages:
        item = directory.offers.drops[DEVICE].pop()
        if item is None and force:
            item = dirty_leaf(directory, DEVICE)
        if item is None:
            return False
        directory.drop(item, DEVICE)
    return True


def dirty_leaf(directory: Directory, tier: Tier) -> Item | None:
    """The least valuable dirty candidate that no deeper KV of the tier hangs on, one that leaves a wide gap only where there is no
    other; the rest stays on offer."""
    ranking = directory.offers.dirty.get(tier)
    if ranking is None:
        return None
    passed: list[Item] = []
    item = ranking.pop()
    while item is not None and (not exposed(item, tier) or directory.offers.leaves_gap(item)):
        passed.append(item)
        item = ranking.pop()
    if item is None:
        item = next((other for other in passed if exposed(other, tier)), None)
    for other in passed:
        if other is not item:
            directory.offer(other)
    return item


class Price(IntEnum):
    """What may go in host to make room for a copy from the device.

    NOTHING    the copy takes free slots alone, and leaves host its clean share
    SAFE       what can be dropped without losing what is meant to be kept
    ANY        only copies as well, the least valuable first: somebody waits, and waiting longer would change nothing
    """

    NOTHING = 0
    SAFE = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class Demotion:
    """Copies to host that have begun. Where host had no room for the next one, `lacking` slots of it must be written to disk first,
    so that they can be dropped; 0 if all that was asked for is under way or cannot be had. `refused` device pages of what was asked for
    were found to be worth no copy, and can be dropped as they are."""

    moves: list[Move]
    lacking: int = 0
    refused: int = 0


def demote(directory: Directory, pages: int) -> list[Move]:
    """Begin copying the least valuable dirty candidates to host until `pages` device pages are under way in all, as far as host has
    room for them without the loss of an only copy."""
    return demotion(directory, pages).moves


def demotion(directory: Directory, pages: int, price: Price = Price.SAFE) -> Demotion:
    """The same for any price, telling what host lacks."""
    moves: list[Move] = []
    lacking = 0
    if HOST not in directory.pools:
        return Demotion(moves)
    pages -= directory.coming(DEVICE)  # these are asked for already
    ranking, host = directory.offers.dirty[DEVICE], directory.pools[HOST]
    later: list[Item] = []
    refused = 0
    while pages > 0:
        item = ranking.pop()
        if item is None:
            break
        size = item.size(DEVICE)
        if item.life[HOST] == CONDEMNED or item.pending is not None:  # what is condemned is still being read
            later.append(item)
        elif worthless(item) or size > host.most:
            directory.refuse(item, HOST)
            pages -= size
            refused += size
        elif size > host.total:  # host is still growing: dropping all that it has would make no room yet
            later.append(item)
        elif not _room_in_host(directory, item, price):
            later.append(item)
            lacking = max(pages, item.size(DEVICE)) - host.free
            break
        elif ranking.live(item):
            pages -= item.size(DEVICE)
            moves.append(begin(directory, item, DEVICE, HOST))
        # else what was dropped in host let its node join another, which is on offer now
    for item in later:
        directory.offer(item)
    return Demotion(moves, lacking, refused)


def _room_in_host(directory: Directory, item: Item, price: Price) -> bool:
    """Free host slots for a copy of `item`, which may grow meanwhile as nodes join: of copies that the device holds as well, then of what
    else may go at that price.

    An image whose loss would leave a wide gap is no price for that: the answer is False, and the least valuable end of KV on the device
    goes in its place, if it was used before `item`. What a keep guards takes no free slots while nobody needs its pages: with a copy
    below, it would leave the device before things of less value that have none.
    """
    pool, offers = directory.pools[HOST], directory.offers
    if price == Price.NOTHING:
        return not item.goes_last(DEVICE) and _spare(directory) >= item.size(DEVICE)
    while pool.free < item.size(DEVICE):
        victim = offers.twice.pop() or offers.drops[HOST].pop()
        if victim is None and price == Price.ANY:
            victim = dirty_leaf(directory, HOST)
        if victim is None:
            return False
        if offers.lower[HOST] is None and offers.leaves_gap(victim):
            directory.offer(victim)
            _lose_end(directory, item.node.used)
            return False
        directory.drop(victim, HOST)
    return True


def _spare(directory: Directory) -> int:
    """Free host slots beyond what the clean share of host needs."""
    use = directory.use(HOST)
    return min(use.free, use.free + use.clean - int(use.total * directory.config.clean_share))


def _lose_end(directory: Directory, used: float) -> None:
    """Drop the least valuable copy that only the device has, if its last use was before `used`."""
    end = dirty_leaf(directory, DEVICE)
    if end is None:
        return
    if end.node.used < used and not directory.offers.leaves_gap(end):
        directory.drop(end, DEVICE)
    else:
        directory.offer(end)


def begin(directory: Directory, item: Item, source: Tier, target: Tier, trail: Trail | None = None) -> Move:
    """Begin a copy between tiers: lock the source, take the target, name the copy by `trail`. The target has room."""
    slots = item.at[source]
    assert slots is not None and item.at[target] is None, f"{item!r} cannot go from {source.name} to {target.name}"
    pending = directory.depart(item, source, target)
    directory.in_flight[pending.ticket] = Flight(directory.lease(item, source), [item])
    names = names_of(item, trail) if trail is not None else ()
    return Move(pending.ticket, item.what, Extent(source, slots), Extent(target, pending.slots), item.node.end, names)


def landed(directory: Directory, report: Report) -> bool:
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
    """End a copy to the device; what it read is condemned if it failed. KV has to stand on KV, and whoever came first stays."""
    above = item.node.parent
    gap = item.what == "kv" and above is not None and above.parent is not None and above.kv.at[DEVICE] is None
    directory.arrive(item, ok and not gap and item.has(pending.source) and item.at[DEVICE] is None)
    if not ok:
        directory.condemn(item, pending.source)
    directory.offer(item)  # what is copied is no candidate, wherever else it is
