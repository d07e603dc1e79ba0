"""An answer on the screen as it comes: Markdown in a terminal, plain text in a pipe."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from markdown_it import MarkdownIt
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.markup import escape

from stepwell.chat.talkers import Piece, harmless

_FULL, _EMPTY, _WIDTH = "█", "░", 12
_REFRESHES = 12


def finished(text: str) -> int:
    """How many characters at the start of a Markdown text no later one can change: all blocks but the last."""
    starts = [
        token.map[0] for token in MarkdownIt("commonmark").enable("table").parse(text) if token.map and not token.level
    ]
    if len(starts) < 2:
        return 0
    return sum(len(line) for line in text.splitlines(keepends=True)[: starts[-1]])


def meter(tokens: int, most: int | None) -> str:
    """How full the context is, as a bar and in words; "" where nothing is known."""
    if not tokens:
        return ""
    if most is None:
        return f"context {tokens:,} tokens"
    full = min(_WIDTH, round(_WIDTH * tokens / most))
    return f"context {_FULL * full}{_EMPTY * (_WIDTH - full)} {tokens / most:.0%}, {tokens:,} of {most:,} tokens"


class AnswerScreen:
    """Shows pieces within a `with`; `text` is the answer so far, without thoughts.

    In a terminal the last block is drawn again as it grows; blocks before it are printed for good, so that no answer is too long for
    the screen.
    """

    def __init__(self, console: Console) -> None:
        self.text = ""
        self._console = console
        self._open = ""  # the end of the text that may still change
        self._live: Live | None = None
        self._thinking = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._settle()
        if (self.text or self._thinking) and not self._console.is_terminal:
            self._console.print()

    def show(self, piece: Piece) -> None:
        text = harmless(piece.text)
        if piece.thought:
            self._thinking = True
            self._print(text, "dim")
            return
        if self._thinking:
            self._thinking = False
            self._print("\n\n", None)
        self.text += text
        if self._console.is_terminal:
            self._grow(text)
        else:
            self._print(text, None)

    def _print(self, text: str, style: str | None) -> None:
        self._console.print(escape(text), end="", style=style, highlight=False, soft_wrap=True)

    def _grow(self, text: str) -> None:
        whole = self._open + text
        done = finished(whole) if "\n" in text else 0
        if done:
            self._open = whole[:done]
            self._settle()
            self._console.print()
        self._open = whole[done:]
        if self._live is None:
            self._live = Live(
                console=self._console, get_renderable=lambda: Markdown(self._open), refresh_per_second=_REFRESHES
            )
            self._live.start()

    def _settle(self) -> None:
        """Leave what is drawn as it is."""
        if self._live is not None:
            self._live.stop()
            self._live = None
