"""One call of a tool on its way to its caller."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from stepwell.server.write.deltas import CallClosed, CallGrew, CallOpened, Delta


class Result(Enum):
    """What came of text that began like a call."""

    WHOLE = auto()  # a call
    NONE = auto()  # no call: the caller has heard of nothing
    CUT = auto()  # a call that was opened and has no end


class Call:
    """Appends the deltas of a call to `out`. Its arguments are strict JSON once it is closed."""

    __slots__ = ("_index", "_new_id", "_out", "id", "name")

    def __init__(self, index: int, new_id: Callable[[], str], out: list[Delta]) -> None:
        self._index = index
        self._new_id = new_id
        self._out = out
        self.id = ""
        self.name = ""

    def open(self, name: str) -> None:
        self.id, self.name = self._new_id(), name
        self._out.append(CallOpened(self._index, self.id, name))

    def grow(self, text: str) -> None:
        if text:
            self._out.append(CallGrew(self._index, text))

    def close(self) -> Result:
        self._out.append(CallClosed(self._index))
        return Result.WHOLE

    def cut(self) -> Result:
        """It cannot be finished."""
        return Result.CUT if self.name else Result.NONE
