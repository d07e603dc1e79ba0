"""One record: a header that says and seals everything a reader needs, then whole pages.

    ┌ header ────────────────────────────────────────┬ pages ──────────────┐
    │ magic · seal · sizes · name · fingerprint · xxh3 of each page · 0 … │ page 0 · page 1 · … │
    └ sealed: xxh3 of all that follows the seal ─────┴─────────────────────┘

The seal goes into the index as well, so that an index entry fits one header and, through its checksums, one payload.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash

from stepwell.base.errors import StoreError
from stepwell.cache.moves import Name
from stepwell.store.arena import Rows
from stepwell.store.disk.layout import FIXED_BYTES, Kind, Layout

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
