"""Room on the device: asked for by who waits for it, and ahead of need.

The least valuable share of each tier is kept clean (free, or copied below already), so that taking a page does not wait for a copy.
Where that is not enough, room is made from the lowest tier up:

    device ──copy──▶ host ──write──▶ disk        a copy that finds no room in host waits for the writes that make some

Ahead of need nobody waits, so with a disk nothing is lost for it; without one, host lets the least valuable end of its KV go for an image
that leaves a wide gap. A request that needs pages waits too, as long as copies are under way that will free them. Only copies are lost
where none is and none can begin: the disk is full of better things, its budget is spent, it fails, or it does not answer
(`Directory.overdue`).
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.cache.config import Costs
from stepwell.cache.directory import Directory
from stepwell.cache.moves import DEVICE, HOST, Move
from stepwell.cache.persist import above, persist_ahead
from stepwell.cache.shed import Demotion, Price, demotion

IDLE_PARTS = 8
"""Parts of the device, one of which at most is being copied down while nothing else is to be done,"""
IDLE_SECONDS = 0.05
"""and seconds that this may take: a request that comes meanwhile and needs these pages has to wait for the copies under way."""


@dataclass(frozen=True, slots=True)
class Making:
    """Copies that have begun, to be carried out, and whether anything is under way that frees device pages: worth waiting for."""

    moves: list[Move]
    coming: bool


def make_room(directory: Directory, pages: int, costs: Costs, now: float) -> Making:
    """Begin what lets `pages` device pages be taken without a loss, for a caller who tries again when it is told of a copy's end.

    If nothing is coming, no page can be had without losing an only copy: the caller does without, or takes them by force.
    """
    done = _below_first(directory, pages, costs, now)
    moves, lacking = done.moves, done.lacking
    if lacking:  # what was found not to be worth a write may be dropped now
        again = demotion(directory, pages)
        moves, lacking = moves + again.moves, again.lacking
    put_off = directory.archive.lookups.put_off  # a write that goes on with the next turn is one under way
    if lacking and not (put_off or directory.coming(DEVICE) or directory.coming(HOST)):
        moves += demotion(directory, pages, Price.ANY).moves
        lacking = 0
    waits_below = lacking > 0 or above(directory) == DEVICE
    return Making(moves, directory.coming(DEVICE) > 0 or (waits_below and (put_off or directory.coming(HOST) > 0)))


def copy_ahead(directory: Directory, costs: Costs, now: float) -> list[Move]:
    """Copies that bring the clean shares of all tiers back to where the configuration wants them; nobody waits for them.

    After idle copies far more is clean, and it would go before things of less value that only the device has. Then these are copied, one
    at a time, until the least valuable thing on the device is clean.
    """
    use = directory.use(DEVICE)
    share = int(use.total * directory.config.clean_share)
    wanted = share - use.free - use.clean
    if use.free < share < use.clean // 2 and directory.offers.overtaken():
        wanted = 1
    return _below_first(directory, wanted, costs, now).moves


def copy_idle(directory: Directory, costs: Costs) -> Demotion:
    """Copies into free slots of host while nothing else is to be done, the least valuable of the device first. They are a part of what
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
