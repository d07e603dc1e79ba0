"""What writes an answer: one form for each API that this server speaks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from stepwell.server.generation.generate import Generation, Piece
from stepwell.server.http.errors import Problem


class Form(Protocol):
    """Writes the answer to one call, whole or as server-sent events. Used once."""

    def add(self, piece: Piece) -> None:
        """Keep a piece of an answer that is sent whole."""

    def whole(self, generation: Generation) -> bytes:
        """The body, once every piece was added."""

    def begin(self) -> Iterable[bytes]:
        """Events before there is any piece."""

    def events(self, piece: Piece) -> Iterable[bytes]:
        """Events of one piece."""

    def end(self, generation: Generation) -> Iterable[bytes]:
        """Events after the last piece."""

    def beat(self) -> bytes:
        """An event that adds nothing, for a stream that has been silent: clients count events, not comments."""

    def fail(self, problem: Problem) -> Iterable[bytes]:
        """Events that end a stream which has begun and cannot go on."""
