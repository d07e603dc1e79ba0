"""A rank's signs of life, from a thread of their own: they go on while a step is computed, and stop only with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable

import xxhash

from stepwell.engine.ranks.channel import Channel
from stepwell.engine.ranks.wire import TOLD, Alive, Failed, Progress, State, encode

BEAT = 0.25
"""Seconds between two signs."""
DIGEST_EVERY = 16
"""Results between two digests that are compared."""
_LAST_WORD = 2.0
"""Seconds at most that a rank takes to say why it ends."""


class Tally:
    """Counts what a rank does, and digests what has come of its steps: equal on all ranks that have computed the same so far.

    orders, turns, waiting   see `Progress`; `waiting` for an order
    launched, done           steps
    """

    def __init__(self, sums: Callable[[], int] = int) -> None:
        """`sums`: those over all ranks that this one has begun to wait for."""
        self._lock = threading.Lock()
        self._digest = xxhash.xxh3_64()
        self._due: dict[int, int] = {}
        self._sums = sums
        self.orders = self.turns = self.launched = self.done = 0
        self.waiting = True

    def progress(self) -> Progress:
        """On any thread: counts of about the same time."""
        busy = not self.waiting or self.launched > self.done
        return Progress(self.orders, self._sums(), self.done, self.turns, busy)

    def finish(self, result: bytes) -> None:
        """The next step has come to this."""
        self._digest.update(result)
        self.done += 1
        if self.done % DIGEST_EVERY == 0:
            with self._lock:
                self._due[self.done] = self._digest.intdigest()

    def due(self) -> dict[int, int]:
        """Digests since the last call."""
        with self._lock:
            due, self._due = self._due, {}
        return due


class Heartbeat:
    """The thread. `fail` sends why this rank ends, and returns once it is sent, or cannot be sent in time."""

    def __init__(self, signs: Channel, tally: Tally, state: Callable[[], State]) -> None:
        self._signs = signs
        self._tally = tally
        self._state = state
        self._reason = ""
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="stepwell-heartbeat", daemon=True)
        self._thread.start()

    def fail(self, reason: str) -> None:
        self._reason = reason
        self._wake.set()
        self._thread.join(_LAST_WORD)

    def _beat(self) -> None:
        while not self._wake.wait(BEAT):
            told = Alive(self._tally.progress(), self._tally.due(), self._state())
            self._signs.send(TOLD, encode(told))
        self._signs.send(TOLD, encode(Failed(self._reason, False)))
