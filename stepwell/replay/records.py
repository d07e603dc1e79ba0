"""JSON from files that others wrote: opened, bounded, and blamed by file, line and field.

A file is input like any other: lines, counts and numbers have limits, and every complaint says where it stands.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from stepwell.base.errors import ConfigError

MAX_LINE = 256 * 2**20
"""Bytes of one line, or of one JSON file."""
MAX_REQUESTS = 5_000_000


@dataclass(frozen=True, slots=True)
class Record:
    """A JSON object and where it stands, for messages."""

    fields: dict[str, Any]
    where: str

    def fail(self, name: str, wanted: str) -> ConfigError:
        found = "missing" if name not in self.fields else f"not {str(self.fields[name])[:40]}"
        return ConfigError(f"{self.where}: `{name}` must be {wanted}, {found}")

    def number(self, name: str, high: float, default: float | None = None) -> float:
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= high:
            raise self.fail(name, f"a number from 0 to {high:g}")
        return float(value)

    def whole(self, name: str, low: int, high: int, default: int | None = None) -> int:
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.fail(name, f"a whole number from {low} to {high}")
        return value

    def records(self, name: str, what: str = "request") -> list[Record]:
        value = self.fields.get(name)
        if not isinstance(value, list) or not 1 <= len(value) <= MAX_REQUESTS:
            raise self.fail(name, f"a list of at least one {what}")
        return [as_record(item, f"{self.where}, {name}[{i}]") for i, item in enumerate(value)]


def as_record(value: object, where: str) -> Record:
    """`value` as a JSON object. Raises ConfigError."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: expected a JSON object, not {str(value)[:40]}")
    return Record(value, where)


def read_whole(path: Path) -> Record:
    """The one JSON object that a file is, unpacked if it is gzipped. Raises ConfigError."""
    with _opened(path) as file:
        return _parse(_bounded(file.read(MAX_LINE + 1), str(path)), str(path))


def read_lines(path: Path) -> Iterator[Record]:
    """The JSON objects of a file of lines, unpacked if it is gzipped; empty lines are passed over. Raises ConfigError."""
    with _opened(path) as file:
        number = 0
        while line := file.readline(MAX_LINE + 1):
            number += 1
            if line.strip():
                where = f"{path} line {number}"
                yield _parse(_bounded(line, where), where)


@contextmanager
def _opened(path: Path) -> Iterator[IO[bytes]]:
    """The file's bytes, unpacked; trouble in reading is the file's fault."""
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            yield gzip.GzipFile(fileobj=raw) if packed else raw  # type: ignore[misc]
    except (OSError, EOFError, zlib.error) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _bounded(data: bytes, where: str) -> bytes:
    if len(data) > MAX_LINE:
        raise ConfigError(f"{where}: longer than {MAX_LINE // 2**20} MiB; one conversation must fit in that")
    return data


def _parse(data: bytes, where: str) -> Record:
    try:
        return as_record(json.loads(data), where)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: not JSON: {error}") from error
