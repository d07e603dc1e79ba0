"""What models have written as calls of tools, kept so that it can stand in later prompts as it was written.

A call comes back from its caller as JSON, and a template writes that anew: `True` becomes `true`, compact JSON gets spaces, text behind a
call moves before it. From there on nothing of the answer would be found in the cache.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

_MOST = 32 * 2**20  # characters that are kept in all


@dataclass(frozen=True, slots=True)
class Written:
    """One answer: its text before the first call, all of its text as the caller got it, calls as (id, name, arguments), and as it was
    written everything from the space before the first call on."""

    before: str
    said: str
    calls: tuple[tuple[str, str, str], ...]
    rest: str

    @property
    def size(self) -> int:
        return len(self.said) + len(self.rest) + sum(len(arguments) for _, _, arguments in self.calls)


class Answers:
    """Owns the kept answers; drops the oldest first. Safe to call from several threads."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._kept: OrderedDict[str, Written] = OrderedDict()  # by the id of the first call
        self._size = 0

    def keep(self, written: Written) -> None:
        if written.size > self._most:
            return
        known = self._kept.pop(written.calls[0][0], None)
        self._size -= 0 if known is None else known.size
        self._kept[written.calls[0][0]] = written
        self._size += written.size
        while self._size > self._most:
            self._size -= self._kept.popitem(last=False)[1].size

    def of(self, message: dict[str, Any]) -> Written | None:
        """What was written as this earlier message, if it says the same."""
        calls: Sequence[dict[str, Any]] = message.get("tool_calls") or ()
        written = self._kept.get(str(calls[0].get("id"))) if calls else None
        if written is None or message["content"].strip() != written.said.strip() or len(calls) != len(written.calls):
            return None
        same = all(_same(call, *given) for call, given in zip(calls, written.calls, strict=True))
        return written if same else None


def _same(call: dict[str, Any], name_of_call: str, name: str, arguments: str) -> bool:
    function = call["function"]
    return (
        call.get("id") == name_of_call
        and function["name"] == name
        and _plain(function["arguments"]) == _plain(json.loads(arguments))
    )


def _plain(value: object) -> str:
    """A value so that two are equal where they say the same in JSON: 1.0 is 1, and neither is true."""
    return json.dumps(_whole(value), sort_keys=True)


def _whole(value: object) -> object:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {name: _whole(inner) for name, inner in value.items()}
    return [_whole(inner) for inner in value] if isinstance(value, list) else value
