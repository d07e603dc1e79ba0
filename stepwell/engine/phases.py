"""Where the time of a start goes: phases by name, told as they begin, summed at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from stepwell.base.clock import Clock

log = logging.getLogger(__name__)


class Phases:
    """A stopwatch with names. Phases may stand inside each other; time counts for the innermost.

    with phases("reading weights"):          10 s, of which 4 in the phase below: 6 s
        with phases("importing kernels"):     4 s
    """

    __slots__ = ("_clock", "_level", "_open", "_seconds", "_since", "_tell")

    def __init__(self, clock: Clock, tell: Callable[[str], None], level: int = logging.INFO) -> None:
        """`tell` hears the name of each phase as it begins. `level`: of the log lines that say the same."""
        self._clock = clock
        self._tell = tell
        self._level = level
        self._seconds: dict[str, float] = {}
        self._open: list[str] = []
        self._since = clock.now()

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Time the block as a phase called `name`, and tell and log that it begins. The same name may come again."""
        log.log(self._level, "%s …", name)
        self._tell(name)
        self._charge()
        self._open.append(name)
        try:
            yield
        finally:
            self._charge()
            self._open.pop()

    def taken(self) -> tuple[tuple[str, float], ...]:
        """(name, seconds) of every phase that has ended, in the order in which they began to take time."""
        return tuple(self._seconds.items())

    def _charge(self) -> None:
        """What has passed since the last call goes to the innermost open phase."""
        now = self._clock.now()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now
