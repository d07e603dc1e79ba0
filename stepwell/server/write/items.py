"""An answer as a row of items, in the order in which the model wrote them: thoughts, texts, calls of tools."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from stepwell.server.write.deltas import CallClosed, CallGrew, CallOpened, Delta, Said, Thought

Kind: TypeAlias = Literal["thought", "text", "call"]


@dataclass(slots=True)
class Item:
    """One item as it grows. `id` and `name` are those of a call; `closed` once nothing more comes of it."""

    index: int
    kind: Kind
    id: str = ""
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    closed: bool = False

    @property
    def text(self) -> str:
        """Text, or the arguments of a call as JSON text."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Opened:
    """An item begins; the one before it has been closed."""

    item: Item


@dataclass(frozen=True, slots=True)
class Grew:
    """`text` was added to an item."""

    item: Item
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """Nothing more comes of an item."""

    item: Item


Change: TypeAlias = Opened | Grew | Closed


class Items:
    """The items of one answer so far."""

    def __init__(self) -> None:
        self.all: list[Item] = []
        self._open: Item | None = None

    def take(self, deltas: Iterable[Delta]) -> list[Change]:
        """What changes with more of the answer. A call grows only while it is the last item."""
        out: list[Change] = []
        for delta in deltas:
            match delta:
                case Said(text):
                    out += self._write("text", text)
                case Thought(text):
                    out += self._write("thought", text)
                case CallOpened(_, id_, name):
                    out += [*self.close(), self._begin("call", id_, name)]
                case CallGrew(_, text):
                    out += self._write("call", text)
                case CallClosed():
                    out += self.close()
        return out

    def close(self) -> list[Change]:
        """The answer has ended, or another item begins."""
        closed, self._open = self._open, None
        if closed is None:
            return []
        closed.closed = True
        return [Closed(closed)]

    def _begin(self, kind: Kind, id_: str = "", name: str = "") -> Opened:
        self._open = Item(len(self.all), kind, id_, name)
        self.all.append(self._open)
        return Opened(self._open)

    def _write(self, kind: Kind, text: str) -> list[Change]:
        out: list[Change] = []
        if self._open is None or self._open.kind != kind:
            assert kind != "call", "arguments without a call"
            out += [*self.close(), self._begin(kind)]
        assert self._open is not None
        self._open.pieces.append(text)
        return [*out, Grew(self._open, text)]
