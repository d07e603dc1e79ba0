"""Folders that must not outlive this process: they lie in its front end's directory, which goes even if this process is killed."""

from __future__ import annotations

import tempfile

_within: str | None = None


def take(directory: str) -> None:
    """All later folders of this process lie in `directory`, which another process removes."""
    global _within
    _within = directory


def new_folder(prefix: str) -> str:
    """Make a folder that this user alone may enter; among the machine's temporary files where no directory was taken."""
    return tempfile.mkdtemp(prefix=prefix, dir=_within)
