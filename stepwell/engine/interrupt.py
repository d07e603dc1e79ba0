"""Ctrl-C between steps, and not within one: what a step changes would be left half changed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def whole() -> Iterator[Callable[[], None]]:
    """Hold KeyboardInterrupt back until the block ends, or calls what it is given, at a point where it may be left.

    A program's own handler of the signal stays in place, and threads other than the main one get no signal: there nothing is held back.
    """
    ours = threading.current_thread() is threading.main_thread()
    if not ours or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield _nothing
        return
    pressed: list[int] = []

    def may_leave() -> None:
        if pressed:
            pressed.clear()
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield may_leave
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    may_leave()


def _nothing() -> None:
    return
