"""Logs when file descriptors run out: the system then closes new connections before the server sees them."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource

log = logging.getLogger("stepwell.server")

EVERY_S = 10.0
"""Seconds between two looks."""
PERIOD_S = 60.0
"""Seconds between two lines about it, at least."""
_SPARE = 4


def exhausted() -> bool:
    """Whether this process can open next to nothing any more. O(open descriptors)."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        return limit != resource.RLIM_INFINITY and len(os.listdir("/proc/self/fd")) + _SPARE > limit
    except OSError as error:  # to look needs one, too
        return error.errno in (errno.EMFILE, errno.ENFILE)


async def report(every: float = EVERY_S, period: float = PERIOD_S) -> None:
    """Log a line while descriptors have run out, at most one each period. Runs until it is cancelled."""
    told = float("-inf")
    now = asyncio.get_running_loop().time
    while True:
        await asyncio.sleep(every)
        if now() - told >= period and exhausted():
            told = now()
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            log.warning(
                "all %d file descriptors are in use: new connections are closed at once; raise the limit (ulimit -n, LimitNOFILE=)",
                limit,
            )
