"""One record: a header that says and seals everything a reader needs, then whole pages. `Layout` gives the sizes.

    ┌ header ────────────────────────────────────────┬ pages ──────────────┐
    │ magic · seal · sizes · name · fingerprint · xxh3 of each page · 0 … │ page 0 · page 1 · … │
    └ sealed: xxh3 of all that follows the seal ─────┴─────────────────────┘

The seal goes into the index as well, so that an index entry fits one header and, through its checksums, one payload.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from stepwell.base.errors import ConfigError, StoreError
from stepwell.base.units import ceil_to
from stepwell.cache.moves import Move, Name
from stepwell.store.arena import Rows

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


MAGIC = b"stepwell"
VERSION = 1
Sums: TypeAlias = npt.NDArray[np.uint64]

_FIXED = struct.Struct("<8sQHBxIIQIqq16s16s16s32s8x")
_SEALED_FROM = 16
assert _FIXED.size == FIXED_BYTES


class Damaged(StoreError):
    """Bytes on disk are not what was written there."""


@dataclass(frozen=True, slots=True)
class Header:
    """A header that has been checked. `sums` are the xxh3 of its pages."""

    kind: Kind
    name: Name
    sums: Sums
    seal: int

    @property
    def pages(self) -> int:
        return len(self.sums)


def page_sums(rows: Rows) -> Sums:
    """xxh3 of every row of [n, page_bytes]."""
    return np.fromiter((xxhash.xxh3_64_intdigest(row.data) for row in rows), dtype=np.uint64, count=len(rows))


def encode(layout: Layout, kind: Kind, name: Name, sums: Sums) -> tuple[bytes, int]:
    """The header of a record of these pages, padded, and its seal."""
    size, pages = layout.header_bytes(kind), len(sums)
    assert 1 <= pages <= layout.most_pages(kind), f"{pages} pages in a record of {kind.name}"
    fixed = _FIXED.pack(
        MAGIC,
        0,
        VERSION,
        kind,
        size,
        pages,
        pages * layout.page_bytes,
        layout.page_bytes,
        name.start,
        name.end,
        name.root,
        name.parent,
        name.digest,
        layout.fingerprint,
    )
    body = (fixed[_SEALED_FROM:] + sums.astype("<u8").tobytes()).ljust(size - _SEALED_FROM, b"\0")
    seal = xxhash.xxh3_64_intdigest(body)
    return MAGIC + seal.to_bytes(8, "little") + body, seal


def decode(layout: Layout, kind: Kind, raw: bytes | memoryview) -> Header:
    """The header in `raw`, which is as long as a header of this kind. Damaged unless every field is as it should be."""
    assert len(raw) == layout.header_bytes(kind)
    fields = _FIXED.unpack_from(raw)
    magic, seal, version, found, size, pages, payload, page_bytes, start, end, root, parent, digest, fingerprint = (
        fields
    )
    if magic != MAGIC or seal != xxhash.xxh3_64_intdigest(raw[_SEALED_FROM:]):
        raise Damaged("a record's header fails its checksum")
    if version != VERSION or fingerprint != layout.fingerprint or page_bytes != layout.page_bytes:
        raise Damaged(f"a record is of format {version} or of another model: it is not used")
    if found != kind or size != len(raw):
        raise Damaged(f"a record is of kind {found} with a header of {size} bytes, not a {kind.name} record")
    if not 1 <= pages <= layout.most_pages(kind) or payload != pages * page_bytes:
        raise Damaged(f"a record claims {pages} pages in {payload} bytes")
    sums = np.frombuffer(raw, "<u8", pages, FIXED_BYTES).astype(np.uint64)
    return Header(kind, Name(root, parent, digest, start, end), sums, seal)
