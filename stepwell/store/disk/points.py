"""The moments between which a process can die, named, so that tests can kill it at each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Point: TypeAlias = Callable[[str], None]
"""Called with one of POINTS as it is passed. What it raises is treated as a failure of the system at that place."""

POINTS = (
    "segment.before",  # a new segment's file is about to be made
    "segment.made",  # it is there, its name perhaps not yet durable
    "segment.after",
    "write.before",  # per record
    "write.half",
    "write.after",
    "verify.before",
    "verify.after",
    "sync.before",  # per batch
    "sync.after",
    "insert.before",  # inside the transaction of a batch
    "insert.after",
    "commit.after",
    "unlink.before",  # a segment without live pages
    "unlink.after",
    "compact.before",  # a segment is about to be rewritten
    "compact.copied",
    "compact.synced",
    "compact.committed",
    "compact.unlinked",
    "remove.before",  # a whole namespace of another model or format
    "remove.after",
)
"""In the order in which a write meets them; numbered by their place here."""


def no_point(name: str) -> None:
    """Passes every point."""
