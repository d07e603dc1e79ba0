"""Writes to disk: what is worth a write, and in which order, so that everything on disk can be resumed from the disk alone.

The unit is a rung with everything that it depends on: its image, the KV of its node, and the KV of every node above that is not on disk
yet, topmost first. Writes begin when the tier above is nearly full of dirty copies, when a copy into it waits for room
(`stepwell.cache.evict.make_room`), and while the engine is idle. Nothing is written twice, and only what is faster to read back than to
compute again.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.cache.config import Costs
from stepwell.cache.copies import begin_copy
from stepwell.cache.directory import Directory
from stepwell.cache.disk.archive import path_tokens
from stepwell.cache.disk.learn import learn_from_disk
from stepwell.cache.evict.ranking import attached
from stepwell.cache.life import REFUSED
from stepwell.cache.moves import DEVICE, DISK, HOST, Tier
from stepwell.cache.tree import BRANCH, INTERVAL, Item, Node

AT_ONCE = 256
"""Most items that one call of `persist_idle` looks at: a request that arrives meanwhile must wait for it."""
TOKENS_AT_ONCE = 1 << 20
"""Most tokens of their prompts, which may have to be hashed: a few milliseconds."""


def persist_ahead(directory: Directory, costs: Costs, now: float, lacking: int = 0) -> None:
    """Begin writes that restore the configured clean share of the tier above the disk, and that make `lacking` more slots of it clean. The
    moves go to the archive's outbox."""
    if DISK not in directory.pools:
        return
    upper = above(directory)
    use = directory.use(upper)
    short = int(use.total * directory.config.clean_share) - use.free - use.clean
    wanted = max(short, lacking) - directory.coming(upper)
    ranking = directory.candidates.dirty[upper]
    later: list[Item] = []
    while wanted > 0 and not directory.archive.lookups.put_off and _may_begin(directory, now):
        item = ranking.pop()
        if item is None:
            break
        wanted -= item.size(upper)
        if not _write(directory, item, costs, now):
            later.append(item)
    for item in later:
        directory.requeue(item)


def persist_idle(directory: Directory, costs: Costs, now: float) -> bool:
    """Begin to write items that are not on disk, the most recently used first; looks at `AT_ONCE` items and `TOKENS_AT_ONCE` tokens of
    prompts at most. Returns False if nothing is left to be written."""
    if DISK not in directory.pools or not directory.config.write_idle:
        return False
    candidates, lookups = directory.candidates, directory.archive.lookups
    candidates.settle()
    later: list[Item] = []
    looked = tokens = 0
    while looked < AT_ONCE and tokens < TOKENS_AT_ONCE and not lookups.put_off and _may_begin(directory, now):
        item = candidates.backlog.pop()
        if item is None:
            break
        looked, tokens = looked + 1, tokens + item.node.end
        _write(directory, item, costs, now)
        if candidates.unsaved(item):  # a part of it is being copied elsewhere
            later.append(item)
    more = bool(directory.in_flight) or lookups.put_off or not candidates.backlog.empty
    for item in later:
        candidates.backlog.add(item, directory.items)
    return more


def _settled(item: Item) -> bool:
    """True if the disk has `item`, is getting it, or will not get it."""
    return item.has(DISK) or item.life[DISK] == REFUSED or _coming(item)


def _coming(item: Item) -> bool:
    return item.pending is not None and item.pending.tier == DISK


def above(directory: Directory) -> Tier:
    """The tier above the disk."""
    return HOST if HOST in directory.pools else DEVICE


def _may_begin(directory: Directory, now: float) -> bool:
    """True if another write may begin: the budget allows it, and writes under way do not hold too much of a tier."""
    image = directory.config.geometry.image_pages
    read = _being_read(directory)
    held = any(read[tier] >= max(image, directory.pools[tier].total // 8) for tier in read)
    return not held and directory.archive.budget.allows(now)


def _being_read(directory: Directory) -> dict[Tier, int]:
    """Pages by tier that writes under way read."""
    return {tier: directory.moving.get((tier, DISK), 0) for tier in directory.pools}


@dataclass(frozen=True, slots=True)
class _Batch:
    """Items to be written, topmost first, and their pages."""

    items: tuple[Item, ...]
    pages: int


def _write(directory: Directory, item: Item, costs: Costs, now: float) -> bool:
    """Begin to write `item` with everything that it depends on, or decide that it is not written. False: not possible now."""
    archive = directory.archive
    if not archive.catalogue.pages:
        return _write_unknown(directory, item, costs, now)
    if _settled(item) or _batch(item) is None:  # not worth a lookup
        return _settled(item)
    if not archive.hold():
        archive.lookups.put_off_write()
        return False
    try:
        return _remembers(directory, item.node, now) and _write_unknown(directory, item, costs, now)
    finally:
        archive.catalogue.let_go()


def _write_unknown(directory: Directory, item: Item, costs: Costs, now: float) -> bool:
    """The same, if no earlier process has left more of the path than the tree knows."""
    if not attached(item) or _settled(item):
        return True
    batch = _batch(item)
    if batch is None:
        return False
    if not (_worth(directory, item, batch, costs) and _room_on_disk(directory, item.node, batch)):
        if attached(item):
            directory.refuse(item, DISK)
        return True
    if not attached(item) or _settled(item) or (batch := _batch(item)) is None:
        return True  # dropping let its node join another, which is a candidate of its own
    trail = directory.archive.trail(item.node)  # one for all, or each would hash the path from the root again
    for part in batch.items:
        source = HOST if part.has(HOST) else DEVICE
        directory.archive.outbox.append(begin_copy(directory, part, source, DISK, trail))
    directory.archive.budget.spend(batch.pages, now)
    return True


def _remembers(directory: Directory, node: Node, now: float) -> bool:
    """Look up what an earlier process wrote of the path to `node`, which need not be written again. False if there may be more of it than
    can be looked up in this turn: the write is put off."""
    lookups = directory.archive.lookups
    most = max(0, lookups.left)
    root, tokens = path_tokens(node)
    found = learn_from_disk(directory, root.salt, tokens, now, most) if most else 0
    lookups.left -= max(1, found)  # a question takes time, though nothing is found
    if found < most:
        return True
    lookups.put_off_write()
    return False


def _batch(item: Item) -> _Batch | None:
    """What must be written for `item`. None while a part of it is being copied elsewhere, or is condemned on disk and still read."""
    node = item.node
    wanted = [above.kv for above in node.up() if above.parent is not None][::-1]
    if node.rung is not None and node.rung.image.best() is not None:
        wanted.append(node.rung.image)
    missing = [part for part in wanted if not part.has(DISK) and not _coming(part)]
    if any(part.pending is not None or part.at[DISK] is not None for part in missing):
        return None
    pages = sum(part.size(best) for part in missing if (best := part.best()) is not None)
    return _Batch(tuple(missing), pages)


def _worth(directory: Directory, item: Item, batch: _Batch, costs: Costs) -> bool:
    """True if reading `batch` back is faster than computing its tokens again from the last rung above that the disk has."""
    node = item.node
    if any(part.best() is None for part in batch.items):
        return False  # below a gap: no request can resume there
    if node.rung is None or node.rung.image.best() is None:
        return item.below[DISK] > 0  # needed for what the disk has below it
    if node.rung.superseded and node.rung.kind not in (BRANCH, INTERVAL):
        return False
    above = (n for n in node.up() if n is not node and n.rung is not None)
    anchor = next((n.end for n in above if n.rung and (n.rung.image.has(DISK) or _coming(n.rung.image))), 0)
    size = batch.pages * directory.config.geometry.page_bytes
    return costs.prefill_seconds(anchor, node.end) > size / costs.bytes_per_s[DISK]


def _room_on_disk(directory: Directory, node: Node, batch: _Batch) -> bool:
    """Free disk slots for `batch`: first dormant records, then items of less value than the rung at `node` and than each part of the
    batch. Nothing else is dropped, or two runs that do not fit together would be written in turn for ever. True if there is room."""
    pool, catalogue, pages = directory.pools[DISK], directory.archive.catalogue, batch.pages
    last = node.rung.image if node.rung is not None else node.kv
    ranking = directory.candidates.drops[DISK]
    # what it depends on must not make room for it
    holds = [directory.lease(held, DISK) for held in (node.kv, last)]
    fits = pages + directory.leased[DISK] <= pool.total  # if not, nothing is dropped for it
    while (lack := pages + catalogue.pages - pool.free) > 0 and fits:
        if catalogue.pages and catalogue.trim_dormant(lack):
            continue
        victim = ranking.pop()
        if victim is None:
            break
        if any(ranking.outlasts(victim, part) for part in (last, *batch.items)):
            directory.requeue(victim)
            break
        directory.drop(victim, DISK)
    for hold in holds:
        directory.release(hold)
    return lack <= 0
