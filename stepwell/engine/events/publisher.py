"""Sends batches to whoever subscribes, and again to who has missed some. Never holds up the engine.

    engine ──PUSH──▶ thread ──PUB──▶ subscribers          topic, number, batch
                        ▲ └── the last batches, for
                        └──ROUTER── who asks              in: b"", first number    out: b"", topic, number, batch; the end is number −1

Numbers are eight bytes, the highest first, and count on from 0. A gap in them is a loss: ask for what is missing.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from itertools import count

import zmq

from stepwell.base.errors import ConfigError

REMEMBERED = 10_000
"""Batches that can be asked for again."""
_WAITING = 10_000  # batches between engine and thread; a thread that has not sent so many is stuck
_LATE = 100_000  # batches that wait for a slow subscriber before it loses some
_END = (-1).to_bytes(8, "big", signed=True)
_ENGINE = "inproc://cache-events"


class Publisher:
    """Owns the sockets and their thread. `publish` and `close` are called by one thread."""

    __slots__ = ("_context", "_numbers", "_push", "_thread", "dropped", "published")

    def __init__(self, endpoint: str, replay_endpoint: str | None, topic: str) -> None:
        """Raises ConfigError where an endpoint cannot be opened."""
        self.published = self.dropped = 0
        self._numbers = count()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            outward = self._opened(zmq.PUB, endpoint, _LATE, "--kv-events-endpoint")
            replay = None
            if replay_endpoint is not None:
                replay = self._opened(zmq.ROUTER, replay_endpoint, 2 * REMEMBERED + 2, "--kv-events-replay-endpoint")
        except ConfigError:
            self._context.destroy(linger=0)
            raise
        inward = self._context.socket(zmq.PULL)
        self._push = self._context.socket(zmq.PUSH)
        for socket in (inward, self._push):
            socket.set_hwm(_WAITING)
        inward.bind(_ENGINE)
        self._push.connect(_ENGINE)
        sockets = inward, outward, replay
        self._thread = threading.Thread(
            target=_serve, args=(*sockets, topic.encode()), name="cache-events", daemon=True
        )
        self._thread.start()

    def _opened(self, kind: int, endpoint: str, waiting: int, flag: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.sndhwm = waiting
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"{flag} {endpoint!r} cannot be opened ({error}): give one such as tcp://*:5557"
            ) from error
        return socket

    def publish(self, batch: bytes) -> None:
        """Send a batch. Where too many wait already it is dropped: its number is missing then, and `dropped` counts it."""
        try:
            self._push.send_multipart((next(self._numbers).to_bytes(8, "big"), batch), zmq.NOBLOCK)
            self.published += 1
        except zmq.Again:
            self.dropped += 1

    def close(self) -> None:
        """Send what waits, for a second at most, and end."""
        self._push.setsockopt(zmq.SNDTIMEO, 1000)
        with contextlib.suppress(zmq.Again):
            self._push.send_multipart((b"", b""))
        self._thread.join(1.0)
        if not self._thread.is_alive():  # else its sockets are in use: they end with the process
            self._context.destroy(linger=500)


def _serve(
    inward: zmq.Socket[bytes], outward: zmq.Socket[bytes], replay: zmq.Socket[bytes] | None, topic: bytes
) -> None:
    remembered: deque[tuple[bytes, bytes]] = deque(maxlen=REMEMBERED)
    poller = zmq.Poller()
    for socket in (inward, replay):
        if socket is not None:
            poller.register(socket, zmq.POLLIN)
    while True:
        ready = dict(poller.poll())
        if inward in ready:
            number, batch = inward.recv_multipart()
            if not number:
                return
            outward.send_multipart((topic, number, batch))
            remembered.append((number, batch))
        if replay is not None and replay in ready:
            _repeat(replay, topic, remembered)


def _repeat(replay: zmq.Socket[bytes], topic: bytes, remembered: deque[tuple[bytes, bytes]]) -> None:
    """Answer one question; what is none is left unanswered."""
    frames = replay.recv_multipart()
    if len(frames) != 3 or len(frames[2]) != 8:
        return
    who, _, first = frames
    for number, batch in remembered:
        if number >= first:
            replay.send_multipart((who, b"", topic, number, batch))
    replay.send_multipart((who, b"", b"", _END, b""))
