"""Which model a checkpoint is, for what outlives the process: the cache of another model must never be read.

config.json counts as a whole, in canonical form. Of the weights a sample counts: each file's name and size, its header (names, types,
shapes and places of all tensors), its first and last MiB and 64 pieces of 4 KiB spread over the rest. So a checkpoint that differs
from another in a few values of the same file, between the pieces, is taken for it: hashing hundreds of gigabytes would delay every
start by minutes. Whoever edits weights in place must remove the cache.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from blake3 import blake3

from stepwell.base.errors import ConfigError
from stepwell.model.files import read_json

_LONGEST_CONFIG = 1 << 20
_LONGEST_HEADER = 100 << 20
_END = 1 << 20
_PIECE = 4096
_PIECES = 64


def fingerprint(parts: Mapping[str, str]) -> bytes:
    """32 bytes that differ wherever one of `parts` does, whatever their order."""
    return blake3(_canonical(dict(parts))).digest()


def config_digest(directory: Path) -> str:
    """Of `directory/config.json`, whatever its spacing and order of keys. Raises ConfigError."""
    return blake3(_canonical(read_json(directory / "config.json", _LONGEST_CONFIG))).hexdigest()


def weights_digest(directory: Path) -> str:
    """Of a sample of the `.safetensors` files in `directory` (see the module). Raises ConfigError where one cannot be read."""
    digest = blake3()
    for path in sorted(directory.glob("*.safetensors")):
        try:
            for piece in _sample(path):
                digest.update(len(piece).to_bytes(8, "little") + piece)
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}; check who owns the checkpoint") from error
    return digest.hexdigest()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _sample(path: Path) -> Iterator[bytes]:
    """Name, size, header, and pieces of the data."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        yield path.name.encode()
        yield str(size).encode()
        length = min(int.from_bytes(file.read(8), "little"), _LONGEST_HEADER)
        yield file.read(length)
        for offset, count in _places(8 + length, size):
            file.seek(offset)
            yield file.read(count)


def _places(start: int, end: int) -> Iterator[tuple[int, int]]:
    """(offset, bytes) of the pieces of [start, end): both ends, and what is spread between them."""
    if end - start <= 2 * _END:
        yield start, max(0, end - start)
        return
    yield start, _END
    yield end - _END, _END
    between = end - start - 2 * _END
    for i in range(_PIECES):
        yield start + _END + between * i // _PIECES, _PIECE
