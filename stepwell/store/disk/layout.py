"""How big things are on disk."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from stepwell.base.errors import ConfigError
from stepwell.base.units import ceil_to
from stepwell.cache.moves import Move

FIXED_BYTES = 144
"""Bytes of a record's header before its page checksums."""


class Kind(IntEnum):
    """What a record holds."""

    KV = 1
    IMAGE = 2

    @classmethod
    def of(cls, move: Move) -> Kind:
        return cls.IMAGE if move.what == "image" else cls.KV

    @property
    def what(self) -> Literal["kv", "image"]:
        """The word of the directory for it."""
        return "image" if self is Kind.IMAGE else "kv"


@dataclass(frozen=True, slots=True)
class Layout:
    """What a namespace is made for.

    page_bytes   bytes of one slot                 block   tokens in one page of KV
    image_pages  pages of one image, or 0          chunk   tokens at most in one record of KV
    fingerprint  32 bytes that tell model, element types and layout: another fingerprint, another namespace
    """

    page_bytes: int
    block: int
    image_pages: int
    chunk: int
    fingerprint: bytes

    def __post_init__(self) -> None:
        if min(self.page_bytes, self.block, self.chunk) < 1 or self.image_pages < 0 or self.chunk % self.block:
            raise ConfigError(f"a disk layout needs positive sizes and a chunk of whole blocks, not {self}")
        if len(self.fingerprint) != 32:
            raise ConfigError(f"the fingerprint of a disk layout has 32 bytes, not {len(self.fingerprint)}")

    @property
    def alignment(self) -> int:
        """Records start, and their pages start, on multiples of this."""
        return 4096 if self.page_bytes % 4096 == 0 else 8

    def most_pages(self, kind: Kind) -> int:
        """Pages of the largest record of this kind."""
        return self.image_pages if kind is Kind.IMAGE else self.chunk // self.block

    def header_bytes(self, kind: Kind) -> int:
        """Bytes of a header with its padding: the same for all records of a kind, so that no reader has to trust one."""
        return ceil_to(FIXED_BYTES + 8 * self.most_pages(kind), self.alignment)

    def record_bytes(self, kind: Kind, pages: int) -> int:
        """Bytes of a record in its segment."""
        return ceil_to(self.header_bytes(kind) + pages * self.page_bytes, self.alignment)

    @property
    def largest(self) -> int:
        """Bytes of the largest record."""
        return max(self.record_bytes(kind, self.most_pages(kind)) for kind in Kind)
