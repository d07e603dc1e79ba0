"""A chunk of KV or an image as one object: a header that says what it is, then its pages.

    magic, kind, start, end ‖ digests of root, parent and prefix ‖ page bytes, pages ‖ xxh3-128 of all that and of the pages ‖ pages

Whoever hands the object back is not trusted: it may be torn, of another prompt, or of another length. The checksum finds accidents; it
is no signature, so a store that others can write to must be as trusted as the engine.
"""

from __future__ import annotations

import struct

import numpy as np
import xxhash

from stepwell.base.errors import StoreError
from stepwell.cache.external.ledger import What
from stepwell.cache.moves import Name
from stepwell.store.arena import Rows

_HEAD = struct.Struct("<8s8sqq16s16s16sqq")
_MAGIC = b"stepobj1"
SUM = 16
HEADER = _HEAD.size + SUM
"""Bytes before the pages."""


def size_of(pages: int, page_bytes: int) -> int:
    """Bytes of an object of so many pages."""
    return HEADER + pages * page_bytes


def write(target: Rows, what: What, name: Name, rows: Rows) -> None:
    """Fill `target`, uint8 [size_of(...)], with the object of `rows`, uint8 [pages, page_bytes]."""
    pages, page_bytes = rows.shape
    flat = np.ascontiguousarray(rows).reshape(-1)
    head = _head(what, name, pages, page_bytes)
    target[: _HEAD.size] = np.frombuffer(head, np.uint8)
    target[_HEAD.size : HEADER] = np.frombuffer(_sum(head, flat), np.uint8)
    target[HEADER:] = flat


def read(source: Rows, what: What, name: Name, pages: int, page_bytes: int, rank: int = 0) -> Rows:
    """The pages, uint8 [pages, page_bytes], a view into `source`. StoreError, which names the rank, unless it is whole and exactly what
    `name` says."""
    where = describe(what, name, rank)
    if source.ndim != 1 or len(source) != size_of(pages, page_bytes):
        raise StoreError(f"{where}: {source.size} bytes in place of {size_of(pages, page_bytes)}")
    head, flat = source[: _HEAD.size].tobytes(), source[HEADER:]
    if head != _head(what, name, pages, page_bytes):
        raise StoreError(f"{where}: the object is of something else")
    if source[_HEAD.size : HEADER].tobytes() != _sum(head, flat):
        raise StoreError(f"{where}: the object fails its checksum")
    return flat.reshape(pages, page_bytes)


def describe(what: What, name: Name, rank: int = 0) -> str:
    """Which leg, tokens and rank: for errors."""
    if what == "image":
        return f"state at token {name.end}, rank {rank}"
    return f"KV of tokens {name.start} to {name.end}, rank {rank}"


def _head(what: What, name: Name, pages: int, page_bytes: int) -> bytes:
    digests = name.root, name.parent, name.digest
    return _HEAD.pack(_MAGIC, what.encode(), name.start, name.end, *digests, page_bytes, pages)


def _sum(head: bytes, flat: Rows) -> bytes:
    state = xxhash.xxh3_128(head)
    state.update(flat.data)
    return state.digest()
