"""Where this process makes folders that must go even if it is killed: in the directory of its front end, which both of them remove."""

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
