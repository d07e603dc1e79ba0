"""Whose line is answered next: a few at a time, dealt out evenly among the owners of batches."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

AT_ONCE = 8
"""Lines that are answered side by side, of all batches."""
LOOK = 0.05
"""Seconds between two looks at whether anyone else waits."""


class Turns:
    """Owns the places. A free one goes to the waiting owner that holds fewest; of equal ones to the one served longest ago. Used by one
    event loop."""

    __slots__ = ("_changed", "_held", "_last", "_quiet", "_served", "_wanting")

    def __init__(self, quiet: Callable[[], bool]) -> None:
        """`quiet`: whether no other call waits."""
        self._quiet = quiet
        self._changed = asyncio.Event()
        self._held: Counter[str] = Counter()
        self._last: dict[str, int] = {}
        self._served = 0
        self._wanting: Counter[str] = Counter()

    async def take(self, owner: str, goes_on: Callable[[], bool]) -> bool:
        """Wait for a place. Returns False once `goes_on` is False. A place is given back with `give`."""
        self._wanting[owner] += 1
        try:
            while goes_on():
                if self._quiet() and self._is_next(owner):
                    self._served += 1
                    self._held[owner] += 1
                    self._last[owner] = self._served
                    return True
                await self._change()
            return False
        finally:
            self._wanting -= Counter((owner,))
            self._tell()

    def give(self, owner: str) -> None:
        """A line has been answered."""
        self._held -= Counter((owner,))
        self._tell()

    def _is_next(self, owner: str) -> bool:
        if self._held.total() >= AT_ONCE:
            return False
        return min(self._wanting, key=lambda one: (self._held[one], self._last.get(one, 0))) == owner

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self) -> None:
        """Until a place is taken or given, or it is time to look again."""
        async with wake_after(LOOK):
            await self._changed.wait()


@asynccontextmanager
async def wake_after(seconds: float) -> AsyncIterator[None]:
    """Leave the block after so long, without an error."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        return
