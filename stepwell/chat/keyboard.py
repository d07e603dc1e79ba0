"""A line from the user: with arrow keys, history and completion in a terminal, as it comes from a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from rich.console import Console

_PROMPT = "> "


class Keyboard(Protocol):
    """Whoever types."""

    def line(self, below: Callable[[], str]) -> str | None:
        """The next line, stripped; None at the end. `below` is shown under it while it is typed."""


class PipeKeyboard:
    """Lines of a pipe or file."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def line(self, below: Callable[[], str]) -> str | None:
        try:
            return self._console.input(_PROMPT).strip()
        except (EOFError, KeyboardInterrupt):
            return None


class TerminalKeyboard:
    """A terminal. Ctrl-C drops what was typed, and ends where nothing was; Alt-Enter begins a new line."""

    def __init__(self, commands: Sequence[str], history: History) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=history,
            completer=WordCompleter(list(commands), sentence=True),
            complete_while_typing=False,
            key_bindings=_keys(),
        )

    def line(self, below: Callable[[], str]) -> str | None:
        try:
            return self._session.prompt(_PROMPT, bottom_toolbar=below).strip()
        except (EOFError, KeyboardInterrupt):
            return None


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("escape", "enter")
    def new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    def drop(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return keys


def open_keyboard(console: Console, commands: Sequence[str], history: Path | None) -> Keyboard:
    """A terminal's where there is one. `history`: the file that keeps what was typed, readable by its owner alone; None: none."""
    if not (sys.stdin.isatty() and console.is_terminal):
        return PipeKeyboard(console)
    return TerminalKeyboard(commands, _kept(history) if history is not None else InMemoryHistory())


def _kept(file: Path) -> History:
    """What was typed in former sessions; in memory alone where the file cannot be written."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        with file.open("ab"):
            return FileHistory(str(file))
    except OSError:
        return InMemoryHistory()
