"""A rank's signs of life, from a thread of their own: they go on while a step is computed, and stop only with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable

import xxhash
import zmq

from stepwell.engine.ranks.wire import Alive, Failed, State, encode

BEAT = 0.25
"""Seconds between two signs."""
DIGEST_EVERY = 16
"""Results between two digests that are compared."""
_LAST_WORD = 2.0
"""Seconds at most that a rank takes to say why it ends."""


class Tally:
    """Counts steps, and digests what has come of them: equal on all ranks that have computed the same so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._digest = xxhash.xxh3_64()
        self._due: dict[int, int] = {}
        self.launched = self.done = 0

    def launch(self) -> None:
        self.launched += 1

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

    def __init__(
        self, socket: Callable[[], zmq.Socket[bytes]], rank: int, tally: Tally, state: Callable[[], State]
    ) -> None:
        self._socket = socket
        self._rank = bytes([rank])
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
        socket = self._socket()
        while not self._wake.wait(BEAT):
            tally = self._tally
            told = Alive(tally.launched, tally.done, tally.due(), self._state())
            socket.send_multipart((b"sign", self._rank, encode(told)))
        socket.send_multipart((b"sign", self._rank, encode(Failed(self._reason, False))))
        socket.close(linger=1000)
