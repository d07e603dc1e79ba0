"""Bounds the processor time that one piece of work takes in its own thread. Nothing interrupts llguidance, so the process ends with it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_EVERY = 0.25  # seconds between two looks


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    number: int
    clock: int
    ends_at: float
    fault: str


class Watch:
    """A thread that looks at all work under way. The threads that work are the only ones that count: what others do meanwhile does not.

    It sees nothing while a thread keeps the interpreter's lock. llguidance gives it away while it reads grammars and computes masks.
    """

    def __init__(self, too_long: Callable[[int, str], None]) -> None:
        """`too_long` is called with the number and the fault of work that has taken its time; it must end the process."""
        self._too_long = too_long
        self._lock = threading.Lock()
        self._under_way: dict[int, _Work] = {}  # by thread
        threading.Thread(target=self._look, name="watch", daemon=True).start()

    @contextmanager
    def over(self, number: int, seconds: float, fault: str) -> Iterator[None]:
        """Work on question `number` in the calling thread, for at most so many seconds of its processor time. O(1)."""
        thread = threading.get_ident()
        clock = time.pthread_getcpuclockid(thread)
        with self._lock:
            self._under_way[thread] = _Work(number, clock, time.clock_gettime(clock) + seconds, fault)
        try:
            yield
        finally:
            with self._lock:  # from here on its answer may be sent: nobody else may answer it
                del self._under_way[thread]

    def _look(self) -> None:
        while True:
            time.sleep(_EVERY)
            with self._lock:
                for work in self._under_way.values():
                    if time.clock_gettime(work.clock) > work.ends_at:
                        self._too_long(work.number, work.fault)
