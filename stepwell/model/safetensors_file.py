"""One safetensors file, read by offset into fresh memory: nothing stays mapped, so a later write to the file changes no weight.

    ┌ 8 bytes ┬ header: JSON ──────────────────────────────────┬ data ──────────────────┐
    │ its size│ {name: {dtype, shape, data_offsets}, …}         │ offsets count from here │

Format: https://github.com/huggingface/safetensors, "Format".
"""

from __future__ import annotations

import json
import math
import os
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepwell.base.errors import ConfigError
from stepwell.model.cuts import Cut, Shape
from stepwell.model.staging import PIECE, Place

_LONGEST_HEADER = 100 << 20
"""Bytes; the limit of the reference implementation."""
_SHORTEST = 64 << 10
"""Bytes. Shorter runs are not read one by one: what lies between them is read as well, and thrown away."""
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a tensor lies in its file: element type as the format names it, and the file's bytes [start, end)."""

    dtype: str
    shape: Shape
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Runs:
    """Bytes of a file that become one tensor: the tensor's byte at which each run begins, and after the last; the file's."""

    begins: tuple[int, ...]
    offsets: tuple[int, ...]

    @classmethod
    def of(cls, runs: Sequence[tuple[int, int]]) -> Runs:
        """From (offset, bytes) of each, in the tensor's order."""
        return cls((0, *accumulate(count for _, count in runs)), tuple(offset for offset, _ in runs))

    @property
    def bytes(self) -> int:
        return self.begins[-1]

    def within(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """(offset, bytes) in the file of the tensor's bytes [start, end). O(log of all runs + those)."""
        at = bisect_right(self.begins, start) - 1
        while start < end:
            count = min(end, self.begins[at + 1]) - start
            yield self.offsets[at] + start - self.begins[at], count
            start, at = start + count, at + 1


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A tensor that is being read. `cut`: the part of it that is wanted, where all of it is read."""

    tensor: Tensor
    place: Place
    pieces: tuple[Future[None], ...]
    cut: Cut | None

    def result(self) -> Tensor:
        """Wait until it is there. Raises ConfigError where it cannot be read."""
        for piece in self.pieces:
            piece.result()
        self.place.settle()
        return self.tensor if self.cut is None else self.cut.of(self.tensor)


class SafetensorsFile:
    """An open file; `close` it. `entries` are its tensors by name."""

    __slots__ = ("_file", "_path", "entries")

    def __init__(self, path: Path) -> None:
        """Reads the header only. Raises ConfigError where the file is missing or is not a safetensors file."""
        self._path = path
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; download the checkpoint again") from error
        try:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(
                    self._file, 0, 0, os.POSIX_FADV_SEQUENTIAL
                )  # read further ahead than for random access
            self.entries: Mapping[str, Entry] = dict(self._read_header())
        except ConfigError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; tensors already read stay. Call it once."""
        os.close(self._file)

    def begin(self, name: str, threads: ThreadPoolExecutor, place: Place, cut: Cut | None = None) -> Reading:
        """Have `threads` read one tensor, as stored, into fresh memory of `place`; of one with a `cut` that part. Raises ConfigError.

        A part that lies in many small pieces, as columns do, is cut out of the whole.
        """
        entry = self.entries[name]
        if entry.dtype not in _DTYPES:
            raise ConfigError(f"{self._path} holds {name} as {entry.dtype}: supported are {', '.join(_DTYPES)}")
        dtype, shape = _DTYPES[entry.dtype], entry.shape
        runs = Runs.of([(entry.start, entry.end - entry.start)])
        if cut is not None and cut.shortest(shape, dtype.itemsize) >= _SHORTEST:
            runs = Runs.of([(entry.start + offset, count) for offset, count in cut.runs(shape, dtype.itemsize)])
            shape, cut = cut.shape(shape), None
        target = place.new(shape, dtype)

        def fill(at: int) -> None:
            place.fill(target, at, min(at + PIECE, runs.bytes), lambda into: self._fill_from(runs, into, at))

        return Reading(target.tensor, place, tuple(threads.submit(fill, at) for at in range(0, runs.bytes, PIECE)), cut)

    def _fill_from(self, runs: Runs, into: memoryview, at: int) -> None:
        """Fill `into` with what the runs hold from byte `at` on."""
        for offset, count in runs.within(at, at + len(into)):
            self._fill(into[:count], offset)
            into = into[count:]

    def _fill(self, into: memoryview, offset: int) -> None:
        while into:
            try:
                count = os.preadv(self._file, [into], offset)
            except OSError as error:
                raise ConfigError(f"cannot read {self._path}: {error.strerror}") from error
            if not count:
                raise self._damaged("it has become shorter while it was read")
            into, offset = into[count:], offset + count

    def _read_header(self) -> Iterator[tuple[str, Entry]]:
        size = os.fstat(self._file).st_size
        length = int.from_bytes(self._bytes(8, 0), "little") if size >= 8 else size
        if length > min(_LONGEST_HEADER, size - 8):
            raise self._damaged(f"its header would have {length} bytes, the file has {size}")
        try:
            header = json.loads(self._bytes(length, 8))
        except (ValueError, RecursionError) as error:
            raise self._damaged(f"its header is not JSON: {error}") from error
        if not isinstance(header, dict):
            raise self._damaged("its header is not an object")
        for name, value in header.items():
            if name != "__metadata__":
                yield name, self._entry(name, value, 8 + length, size)

    def _entry(self, name: str, value: Any, data: int, size: int) -> Entry:
        match value:
            case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(start), int(end)]} if all(
                isinstance(n, int) and n >= 0 for n in shape
            ):
                entry = Entry(dtype, tuple(shape), data + start, data + end)
            case _:
                raise self._damaged(f"the header's entry for {name} has no dtype, shape and data_offsets")
        if not data <= entry.start <= entry.end <= size:
            raise self._damaged(f"{name} would lie at bytes {entry.start} to {entry.end} of {size}")
        known = _DTYPES.get(dtype)
        if known is not None and math.prod(entry.shape) * known.itemsize != entry.end - entry.start:
            raise self._damaged(f"{name} {list(entry.shape)} of {dtype} has {entry.end - entry.start} bytes")
        return entry

    def _bytes(self, count: int, offset: int) -> bytes:
        into = bytearray(count)
        self._fill(memoryview(into), offset)
        return bytes(into)

    def _damaged(self, what: str) -> ConfigError:
        return ConfigError(f"cannot read {self._path}: {what}; download the checkpoint again")
