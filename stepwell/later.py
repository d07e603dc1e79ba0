"""Commands whose modules are imported when they are used, so that `--help` and mistyped names are answered at once."""

from __future__ import annotations

import importlib
from typing import Any

import typer
from typer.core import TyperCommand


class LaterCommand(TyperCommand):
    """Stands in a list of commands for "module:function", or for a whole app "module:app" of commands."""

    def __init__(self, name: str, place: str, text: str) -> None:
        super().__init__(name, help=text)
        self._place = place

    def real(self) -> Any:
        """The command itself. Imports its module."""
        module, _, name = self._place.partition(":")
        found = getattr(importlib.import_module(module), name)
        if isinstance(found, typer.Typer):
            return typer.main.get_command(found)
        alone = typer.Typer(add_completion=False)
        alone.command(self.name)(found)
        return typer.main.get_command(alone)

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """A context of the real command: whatever is done with it, help included, is done by that."""
        return self.real().make_context(info_name, args, parent=parent, **extra)
