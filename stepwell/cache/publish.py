"""What happens in the tree after a step: computed KV becomes findable, rungs are left and replaced, use is recorded."""

from __future__ import annotations

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.account import Lease
from stepwell.cache.directory import Directory
from stepwell.cache.life import ABSENT, CONDEMNED, HERE, REFUSED
from stepwell.cache.moves import DEVICE, DISK
from stepwell.cache.placement import left_by, overtaken
from stepwell.cache.reuse.survey import Survey
from stepwell.cache.slots import BlockTable
from stepwell.cache.tree import MOST_JOINED, OLD, ROLLING, TOKEN_BYTES, WAYPOINT, Node, Rung, RungKind


def publish(
    directory: Directory, lease: Lease, tokens: Ints, end: int, table: BlockTable, now: float, adopt: bool = True
) -> None:
    """Make the computed blocks [lease end, end) of `tokens` findable, and move `lease` down over them.

    If the same content is there already, the first entry stays: the table then uses that entry's pages and retires its own, which the
    caller frees once no launched step reads them. With `adopt` off (a request that must not read the cache) publishing stops there.
    O(tokens) bytes compared.
    """
    node = lease.item.node
    condemned = directory.tree.is_condemned(node)
    directory.candidates.latest.use = now
    if end > node.end and not condemned and node.rung is None and _may_lengthen(node, end):
        _lengthen(directory, node, tokens, end, table, now)
        return
    while node.end < end:
        known = len(node.children)
        child = follow(directory, node, tokens, end, now)
        if 0 < known < len(node.children):
            _mark_left(directory, child)
        if not adopt and child.kv.at[DEVICE] is not None:
            break
        _fill(directory, child, table, condemned)
        child.used = now
        directory.extend(lease, child)
        node = child
    directory.tidy(node)


def _may_lengthen(node: Node, end: int) -> bool:
    """True if the tree may lengthen `node` in place: a leaf on the device alone that one request holds, not longer than joined nodes are.

    A new child would be joined to it anyway.
    """
    kv = node.kv
    if node.children or node.awaited or node.left or end - node.start > MOST_JOINED:
        return False
    return kv.locks == _LOCKED_ONCE and kv.life == _ON_DEVICE and kv.pending is None and not kv.pins


_LOCKED_ONCE, _UNLOCKED = [1, 0, 0], [0, 0, 0]  # by tier: the device first
_ON_DEVICE = [HERE, ABSENT, ABSENT]


def _lengthen(directory: Directory, node: Node, tokens: Ints, end: int, table: BlockTable, now: float) -> None:
    first, last = node.end // directory.tree.block, end // directory.tree.block
    directory.lengthen(node, tokens[node.end : end], table.hand_over(first, last))
    node.used = now


def follow(directory: Directory, node: Node, tokens: Ints, end: int, now: float) -> Node:
    """The child of `node` along `tokens`, up to `end` at most. Adds one if there is none; cuts one whose tokens differ further on."""
    at, block = node.end, directory.tree.block
    child = node.children.get(directory.tree.key(tokens, at))
    if child is None:
        return directory.attach(node, tokens[at:end], now)
    size = min(child.end, end) - at
    common = size
    if child.raw[: size * TOKEN_BYTES] != tokens[at : at + size].tobytes():
        common = int((child.tokens[:size] == tokens[at : at + size]).argmin())
        common -= common % block
    return directory.split(child, at + common) if at + common < child.end else child


def _fill(directory: Directory, node: Node, table: BlockTable, condemned: bool) -> None:
    """Give `node` the pages of `table` for its tokens, or `table` those of the node. KV computed from condemned bytes is condemned."""
    first, last = node.start // directory.tree.block, node.end // directory.tree.block
    here = node.kv.at[DEVICE]
    if here is None:
        pages = table.hand_over(first, last)
        if condemned:
            directory.transition(node.kv, DEVICE, CONDEMNED, pages)
        else:
            directory.place(node.kv, DEVICE, pages)
    else:
        table.retire(table.share(first, here))


def leave_rung(
    directory: Directory, lease: Lease, position: int, pages: Ints, kind: RungKind, now: float
) -> Rung | None:
    """Publish the image in `pages`, which has folded exactly `position` tokens of the leased path. Returns its rung; None, and the pages
    are freed, if an image is there already or the path is condemned."""
    if directory.tree.is_condemned(lease.item.node):
        directory.give(DEVICE, pages)
        return None
    node = directory.node_at(lease.item.node, position)
    rung = node.rung
    if rung is not None and rung.image.has(DEVICE):
        directory.give(DEVICE, pages)
        _raise(directory, rung, kind)
        return None
    if rung is None:
        rung = directory.add_rung(node, kind, now)
    rung.used = now
    _raise(directory, rung, kind)
    directory.place(rung.image, DEVICE, pages)
    if kind != ROLLING:
        _lengthen_line(directory, rung)
    if directory.policy.thins:
        _supersede(directory, rung, kind)
    return rung


def _raise(directory: Directory, rung: Rung, kind: RungKind) -> None:
    """Give `rung` the stronger of its kind and `kind`. A former waypoint is no longer among the first to be dropped."""
    if rung.kind == WAYPOINT and kind != WAYPOINT:
        rung.depth = 0
        directory.requeue(rung.image)
    rung.kind = min(rung.kind, kind)


def _lengthen_line(directory: Directory, rung: Rung) -> None:
    """Note at the rungs above the new `rung` that their line reaches as far as it, once the line has grown by an eighth. Stops at the
    first that knows: those above it know too. The gap of the rung above has become narrower. O(path) at most."""
    line = rung.image.node.end
    node = rung.image.node.parent
    while node is not None:
        above = node.rung
        if above is not None:
            directory.requeue(above.image)
            if 8 * line <= 9 * above.line:
                return
            above.line = line
        node = node.parent


def _mark_left(directory: Directory, child: Node) -> None:
    """Mark the other branches at the parent of `child`, a new node, as left: the conversation has gone on with `child`."""
    if not directory.policy.thins:
        return
    for branch in left_by(child):
        left = directory.branches.leave()
        for node in branch:
            node.left = left
            for item in node.items():
                directory.requeue(item)


def advance(
    directory: Directory, lease: Lease, rung: Rung, tokens: Ints, end: int, table: BlockTable, pages: Ints, now: float
) -> bool:
    """Move the rolling `rung` at the end of the leased path to `end`, over the computed blocks up to there; its new image is in
    `pages`. Does in place what `publish`, `drop_replaced` and `leave_rung` do together.

    Returns False, and changes nothing, if its node is shared in any way or has reached its greatest length.
    """
    node = rung.image.node
    if lease.item.node is not node or node.rung is not rung or not pages.size:
        return False
    if not (_may_lengthen(node, end) and _is_own(rung) and _as_new(directory, rung)):
        return False
    journal = directory.journal
    if journal is not None:
        journal.note(rung.image, DEVICE, stored=False)
    _lengthen(directory, node, tokens, end, table, now)
    directory.give(DEVICE, directory.exchange(rung, pages))
    if journal is not None:
        journal.note(rung.image, DEVICE, stored=True)
    directory.candidates.latest.use = rung.used = now
    return True


def _is_own(rung: Rung) -> bool:
    """True if `rung` is a rolling rung on the device alone, without leases, pins and copies."""
    image = rung.image
    if rung.kind != ROLLING or image.pending is not None or image.pins or image.locks != _UNLOCKED:
        return False
    device, host, disk = image.life
    return device == HERE and host <= REFUSED and disk <= REFUSED


def _as_new(directory: Directory, rung: Rung) -> bool:
    """True if `rung` ranks exactly as a fresh rolling rung would: unused, same depth, same refusal."""
    in_vain = directory.policy.thins and directory.answers.in_vain
    return (rung.uses, rung.depth, REFUSED in rung.image.life) == (0, OLD if in_vain else 0, in_vain)


def _supersede(directory: Directory, rung: Rung, kind: RungKind) -> None:
    """Lower the value of the rungs that the new `rung` supersedes; of `rung` itself if it ends an answer and answers are not sent back."""
    above, answers = overtaken(rung.image.node)
    for depth, old in enumerate(above, 1):
        if old.depth < depth:
            old.depth = depth
            directory.requeue(old.image)
    if kind == ROLLING:
        if directory.answers.in_vain:
            _rank_last(directory, rung)
        return
    for answer in answers:
        if not answer.superseded:  # counted once, however many rungs the next turns leave
            directory.answers.saw(repeated=False)
        _rank_last(directory, answer)


def _rank_last(directory: Directory, rung: Rung) -> None:
    """Mark `rung` as unlikely to be resumed from: it is dropped first and not copied down."""
    rung.depth = OLD
    directory.refuse(rung.image, directory.candidates.next_tier)


def drop_replaced(directory: Directory, rung: Rung) -> None:
    """Drop a rolling rung that a later one of the same request replaces, unless it is in use or has become a fork."""
    node = rung.image.node
    stays = node.rung is not rung or rung.kind != ROLLING or len(node.children) > 1
    if not stays and not rung.image.pins and not any(rung.image.locks) and rung.image.pending is None:
        directory.remove_rung(rung)


def pass_by(directory: Directory, rung: Rung) -> None:
    """Turn a rolling rung into a waypoint, for requests that continue from the middle of its answer. It is among the first to be dropped,
    and supersedes no other rung."""
    if rung.image.node.rung is rung and rung.kind == ROLLING:
        rung.kind = WAYPOINT
        if directory.policy.thins:
            rung.depth = OLD
        directory.requeue(rung.image)


def touch(directory: Directory, found: Survey, rung: Rung | None, boundary: int, now: float) -> None:
    """Record that a request resumed at `boundary` from `rung`: all KV up to there was used, and of the rungs that one alone. O(path)."""
    directory.candidates.latest.use = now
    used = [node for node in found.path if node.start < boundary]
    if used and used[-1].left:
        directory.branches.come_back()
    for node in used:
        node.used = now
        node.uses += 1
        node.left = 0
    evicted = min(found.matched, found.tokens - 1) - max(found.union, boundary)
    directory.candidates.missed(found.tokens, max(0, evicted))
    if rung is not None:
        if rung.kind == ROLLING:
            directory.answers.saw(repeated=True)
        rung.used = now
        rung.uses += 1
        rung.depth = 0
    if DISK not in directory.pools:
        return
    items = (*(node.kv for node in used), *((rung.image,) if rung is not None else ()))
    on_disk = [slots for item in items if (slots := item.at[DISK]) is not None]
    if on_disk:
        directory.archive.touch(np.concatenate(on_disk))
