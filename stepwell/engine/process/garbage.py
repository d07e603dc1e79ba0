"""When a serving process collects garbage: at its start, and while it is idle.

A full collection walks through everything that a process holds, in the middle of an answer: 300,000 objects of its imports, and a few for
each node of the prefix tree. Nothing of the tree needs it, since nothing there keeps itself alive (`stepwell.cache.tree.GONE_NODE`), and
what a step leaves behind dies young. So only young objects are looked at while requests are served.
"""

from __future__ import annotations

import gc

from stepwell.base.clock import Clock

YOUNG = (700, 10, 1 << 30)
"""Thresholds of the collector's three generations: the usual ones, of which the last is never reached."""
FRONT = (50_000, 2, 2)
"""The same for a process that speaks HTTP. Each open stream holds a few hundred objects, and each engine step allocates one object per open
stream: with the usual 700 the collector takes an eighth of the time of a server with 256 streams (docs/numbers.md). What only the collector
can free waits for 450,000 new objects at most, some tens of MB: hardly anything does, since calls leave no cycles behind."""
SOME = 60.0
"""Seconds at least between two full collections."""


def settle_memory() -> None:
    """Tell the collector that what a process has built so far is there to stay."""
    gc.collect()
    gc.freeze()


def settle_front() -> None:
    """Freeze what is loaded, and collect after 50,000 new objects instead of 700. For processes that serve HTTP."""
    settle_memory()
    gc.collect()  # after a freeze it would still count what is frozen as old, and put off full collections until a quarter of that is new
    gc.set_threshold(*FRONT)


class Garbage:
    """Full collections at the right moments. It changes the collector of the whole process, so it belongs to a process of its own."""

    __slots__ = ("_clock", "_last")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        settle_memory()
        gc.set_threshold(*YOUNG)
        self._last = clock.now()

    def idle(self) -> None:
        """Nothing is to be done: collect what has gathered, at most once in `SOME` seconds. What is left is there to stay, so that the
        next time takes no longer than what has been built since."""
        if self._clock.now() - self._last >= SOME:
            settle_memory()
            self._last = self._clock.now()
