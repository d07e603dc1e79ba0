"""Signs of life of an engine process, from a thread of its own: they go on while a step is computed, and stop only with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import zmq

from stepwell.engine.process import messages

BEAT = 0.5
"""Seconds between two signs."""


@contextmanager
def beating(socket: Callable[[], zmq.Socket[bytes]] | None, turn: Callable[[], float]) -> Iterator[None]:
    """Within the block a thread sends `Alive` with what `turn` returns: seconds that the loop has spent in its present turn.

    socket  opens a socket to the front end, on the thread that uses it; None: no signs are sent
    """
    if socket is None:
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_beat, args=(socket, turn, over), name="stepwell-pulse", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _beat(open_socket: Callable[[], zmq.Socket[bytes]], turn: Callable[[], float], over: threading.Event) -> None:
    with open_socket() as socket:
        socket.linger = 0
        while not over.is_set():
            socket.send(messages.encode(messages.Alive(turn())))
            over.wait(BEAT)
