"""What a preempted request keeps, so that it can continue by copying, without computing anything again.

    0 ══════ published KV, not leased: it is copied down and loaded like anything cached ════════════════ ⌊n⌋ ─ kept ─ n
                                                                                   live state at n: kept, in its slot

It keeps its live slot, whose state has folded exactly n tokens, and the page past the last whole block, which the tree cannot hold. If
the slot or the page is needed elsewhere, it is taken, and the request resumes at a rung, as any other.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.base.units import floor_to
from stepwell.cache.directory import Directory
from stepwell.cache.moves import DEVICE
from stepwell.sched.job import Running, Suspended
from stepwell.sched.queues import Queues
from stepwell.sched.step import Carry


def suspend(directory: Directory, running: Running) -> Suspended | None:
    """Take from a request that is about to be preempted what it needs to continue where it is. None if it cannot."""
    assert not running.in_flight, "the step that computes it is collected first"
    request, node = running.job.request, running.path.item.node
    whole = floor_to(running.computed, directory.tree.block)
    usable = request.read_cache and request.write_cache and isinstance(running.start, Carry)
    usable = usable and not directory.tree.is_condemned(node)
    if not usable or whole == 0 or node.end != whole:
        return None
    block = directory.tree.block
    rest, spare = running.table.detach(whole // block, directory.config.geometry.pages_for(running.computed))
    directory.give(DEVICE, spare)
    node.awaited += 1
    return Suspended(running.slot, running.computed, rest, node, directory.condemnations)


def attach(directory: Directory, running: Running, suspended: Suspended) -> None:
    """Give a request back what it kept, once it has all its KV up to the last whole block."""
    assert len(running.table) * directory.tree.block == floor_to(suspended.computed, directory.tree.block)
    running.table.append(suspended.pages)
    running.computed = running.launched = suspended.computed
    running.start = Carry()
    _unawait(directory, suspended)


def let_go(directory: Directory, suspended: Suspended) -> None:
    """Release the pages that a suspended request kept. The caller frees its slot."""
    directory.give(DEVICE, suspended.pages)
    _unawait(directory, suspended)


def let_go_all(queues: Queues, directory: Directory) -> bool:
    """Release what every suspended request kept, so that each resumes at a rung. Returns False if there was none."""
    suspended = [index for index, waiting in enumerate(queues.waiting) if waiting.suspended is not None]
    for index in suspended:
        let_go_at(queues, directory, index)
    return bool(suspended)


def let_go_at(queues: Queues, directory: Directory, index: int) -> None:
    """Release what the suspended request at `index` of the queue kept, so that it resumes at a rung."""
    waiting = queues.waiting[index]
    assert waiting.suspended is not None
    let_go(directory, waiting.suspended)
    queues.slots.append(waiting.suspended.slot)
    queues.waiting[index] = replace(waiting, suspended=None)


def any_suspended(queues: Queues) -> bool:
    return any(waiting.suspended is not None for waiting in queues.waiting)


def free_slot(queues: Queues, directory: Directory) -> bool:
    """Take a live slot from the youngest suspended request; False if there is none."""
    for index in reversed(range(len(queues.waiting))):
        if queues.waiting[index].suspended is not None:
            let_go_at(queues, directory, index)
            return True
    return False


def _unawait(directory: Directory, suspended: Suspended) -> None:
    suspended.node.awaited -= 1
    if suspended.node.parent is not None:
        directory.tidy(suspended.node)
        directory.requeue(suspended.node.kv)


def held_pages(queues: Queues) -> Ints:
    """Pages that suspended requests keep."""
    waiting = [w.suspended for w in queues.waiting] + [p.suspended for p in queues.parked.values()]
    return np.concatenate([np.empty(0, np.int32), *(suspended.pages for suspended in waiting if suspended is not None)])
