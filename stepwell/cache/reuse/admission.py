"""Commit and settle: a plan becomes leases, pages and moves; when the moves have ended, the request can run.

                 commit                    all legs reported
    Plan ───────────────────▶ Loading ───────────────────────▶ Runnable      every leg good: the aim
      └── nothing to load ──▶ Runnable      └── one failed ──▶ the next option of the chain, already leased

An aborted `Loading` keeps its target pages until its last ticket has been reported: a copy may still be writing them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from stepwell.base.errors import StalePlan
from stepwell.base.geometry import Ints
from stepwell.base.units import floor_to
from stepwell.cache.account import Lease
from stepwell.cache.directory import Directory
from stepwell.cache.evict.make_room import free_pages
from stepwell.cache.moves import DEVICE, DISK, EXTERNAL, HOST, Extent, LiveState, Move, Name, Report, Tier
from stepwell.cache.publish import publish, touch
from stepwell.cache.reuse.outcome import AdmissionOutcome, Loss, Reason
from stepwell.cache.reuse.plan import Option, Plan, Source, losses
from stepwell.cache.reuse.survey import Survey, gather
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import Node

COPY_PAGES = {HOST: 256, DISK: 32}
"""Pages in one copy of a leg: long enough for full speed, short enough that one bad copy condemns little. Copies from disk are
shorter, so that some are read while others go on to the device."""
COPY_CHUNKS = 4
"""Chunks in one copy from an external store."""

_LOSS = {
    Reason.NO_ROOM: Loss.NO_ROOM,
    Reason.PARTIAL_CHUNK_NO_ROOM: Loss.PARTIAL_CHUNK,
    Reason.COVERING_CHUNK_MISSING: Loss.PARTIAL_CHUNK,
    Reason.NOT_READ: Loss.NOT_READ,
    Reason.LOAD_FAILED_KV: Loss.FAILED_LEG,
    Reason.LOAD_FAILED_STATE: Loss.FAILED_LEG,
}


Tried: TypeAlias = tuple[tuple[Tier, str, bool], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Committed:
    """What `commit` took: `path` is the lease on the resident KV of all options, `images[i]` on the image of option i, `sources` on what
    legs read. `legs[i]` says where option i reads its leg. A hit in an external store is leased there."""

    request_id: str
    plan: Plan
    tokens: Ints
    slot: int
    path: Lease
    images: tuple[Lease | None, ...]
    sources: tuple[Lease, ...]
    legs: tuple[tuple[Extent, ...], ...]
    table: BlockTable

    @property
    def leases(self) -> list[Lease]:
        """All leases but the one on the shared path."""
        return [lease for lease in (*self.images, *self.sources) if lease is not None]


@dataclass(frozen=True, slots=True)
class Loading:
    """Option `index` is being loaded. The caller carries out `moves`; `waiting` are the tickets not yet reported.

    reason, skipped   why the boundary is not further, and the boundary that was passed over for it (0: none)
    tried             ended loads of earlier options, as in `AdmissionOutcome.legs`
    """

    held: Committed
    index: int
    moves: tuple[Move, ...]
    waiting: frozenset[int]
    failed: tuple[Move, ...]
    reason: Reason
    skipped: int
    tried: Tried = ()

    @property
    def option(self) -> Option:
        return self.held.plan.options[self.index]


@dataclass(frozen=True, slots=True)
class Runnable:
    """The request can run from `boundary`.

    shared        tokens whose pages must never be written
    image         lease on the device image that the live state is copied from first; None: the state is loaded, or starts at zero
    state_loaded  the live slot already holds the state at `boundary`
    option        which of the plan's options this is
    """

    boundary: int
    shared: int
    table: BlockTable
    path: Lease
    image: Lease | None
    state_loaded: bool
    outcome: AdmissionOutcome
    option: int


def commit(
    directory: Directory, plan: Plan, request_id: str, tokens: Ints, slot: int, now: float
) -> Runnable | Loading:
    """Take every lease and page of `plan` at once. Raises StalePlan, and changes nothing, if the directory has changed since the plan."""
    if plan.epoch != directory.epoch:
        raise StalePlan(plan.epoch, directory.epoch)
    aim, found, block = plan.aim, plan.survey, directory.tree.block
    legs = tuple(tuple(_extent(found, source, block) for source in option.leg) for option in plan.options)
    images = tuple(
        directory.lease(o.resume_point.rung.image, o.resume_point.tier) if o.resume_point is not None else None
        for o in plan.options
    )
    sources = tuple(directory.lease(node.kv, tier) for tier, node in _leaves(plan))
    path = _lease_path(directory, plan, now)
    table = BlockTable(directory.pages_of(path.item.node, aim.shared))
    directory.promise(table, plan.need)
    pages = (aim.leg_end - aim.shared) // block
    secured = free_pages(directory, pages, force=True)
    assert secured, f"{pages} pages planned, {directory.room()} found"
    directory.grow(table, pages)
    held = Committed(request_id, plan, tokens, slot, path, images, sources, legs, table)
    return _begin_loads(directory, held, 0, plan.reason, plan.skipped, now)


def _extent(found: Survey, source: Source, block: int) -> Extent:
    """Where the pages of `source` are."""
    if source.tier == EXTERNAL:
        return _count((source.end - source.start) // block)
    return Extent(source.tier, gather(found.path, source.tier, source.start, source.end, block))


def _count(pages: int) -> Extent:
    """An extent of so many pages of an external store; names say which they are."""
    return Extent(EXTERNAL, np.arange(pages, dtype=np.int32))


def _leaves(plan: Plan) -> list[tuple[Tier, Node]]:
    """For each native tier, the node at the end of the deepest leg that any option reads there."""
    ends: dict[Tier, int] = {}
    for option in plan.options:
        native = [source for source in option.leg if source.tier != EXTERNAL]
        for source in native:
            ends[source.tier] = max(ends.get(source.tier, 0), native[-1].end)
    return [(tier, next(n for n in plan.survey.path if n.end >= ends[tier])) for tier in sorted(ends)]


def _lease_path(directory: Directory, plan: Plan, now: float) -> Lease:
    """Lease the resident KV that any option shares, exactly up to its last block."""
    reach = max(option.shared for option in plan.options)
    root = directory.tree.root(plan.salt, now)
    if reach == 0:
        return directory.lease(root.kv, DEVICE)
    covering = next(n for n in reversed(plan.survey.path) if n.start < reach)
    return directory.lease(directory.node_at(covering, reach).kv, DEVICE)


def _begin_loads(
    directory: Directory, held: Committed, index: int, reason: Reason, skipped: int, now: float, tried: Tried = ()
) -> Runnable | Loading:
    """Begin the loads of option `index`. Without loads, the request can run at once."""
    option = held.plan.options[index]
    if not option.loads:
        return _ready(directory, held, index, reason, skipped, now, tried)
    moves: list[Move] = []
    block, external_hit = directory.tree.block, option.external_hit
    at = option.shared // block
    for source, extent in zip(option.leg, held.legs[index], strict=True):
        for first, last in _cuts(directory, source):
            part = Extent(source.tier, extent.slots[first:last])
            target = Extent(DEVICE, held.table.pages[at : at + len(part.slots)].copy())
            end = min(source.end, source.start + last * block)
            names: tuple[Name, ...] = ()
            if source.tier == EXTERNAL and external_hit is not None:
                start = floor_to(source.start + first * block, directory.config.external_chunk)
                names = tuple(external_hit.trail.records(start, end))
            moves.append(Move(directory.ticket(), "kv", part, target, end, names))
            at += len(part.slots)
    resume_point = option.resume_point
    if resume_point is not None and resume_point.tier != DEVICE:
        image = resume_point.rung.image.at[resume_point.tier]
        assert image is not None, "a leased image stays where it is"
        move = Move(
            directory.ticket(), "image", Extent(resume_point.tier, image), LiveState(held.slot), option.boundary
        )
        moves.append(move)
    if external_hit is not None:
        pages, name = _count(directory.config.geometry.image_pages), external_hit.trail.image(option.boundary)
        moves.append(Move(directory.ticket(), "image", pages, LiveState(held.slot), option.boundary, (name,)))
    return Loading(held, index, tuple(moves), frozenset(m.ticket for m in moves), (), reason, skipped, tried)


def _cuts(directory: Directory, source: Source) -> list[tuple[int, int]]:
    """First and last page, exclusive, of each copy of a leg. Those from an external store end on its grid of chunks."""
    block, chunk = directory.tree.block, directory.config.external_chunk
    pages, before = (source.end - source.start) // block, 0
    if source.tier == EXTERNAL:
        size, before = chunk // block * COPY_CHUNKS, source.start % chunk // block
    else:
        size = COPY_PAGES[source.tier]
    return [(max(0, at - before), min(pages, at - before + size)) for at in range(0, pages + before, size)]


def reported(loading: Loading, report: Report) -> Loading:
    """`loading` after `report`; unchanged if the ticket is not one of its own."""
    if report.ticket not in loading.waiting:
        return loading
    failed = loading.failed
    if not report.ok:
        failed = (*failed, *(m for m in loading.moves if m.ticket == report.ticket))
    return replace(loading, waiting=loading.waiting - {report.ticket}, failed=failed)


def settle(directory: Directory, loading: Loading, now: float) -> Runnable | Loading:
    """Publish what was loaded, or fall back to the next option. Call it once all tickets are reported. Needs no page and cannot fail."""
    assert not loading.waiting
    held, option = loading.held, loading.option
    _share_path(directory, held)
    tried = legs_of(loading)
    if not loading.failed:
        if directory.external is not None and option.external_hit is not None:
            for move in loading.moves:
                directory.external.saw(move.what, move.names, option.external_hit.number)
        return _ready(directory, held, loading.index, loading.reason, loading.skipped, now, tried)
    for move in loading.failed:
        _condemn_source(directory, held, option, move)
    reason = _failed_leg(loading.failed)
    skipped = max(loading.skipped, option.boundary)
    return _begin_loads(directory, held, loading.index + 1, reason, skipped, now, tried)


def legs_of(loading: Loading) -> Tried:
    """Legs of this load and of those before it, as in `AdmissionOutcome.legs`. A copy that was not reported counts as failed."""
    late = (move for move in loading.moves if move.ticket in loading.waiting)
    failed = {(move.source.tier, move.what) for move in (*loading.failed, *late)}
    legs = dict.fromkeys((move.source.tier, move.what) for move in loading.moves)
    return (*loading.tried, *((tier, what, (tier, what) not in failed) for tier, what in legs))


def give_up(directory: Directory, loading: Loading) -> Reason:
    """Stop waiting for reports. Condemns the sources of copies that failed or are not reported. Returns which leg failed.

    Everything but the reservation stays held until `abandon`, because a copy may still be writing.
    """
    lost = (*loading.failed, *(move for move in loading.moves if move.ticket in loading.waiting))
    for move in lost:
        _condemn_source(directory, loading.held, loading.option, move)
    directory.promise(loading.held.table, 0)
    return _failed_leg(lost)


def _failed_leg(failed: tuple[Move, ...]) -> Reason:
    return Reason.LOAD_FAILED_KV if any(move.what == "kv" for move in failed) else Reason.LOAD_FAILED_STATE


def _share_path(directory: Directory, held: Committed) -> None:
    """Replace private pages by resident ones where both hold the same (a chunk's part below the device reach)."""
    shared = directory.pages_of(held.path.item.node, held.path.item.node.end)
    assert len(shared) <= len(held.table), "a leg ends past what is resident"
    directory.give(DEVICE, held.table.share(0, shared))


def _condemn_source(directory: Directory, held: Committed, option: Option, move: Move) -> None:
    """Condemn the source of a failed copy, so that the next plan does not use it."""
    assert isinstance(move.source, Extent)
    tier = move.source.tier
    if tier == EXTERNAL:
        assert directory.external is not None
        directory.external.forget(move.what, move.names)
        return
    if move.what == "image":
        assert option.resume_point is not None
        directory.condemn(option.resume_point.rung.image, tier)
        return
    start = move.tokens - len(move.source.slots) * directory.tree.block
    leaf = next(lease.item.node for lease in held.sources if lease.tier == tier)
    for node in directory.node_at(leaf, move.tokens).up():
        if node.end <= start:
            break
        if node.start < start:
            directory.split(node, start)  # what other copies have read stays good
        directory.condemn(node.kv, tier)


def _ready(
    directory: Directory, held: Committed, index: int, reason: Reason, skipped: int, now: float, tried: Tried = ()
) -> Runnable:
    """Publish the loaded range; release all leases but those on the path and on the image to start from."""
    option = held.plan.options[index]
    resume_point = option.resume_point
    if option.leg:
        publish(directory, held.path, held.tokens, option.boundary, held.table, now)
        if held.table.has_retired:  # another load of the same came first; no step has named these pages
            directory.give(DEVICE, held.table.take_retired())
    image = held.images[index] if resume_point is not None and resume_point.tier == DEVICE else None
    for lease in held.leases:
        if lease is not image:
            directory.release(lease)
    _release_hit(directory, held)
    touch(directory, held.plan.survey, resume_point.rung if resume_point else None, option.boundary, now)
    outcome = outcome_of(held.plan, held.request_id, directory.config.geometry.rung_grid, index, reason, skipped)
    outcome = replace(outcome, legs=tried) if tried else outcome
    state_loaded = option.external_hit is not None or (resume_point is not None and image is None)
    return Runnable(
        option.boundary, held.path.item.node.end, held.table, held.path, image, state_loaded, outcome, index
    )


def outcome_of(plan: Plan, request_id: str, grid: int, index: int, reason: Reason, skipped: int) -> AdmissionOutcome:
    """The outcome of `plan` if the request starts by option `index`."""
    option = plan.options[index]
    found, boundary = plan.survey, option.boundary
    below = {HOST: 0, DISK: 0, EXTERNAL: 0}
    for source in option.leg:
        below[source.tier] += max(0, min(source.end, boundary) - max(source.start, found.device))
    why = _LOSS.get(reason, Loss.TOO_SMALL)
    resume_point = option.resume_point
    return AdmissionOutcome(
        request_id=request_id,
        prompt=found.tokens,
        device=boundary - sum(below.values()),
        host=below[HOST],
        disk=below[DISK],
        recomputed=found.tokens - boundary,
        boundary=boundary,
        hit=plan.hit,
        state_tier=EXTERNAL if option.external_hit else resume_point.tier if resume_point else None,
        reason=reason,
        lost=losses(found, boundary, skipped, why, grid) if reason != Reason.NOT_READ else ((why, found.tokens),),
        diverged_at=found.diverged_at,
        loaded=option.loads,
        fallback_weakened=plan.fallback_weakened,
        external=below[EXTERNAL],
    )


def abandon(directory: Directory, held: Committed) -> None:
    """Release everything, for a request that ended before it ran. Call it once no copy writes to its pages any more."""
    for lease in (*held.leases, held.path):
        directory.release(lease)
    _release_hit(directory, held)
    directory.close(held.table)


def _release_hit(directory: Directory, held: Committed) -> None:
    """Nothing is read from the external store any more."""
    external_hit = held.plan.aim.external_hit
    if external_hit is not None and directory.external is not None:
        directory.external.let_go(external_hit.number)
