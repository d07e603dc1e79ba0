"""The ladders of the paths that were used last, for the page: the engine is asked only while a page is open, and once for all of them.

Sessions are told by the beginning of their SHA-256, which stays the same from turn to turn: their names are their owners' alone.
"""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

from stepwell.base.clock import Clock
from stepwell.base.errors import EngineDead
from stepwell.cache.reuse.explain import Ladder
from stepwell.server.generation.client import EngineClient

ROWS = 12
_EVERY = 2.0  # seconds for which an answer is new enough
_PATIENCE = 0.5  # seconds that the page waits for an engine in the middle of a long step
_OWNERS = 64


class Ladders:
    """Remembers the last answer for each owner of salts, so that many pages cost the engine no more than one."""

    def __init__(self, client: EngineClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._known: dict[str, tuple[float, list[dict[str, Any]]]] = {}

    async def rows(self, owner: str) -> list[dict[str, Any]]:
        """Up to `ROWS` of them, the last used first; the last answer again where the engine has no time. Raises nothing."""
        asked, rows = self._known.get(owner, (-_EVERY, []))
        now = self._clock.now()
        if now - asked < _EVERY:
            return rows
        if len(self._known) >= _OWNERS:
            self._known.clear()
        self._known[owner] = now, rows  # before the answer: whoever looks meanwhile does not ask, too
        try:
            async with asyncio.timeout(_PATIENCE):
                rows = [_row(ladder) for ladder in await self._client.ladders(ROWS, owner)]
        except (TimeoutError, EngineDead):
            return rows
        self._known[owner] = now, rows
        return rows


def _row(ladder: Ladder) -> dict[str, Any]:
    outcome = ladder.outcome
    return {
        "session": None if ladder.session is None else hashlib.sha256(ladder.session.encode()).hexdigest()[:8],
        "request": outcome.request_id,
        "known": ladder.known,
        "rungs": [[rung.position, rung.tier, rung.kind] for rung in ladder.rungs],
        "kv": [list(run) for run in ladder.kv],
        "prompt": outcome.prompt,
        "boundary": outcome.boundary,
        "from": None if outcome.state_tier is None else outcome.state_tier.name.lower(),
        "reason": outcome.reason.value,
        "ago": round(ladder.ago, 1),
    }
