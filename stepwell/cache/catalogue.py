"""What an earlier process left on disk, and nobody has asked for yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from stepwell.base.geometry import Ints
from stepwell.cache.moves import Name


@dataclass(frozen=True, slots=True)
class Dormant:
    """A record on disk that no node of the tree stands for. `record` is the store's number for it."""

    record: int
    what: Literal["kv", "image"]
    name: Name
    pages: int


class Catalogue(Protocol):
    """The dormant records of one namespace.

    It answers from an index, not from a copy of it, so that a million records cost nothing until they are asked for. Whoever
    cannot answer (a broken index) says that there is nothing. A store never merges two records of one name: the directory looks
    here before it writes.
    """

    @property
    def pages(self) -> int:
        """Pages of all dormant records: room that the disk has not got."""

    def hold(self, seconds: float = 0.0) -> bool:
        """Keep the index as it is until `let_go`, for a few look-ups; False if that would have to wait for longer: try again later."""

    def let_go(self) -> None:
        """End a hold."""

    def under(self, parent: bytes, digests: Sequence[bytes]) -> Sequence[Dormant]:
        """The dormant records whose name has this parent and one of these digests, each whole and unaltered: KV that goes on from
        there in one of these ways, an image there."""

    def adopt(self, dormant: Dormant, slots: Ints) -> None:
        """The record is dormant no more: its pages, in order, are these slots from now on."""

    def discard(self, dormant: Dormant) -> None:
        """The record is of no use to anyone."""

    def expel(self, root: bytes) -> int:
        """Discard every record of this root (see `Name.root`); how many pages that was. Looks at all records: for emergencies."""

    def trim(self, pages: int) -> int:
        """Discard the records least recently used, until `pages` pages are or none is left; how many pages that was."""
