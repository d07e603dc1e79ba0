"""`cache_control`: where Anthropic's API says what to cache, and for how long. Here everything is cached, and memory goes to what is used:
a mark is checked and changes nothing. Clients mark every call, so time for what is marked would be time for everything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepwell.base.errors import RequestError
from stepwell.server.messages.schema import CountCall

_TTLS = (None, "5m", "1h")
_MARK = "cache_control"


def check_marks(call: CountCall) -> None:
    """Raise RequestError where a mark of `call` is none."""
    for mark, field in _marks(call):
        if not isinstance(mark, dict) or mark.get("ttl") not in _TTLS:
            raise RequestError(
                f"{field} must be {{'type': 'ephemeral'}}, with a ttl of '5m' or '1h' or without one", field
            )


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
