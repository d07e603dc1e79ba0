"""Copies as plain arrays: which bytes of memory go where."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stepwell.base.geometry import Ints

Words: TypeAlias = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Bytes that lie in several places of memory, in order: uint64 addresses [n] and sizes [n], none of them 0."""

    addresses: Words
    sizes: Words

    @classmethod
    def of_rows(cls, base: int, width: int, rows: Ints) -> Spans:
        """Rows of `width` bytes of an array that begins at address `base`."""
        return cls(np.uint64(base) + rows.astype(np.uint64) * np.uint64(width), np.full(len(rows), width, np.uint64))


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Piece i is `sizes[i]` bytes from address `sources[i]` to address `targets[i]`; all uint64 [n]. No two overlap."""

    targets: Words
    sources: Words
    sizes: Words

    @property
    def bytes(self) -> int:
        return int(self.sizes.sum())


def pieces(source: Spans, target: Spans) -> Pieces:
    """Pieces that fill `target` with the bytes of `source`, in order, which may have more of them. O(spans) in numpy.

    source   ├────────┼────────┼────────┤
    target   ├──────┼──────────┼──┤         →   4 pieces
    """
    if len(source.sizes) == len(target.sizes) and np.array_equal(source.sizes, target.sizes):
        return Pieces(target.addresses, source.addresses, target.sizes)
    from_ends, to_ends = np.cumsum(source.sizes), np.cumsum(target.sizes)
    assert from_ends[-1] >= to_ends[-1], f"{from_ends[-1]} bytes cannot fill {to_ends[-1]}"
    ends = np.union1d(from_ends[from_ends < to_ends[-1]], to_ends)
    begins = np.concatenate((np.zeros(1, np.uint64), ends[:-1]))
    at, to = np.searchsorted(from_ends, begins, "right"), np.searchsorted(to_ends, begins, "right")
    sources = source.addresses[at] + begins - (from_ends - source.sizes)[at]
    targets = target.addresses[to] + begins - (to_ends - target.sizes)[to]
    return Pieces(targets, sources, ends - begins)
