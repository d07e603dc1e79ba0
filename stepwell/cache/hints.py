"""What callers say of the future: a pinned prompt is dropped last, a prefetched one is on the device before it is asked for.

A pin's bounds and what it does to the order are in `stepwell.cache.evict.pins`. A prefetch needs no request, no live slot and no fallback:

    0 ══ resident: leased until all has landed ══ K ── copies, node by node ── rung ⟂ image
                                                  every copy is a ticket; what comes is published as it lands

It takes pages that are free or clean, never one that is promised or the only copy of anything. A copy has been made in vain if by the time
it lands another one is there, or the KV above it has gone.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stepwell.base.geometry import Ints
from stepwell.cache.account import Lease
from stepwell.cache.copies import begin_copy
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import free_pages
from stepwell.cache.evict.pins import Label, Pin
from stepwell.cache.life import FREE
from stepwell.cache.moves import DEVICE, NATIVE, Move, Tier
from stepwell.cache.tree import Item, Node


class Status(StrEnum):
    """How far a prefetch got. PARTIAL: a deeper rung was known, but had no room or failed to load."""

    LOADED = "loaded"
    RESIDENT = "resident"
    PARTIAL = "partial"
    NO_ROOM = "no_room"
    UNKNOWN = "unknown"
    BUSY = "busy"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Fetch:
    """A prefetch that has begun. The caller carries out `moves`, and releases `hold` once none of their tickets is in flight.

    tokens   where the device alone can resume the prompt once all has landed; `tip` is the node that ends there
    loads    tokens of KV being loaded, by tier
    lack     pages that must become free or clean before the deepest rung has room; 0 if more would not help
    """

    status: Status
    tokens: int = 0
    tip: Node | None = None
    loads: tuple[tuple[Tier, int], ...] = ()
    moves: tuple[Move, ...] = ()
    hold: Lease | None = None
    lack: int = 0


def fetch(directory: Directory, path: list[Node], now: float, partly: bool = True) -> Fetch:
    """Begin to load what the deepest rung of `path` needs, or (`partly`) the deepest that fits. `path` begins at the top of its tree.

    Loaded items count as used now, so that they are not dropped next. O(path) for each rung tried.
    """
    targets = _targets(directory, path)
    if not targets:
        return Fetch(Status.UNKNOWN)
    lack = 0
    for count in reversed(targets if partly else targets[-1:]):
        part = path[:count]
        missing = _missing(part)
        deepest = count == targets[-1]
        if not missing:
            _touch(part, now)
            return Fetch(Status.RESIDENT if deepest else Status.PARTIAL, part[-1].end, part[-1])
        if any(item.pending is not None for item in missing):
            return Fetch(Status.BUSY)
        room, instant = _room(directory, part)
        need = _need(missing)
        if need <= min(room, instant):
            return _begin(directory, part, missing, Status.LOADED if deepest else Status.PARTIAL, now)
        lack = need - instant if deepest and need <= room else lack
    return Fetch(Status.NO_ROOM, lack=lack)


def resident(tip: Node) -> int:
    """Position of the deepest rung on the path to `tip` that the device alone can resume; 0 if there is none. O(path)."""
    whole = 0
    for node in reversed(list(tip.up())):
        if node.parent is None:
            continue
        if not node.kv.has(DEVICE):
            break
        if node.rung is not None and node.rung.image.has(DEVICE):
            whole = node.end
    return whole


def _targets(directory: Directory, path: list[Node]) -> list[int]:
    """For each rung that can be loaded, the number of nodes of `path` down to it. A store of whole chunks cannot load single blocks."""
    found: list[int] = []
    for count, node in enumerate(path, 1):
        best = node.kv.best()
        if best is None or (directory.config.whole_chunks and best != DEVICE):
            break
        if node.rung is not None and node.rung.image.best() is not None:
            found.append(count)
    return found


def _missing(part: list[Node]) -> list[Item]:
    """Items of `part` that are not on the device: KV from the top down, then the image."""
    rung = part[-1].rung
    items = [node.kv for node in part] + ([rung.image] if rung is not None else [])
    return [item for item in items if item.at[DEVICE] is None]


def _need(missing: list[Item]) -> int:
    return sum(max(map(item.size, NATIVE)) for item in missing)


def _footing(part: list[Node]) -> list[Node]:
    """The resident nodes at the top of `part`."""
    gap = next((i for i, node in enumerate(part) if node.kv.at[DEVICE] is None), len(part))
    return part[:gap]


def _image_here(part: list[Node]) -> list[Item]:
    """The image at the end of `part`, if it is on the device."""
    rung = part[-1].rung
    return [] if rung is None or rung.image.at[DEVICE] is None else [rung.image]


def _room(directory: Directory, part: list[Node]) -> tuple[int, int]:
    """Pages available in all, and at once without dropping only copies, if what `part` has on the device stays and promises are kept."""
    room = directory.room()
    needed = [*(node.kv for node in _footing(part)), *_image_here(part)]
    idle = [item for item in needed if not item.locks[DEVICE]]
    held = sum(item.size(DEVICE) for item in idle)
    clean = sum(item.size(DEVICE) for item in idle if item.standing is FREE)
    return room.free + room.idle - held - room.reserved, room.instant - clean - room.reserved


def _begin(directory: Directory, part: list[Node], missing: list[Item], status: Status, now: float) -> Fetch:
    footing = _footing(part)
    _touch(part, now)
    root = next(node for node in part[0].up() if node.parent is None)
    hold = directory.lease(footing[-1].kv if footing else root.kv, DEVICE)
    tip = part[-1]
    images = [directory.lease(image, DEVICE) for image in _image_here(part)]
    secured = free_pages(directory, _need(missing))
    for image in images:
        directory.release(image)
    if not secured:  # the clean pages lie above what is held
        directory.release(hold)
        return Fetch(Status.NO_ROOM)
    if tip.parent is None or any(item.node.parent is None for item in missing):  # dropping others has joined nodes
        directory.release(hold)
        return Fetch(Status.BUSY)
    loads: dict[Tier, int] = {}
    moves: list[Move] = []
    for item in missing:
        source = item.best()
        assert source is not None, f"{item!r} was found to be there"
        if item.what == "kv":
            loads[source] = loads.get(source, 0) + (item.node.end - item.node.start)
        moves.append(begin_copy(directory, item, source, DEVICE))
    return Fetch(status, tip.end, tip, tuple(sorted(loads.items())), tuple(moves), hold)


def _touch(part: list[Node], now: float) -> None:
    for node in part:
        node.used = now
    rung = part[-1].rung
    if rung is not None:
        rung.used = now


# ---- pins ----


def pin(directory: Directory, label: Label, tokens: Ints, until: float) -> int:
    """Pin the longest prefix of `tokens` that can be resumed, in whichever tiers it is. Returns its tokens.

    A pin of the same label ends first. Less is pinned where the bounds leave no room for all of it; 0 if nothing is cached or nothing
    fits. O(path).
    """
    unpin(directory, label)
    found = directory.survey(label[0], tokens)
    image = _deepest(directory, [node for node in found.path if node.end <= found.matched])
    if image is None:
        return 0
    begun = Pin(label, image.node, image, until)
    directory.pins.begin(begun)
    for item in begun.items():
        directory.reconsider(item)
    return image.node.end


def unpin(directory: Directory, label: Label) -> int:
    """End the pin of this label. Returns the tokens that it held; 0 if there is none."""
    known = directory.pins.known.get(label)
    if known is None:
        return 0
    _end(directory, known)
    return known.tip.end


def expire(directory: Directory, now: float) -> None:
    """End the pins whose time is over. O(1) where there is none."""
    while (over := directory.pins.ended(now)) is not None:
        _end(directory, over)


def _deepest(directory: Directory, path: list[Node]) -> Item | None:
    """The image of the deepest rung on `path` (from the top down) that can be resumed and fits with all KV above it."""
    if not path:
        return None
    pins, deepest = directory.pins, None
    left = pins.room(path[0].kv.tenant)
    for node in path:
        left -= 0 if node.kv.pins else pins.size(node.kv)
        if left < 0 or node.kv.best() is None:
            break
        if node.rung is not None and node.rung.image.best() is not None:
            image = node.rung.image
            if image.pins or left >= pins.size(image):
                deepest = image
    return deepest


def _end(directory: Directory, pin: Pin) -> None:
    for item in directory.pins.end(pin):
        directory.requeue(item)
