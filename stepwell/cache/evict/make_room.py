"""Room on the device: drop what is safe to drop, and copy down the rest, when a request needs pages and ahead of need.

The least valuable share of each tier is kept clean (free, or copied below already), so that taking a page does not wait for a copy.
If that is not enough, room is made from the lowest tier up:

    device ──copy──▶ host ──write──▶ disk        a copy that finds no room in host waits for the writes that make some

A copy down has a `Price`: what may be dropped in host to make room for it. Ahead of need, no only copy is dropped if there is a disk;
without one, host drops the least valuable end of its KV for an image whose loss would leave a wide gap. A request that needs pages
waits as long as copies under way will free them. Only copies are dropped if none is under way and none can begin: the disk is full of
more valuable items, its write budget is spent, it fails, or it does not answer (`Directory.overdue`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from stepwell.cache.config import Costs
from stepwell.cache.copies import begin_copy
from stepwell.cache.directory import Directory
from stepwell.cache.disk.persist import above, persist_ahead
from stepwell.cache.evict.policy import worthless
from stepwell.cache.evict.ranking import exposed
from stepwell.cache.life import CONDEMNED
from stepwell.cache.moves import DEVICE, HOST, Move, Tier
from stepwell.cache.tree import Item


def free_pages(directory: Directory, pages: int, force: bool = False) -> bool:
    """Drop clean candidates until `pages` device pages are free; with `force`, dirty ones too. Returns whether so many are free.

    With `force` it succeeds whenever `free + idle ≥ pages`. O(log n) for each item dropped.
    """
    pool = directory.pools[DEVICE]
    while pool.free < pages:
        item = directory.candidates.drops[DEVICE].pop()
        if item is None and force:
            item = dirty_leaf(directory, DEVICE)
        if item is None:
            return False
        directory.drop(item, DEVICE)
    return True


def dirty_leaf(directory: Directory, tier: Tier) -> Item | None:
    """Take out the least valuable dirty candidate without deeper KV in `tier`. None if there is none. One that leaves a wide gap is taken
    only if there is no other. All others stay candidates."""
    ranking = directory.candidates.dirty.get(tier)
    if ranking is None:
        return None
    passed: list[Item] = []
    item = ranking.pop()
    while item is not None and (not exposed(item, tier) or directory.candidates.leaves_gap(item)):
        passed.append(item)
        item = ranking.pop()
    if item is None:
        item = next((other for other in passed if exposed(other, tier)), None)
    for other in passed:
        if other is not item:
            directory.requeue(other)
    return item


class Price(IntEnum):
    """What may be dropped in host to make room for a copy from the device.

    NOTHING    the copy takes free slots only, and leaves host its clean share
    SAFE       host copies that are safe to drop
    ANY        only copies too, the least valuable first: a request waits, and waiting longer would not help
    """

    NOTHING = 0
    SAFE = 1
    ANY = 2


@dataclass(frozen=True, slots=True)
class Demotion:
    """Copies to host that have begun (`moves`, for the caller to carry out).

    lacking  host slots that must be written to disk, and dropped, before the next copy has room; 0 if none is lacking
    refused  device pages that were found not to be worth a copy, and can be dropped now"""

    moves: list[Move]
    lacking: int = 0
    refused: int = 0


def demote(directory: Directory, pages: int) -> list[Move]:
    """Begin to copy the least valuable dirty candidates to host until `pages` device pages are under way in all, as far as host has room
    without dropping an only copy. Returns the moves."""
    return demotion(directory, pages).moves


def demotion(directory: Directory, pages: int, price: Price = Price.SAFE) -> Demotion:
    """As `demote`, at a given price; also returns how many slots host lacks."""
    moves: list[Move] = []
    lacking = 0
    if HOST not in directory.pools:
        return Demotion(moves)
    pages -= directory.coming(DEVICE)  # copies under way free these
    ranking, host = directory.candidates.dirty[DEVICE], directory.pools[HOST]
    later: list[Item] = []
    refused = 0
    while pages > 0:
        item = ranking.pop()
        if item is None:
            break
        size = item.size(DEVICE)
        if item.life[HOST] == CONDEMNED or item.pending is not None:  # a condemned copy is still being read
            later.append(item)
        elif worthless(item) or size > host.most:
            directory.refuse(item, HOST)
            pages -= size
            refused += size
        elif size > host.total:  # host is still growing: dropping all of it would not make room yet
            later.append(item)
        elif not _room_in_host(directory, item, price):
            later.append(item)
            lacking = max(pages, item.size(DEVICE)) - host.free
            break
        elif ranking.live(item):
            pages -= item.size(DEVICE)
            moves.append(begin_copy(directory, item, DEVICE, HOST))
        # else dropping in host let its node join another, which is a candidate of its own
    for item in later:
        directory.requeue(item)
    return Demotion(moves, lacking, refused)


def _room_in_host(directory: Directory, item: Item, price: Price) -> bool:
    """Free host slots for a copy of `item`, which may grow meanwhile as nodes join. Drops copies that the device also holds, then
    whatever `price` allows. Returns whether there is room.

    An image whose loss would leave a wide gap is not dropped for it: the answer is False, and the least valuable end of KV on the device
    is dropped instead, if it was used before `item`. Without need, pinned items get no copy in host: with one below, they would be
    dropped from the device before less valuable items that have none.
    """
    pool, candidates = directory.pools[HOST], directory.candidates
    if price == Price.NOTHING:
        return not item.goes_last(DEVICE) and _spare(directory) >= item.size(DEVICE)
    while pool.free < item.size(DEVICE):
        victim = candidates.twice.pop() or candidates.drops[HOST].pop()
        if victim is None and price == Price.ANY:
            victim = dirty_leaf(directory, HOST)
        if victim is None:
            return False
        if candidates.lower[HOST] is None and candidates.leaves_gap(victim):
            directory.requeue(victim)
            _lose_end(directory, item.node.used)
            return False
        directory.drop(victim, HOST)
    return True


def _spare(directory: Directory) -> int:
    """Number of free host slots beyond what the clean share of host needs."""
    use = directory.use(HOST)
    return min(use.free, use.free + use.clean - int(use.total * directory.config.clean_share))


def _lose_end(directory: Directory, used: float) -> None:
    """Drop the least valuable dirty copy of the device, if its last use was before `used` and its loss leaves no wide gap."""
    end = dirty_leaf(directory, DEVICE)
    if end is None:
        return
    if end.node.used < used and not directory.candidates.leaves_gap(end):
        directory.drop(end, DEVICE)
    else:
        directory.requeue(end)


IDLE_PARTS = 8
"""While the link is free, at most one in so many device pages is being copied down at a time,"""
IDLE_SECONDS = 0.05
"""and at most what takes so many seconds: a request that arrives and needs these pages must wait for the copies under way."""


@dataclass(frozen=True, slots=True)
class Making:
    """Copies that have begun, for the caller to carry out; `coming` is True if copies under way will free device pages."""

    moves: list[Move]
    coming: bool


def make_room(directory: Directory, pages: int, costs: Costs, now: float) -> Making:
    """Begin copies that free `pages` device pages without dropping an only copy. The caller tries again when a copy has ended.

    If `coming` is False, pages can be had only by dropping only copies: the caller goes without, or calls `free_pages` with `force`.
    """
    done = _below_first(directory, pages, costs, now)
    moves, lacking = done.moves, done.lacking
    if lacking:  # what is not worth a write may be dropped now
        again = demotion(directory, pages)
        moves, lacking = moves + again.moves, again.lacking
    put_off = directory.archive.lookups.put_off  # a write put off to the next turn counts as under way
    if lacking and not (put_off or directory.coming(DEVICE) or directory.coming(HOST)):
        moves += demotion(directory, pages, Price.ANY).moves
        lacking = 0
    waits_below = lacking > 0 or above(directory) == DEVICE
    return Making(moves, directory.coming(DEVICE) > 0 or (waits_below and (put_off or directory.coming(HOST) > 0)))


def copy_ahead(directory: Directory, costs: Costs, now: float) -> list[Move]:
    """Begin copies that restore the configured clean share of every tier before a request needs it. Returns the moves.

    After idle copies far more than that share is clean, and would be dropped before less valuable dirty items. These are then copied
    down, one at a time, until the least valuable item on the device is clean.
    """
    use = directory.use(DEVICE)
    share = int(use.total * directory.config.clean_share)
    wanted = share - use.free - use.clean
    if use.free < share < use.clean // 2 and directory.candidates.overtaken():
        wanted = 1
    return _below_first(directory, wanted, costs, now).moves


def copy_idle(directory: Directory, costs: Costs) -> Demotion:
    """Copies into free slots of host while the engine is idle, the least valuable of the device first. They are a part of what
    there is to copy: to be called again as they land, until nothing is under way and nothing was refused.

    Host loses nothing for them, and holds nothing twice for long: the device makes room by dropping what is below it as well, which
    leaves the copy in host the only one, before it copies anything else down.
    """
    if not directory.config.copy_idle:
        return Demotion([])
    page_bytes = directory.config.geometry.page_bytes
    seconds = int(IDLE_SECONDS * costs.bytes_per_s[HOST] / page_bytes)
    most = max(1, min(directory.config.device_pages // IDLE_PARTS, seconds))
    return demotion(directory, most, Price.NOTHING)


def _below_first(directory: Directory, pages: int, costs: Costs, now: float) -> Demotion:
    """Begin copies to host, and the writes that make room for more of them."""
    done = demotion(directory, pages)
    above_disk = above(directory)
    persist_ahead(directory, costs, now, pages if above_disk == DEVICE else done.lacking)
    return done
