"""The text of an answer as readers see it: it comes in pieces, and what has been read goes."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias, TypeVar

_Result = TypeVar("_Result")

Steps: TypeAlias = Generator[None, None, _Result]
"""A reader at work. It yields where it needs more text, which it never does once the text has ended."""


class Feed:
    """Text from `at` on has not been read. Places in `text` hold until more of it comes.

    ended  nothing more will come
    cut    it was ended from outside (there was no room for more), so that the model may have meant to go on
    kept   what is read is kept here; None: it is not
    """

    __slots__ = ("_taken", "at", "cut", "ended", "kept", "text")

    def __init__(self) -> None:
        self.text = ""
        self.at = 0
        self.ended = False
        self.cut = False
        self._taken: list[str] = []
        self.kept: list[str] | None = None

    @property
    def closed(self) -> bool:
        """Whether the model itself has ended its text."""
        return self.ended and not self.cut

    def push(self, text: str) -> None:
        self.text = self.text[self.at :] + text
        self.at = 0

    def take(self, end: int) -> str:
        """The text up to `end`, which now has been read."""
        taken = self.text[self.at : end]
        self._taken.append(taken)
        if self.kept is not None:
            self.kept.append(taken)
        self.at = end
        return taken

    def mark(self) -> None:
        """From here on `since_mark` tells."""
        self._taken.clear()

    def since_mark(self) -> str:
        """All that was read since `mark`."""
        return "".join(self._taken)
