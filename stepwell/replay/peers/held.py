"""What one request holds of a paged device pool."""

from __future__ import annotations

from dataclasses import dataclass

from stepwell.base.units import ceil_div
from stepwell.replay.peers.job import Job, Past
from stepwell.replay.peers.pool import Pool


@dataclass(slots=True)
class Held:
    """`pinned` entries of the pool, in the order of the prompt; `private` units beside them; pages below `done` are published."""

    pinned: list[int]
    private: int
    done: int

    def publish(self, pool: Pool, past: Past, job: Job, page: int) -> list[int]:
        """Whole pages that have been computed since the last time can be found from now on; their names."""
        new = job.keys[self.done : job.computed // page]
        for key in new:
            if pool.publish(key, 1):
                self.pinned.append(key)
                self.private -= 1
        past.note(new)
        self.done += len(new)
        return new

    def release(self, pool: Pool) -> None:
        """The tail becomes the least recently used."""
        pool.unpin(reversed(self.pinned))
        pool.give(self.private)


def hold(pool: Pool, job: Job, page: int, shared: int, more: int, spare: int | None = None) -> Held | None:
    """Pin the first `shared` pages of the prompt, take the others of prompt and answer and `more` units; None without room.

    spare  the name of an entry that must not be evicted for it
    """
    pinned = job.keys[:shared]
    guarded = pinned if spare is None else [*pinned, spare]
    need = ceil_div(job.total, page) - shared + more
    pool.pin(guarded)
    if not pool.take(need):
        pool.unpin(guarded, used=False)
        return None
    if spare is not None:
        pool.unpin((spare,))
    return Held(pinned, need, shared)
