"""`cache_control`: where Anthropic's API is told what to cache. Here everything is cached, so that only a time that it
names counts: clients that mark every call would otherwise ask for time on every call, which where memory is short is worse than none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.server.messages.schema import CountCall

_TTLS = {"5m": 300.0, "1h": 3600.0}
_MARK = "cache_control"


def keep_s(call: CountCall) -> float | None:
    """Seconds for which the longest mark asks; None where none names a time. Raises RequestError."""
    named = [seconds for mark, field in _marks(call) if (seconds := _seconds(mark, field)) is not None]
    return max(named, default=None)


def _seconds(mark: object, field: str) -> float | None:
    ttl = mark.get("ttl") if isinstance(mark, dict) else ""
    if ttl is None:
        return None
    if not isinstance(ttl, str) or ttl not in _TTLS:
        raise RequestError(f"{field} must be {{'type': 'ephemeral'}}, with a ttl of '5m' or '1h' or without one", field)
    return _TTLS[ttl]


def _marks(call: CountCall) -> Iterator[tuple[object, str]]:
    """Every mark with its field, from a call whose messages have been read."""
    if call.cache_control is not None:
        yield call.cache_control, _MARK
    places: list[tuple[object, str]] = [(call.system, "system"), (call.tools, "tools")]
    places += [(message.get("content"), f"messages.{i}.content") for i, message in enumerate(call.messages)]
    for blocks, field in places:
        for i, block in enumerate(blocks if isinstance(blocks, list) else ()):
            mark: Any = block.get(_MARK)
            if mark is not None:
                yield mark, f"{field}.{i}.{_MARK}"
