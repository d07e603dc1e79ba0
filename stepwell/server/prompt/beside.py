"""Work that may take long, done beside the event loop so that streams keep flowing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_Result = TypeVar("_Result")

SHORT = 2000
"""Characters, or ids, or bytes of a body, that are worked on at once instead of in a thread."""
_LONG = 500_000
_THREADS = 4


class Beside:
    """Owns the threads. Very long texts are handled one at a time: each takes a hundred times its size in memory."""

    def __init__(self) -> None:
        self._usual = ThreadPoolExecutor(_THREADS, "beside")
        self._long = ThreadPoolExecutor(1, "long")

    async def run(self, size: int, work: Callable[[], _Result]) -> _Result:
        """The result of `work`, which is about `size` characters long."""
        if size <= SHORT:
            return work()
        pool = self._long if size > _LONG else self._usual
        return await asyncio.get_running_loop().run_in_executor(pool, work)
