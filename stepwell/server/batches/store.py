"""Files and batches of callers in one folder, within a budget of bytes.

    files/ID.json     what a file is        files/ID.data    its bytes
    batches/ID.json   a batch, rewritten whole at each change of its state

A description is written under another name and then renamed, so that what is found after a crash is whole; the data of an answer file
grows line by line, and an unfinished last line is cut off when it is opened again.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.units import format_size, parse_size

MAX_FILES = 10_000
_ID = re.compile(r"(?:file|batch)[-_][0-9a-f]{24}", re.ASCII)
OPEN = ("validating", "in_progress", "finalizing", "cancelling")
"""States of a batch that has not ended."""


class NoRoom(StepwellError):
    """The files of all callers take as much as they may."""


class FileInfo(msgspec.Struct, frozen=True):
    """A file as callers see it; `owner` tells keys apart."""

    id: str
    owner: str
    filename: str
    purpose: str
    created_at: int
    bytes: int = 0


class Batch(msgspec.Struct, frozen=True):
    """A batch in the words of OpenAI's API. `faults`: (line, code, message) of an input file that cannot be used."""

    id: str
    owner: str
    endpoint: str
    input_file_id: str
    completion_window: str
    created_at: int
    metadata: dict[str, str] | None = None
    status: str = "validating"
    output_file_id: str = ""
    error_file_id: str = ""
    total: int = 0
    completed: int = 0
    failed: int = 0
    in_progress_at: int | None = None
    finalizing_at: int | None = None
    completed_at: int | None = None
    failed_at: int | None = None
    cancelling_at: int | None = None
    cancelled_at: int | None = None
    faults: tuple[tuple[int, str, str], ...] = ()


_Known = TypeVar("_Known", FileInfo, Batch)


class BatchStore:
    """Owns the folder. Every method but `lines` is quick; none is safe to call from two threads at once."""

    def __init__(self, folder: Path, room: int) -> None:
        """Raises ConfigError where the folder cannot be used."""
        self._folder, self._room = folder, room
        try:
            for name in ("files", "batches"):
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--batches: cannot use {folder} ({error}): give another folder") from error
        self._files = _load(folder / "files", FileInfo)
        self._batches = _load(folder / "batches", Batch)

    @classmethod
    def parse(cls, text: str) -> BatchStore:
        """Read `PATH:SIZE`. Raises ConfigError."""
        path, colon, size = text.rpartition(":")
        if not colon or not path:
            raise ConfigError(
                f"--batches {text!r} needs a folder and a size: write PATH:SIZE, such as /var/lib/stepwell:10GiB"
            )
        return cls(Path(path), parse_size(size))

    @property
    def free(self) -> int:
        """Bytes that may still be written; 0 where there are as many files as there may be."""
        return 0 if len(self._files) >= MAX_FILES else max(0, self._room - sum(f.bytes for f in self._files.values()))

    def add_file(self, owner: str, filename: str, purpose: str, source: BinaryIO | None) -> FileInfo:
        """A new file with the bytes of `source`. Raises NoRoom where there is no room."""
        info = FileInfo(f"file-{os.urandom(12).hex()}", owner, filename[:255], purpose, _now())
        left = self.free
        with self._data(info.id).open("wb") as file:
            while source is not None and (chunk := source.read(1 << 20)):
                left -= len(chunk)
                if left < 0:
                    break
                file.write(chunk)
        if left < 0 or not self.free:
            self._data(info.id).unlink()
            raise NoRoom(
                f"the files of all callers may take {format_size(self._room)}: delete some, or raise --batches"
            )
        return self.measured(info)

    def measured(self, info: FileInfo) -> FileInfo:
        """The same with the size that it has now, kept."""
        info = msgspec.structs.replace(info, bytes=self._data(info.id).stat().st_size)
        self._files[info.id] = info
        self._write("files", info)
        return info

    def file(self, owner: str, file_id: str) -> FileInfo | None:
        """The file, where it is this owner's."""
        info = self._files.get(file_id)
        return info if info is not None and info.owner == owner else None

    def files(self, owner: str) -> list[FileInfo]:
        return sorted((f for f in self._files.values() if f.owner == owner), key=lambda f: f.created_at, reverse=True)

    def path(self, info: FileInfo) -> Path:
        """Where its bytes are."""
        return self._data(info.id)

    def delete_file(self, info: FileInfo) -> None:
        del self._files[info.id]
        (self._folder / "files" / f"{info.id}.json").unlink(missing_ok=True)
        self._data(info.id).unlink(missing_ok=True)

    def lines(self, file_id: str) -> Iterator[bytes]:
        """The lines of a file that are not empty."""
        with self._data(file_id).open("rb") as file:
            for line in file:
                if line.strip():
                    yield line

    def append(self, file_id: str) -> BinaryIO:
        """The file opened to be written on, without an unfinished last line."""
        path = self._data(file_id)
        data = path.read_bytes() if path.exists() else b""
        file = path.open("r+b" if path.exists() else "w+b")
        file.truncate(data.rfind(b"\n") + 1)
        file.seek(0, os.SEEK_END)
        return file

    def keep(self, batch: Batch) -> Batch:
        """Remember this state of a batch; returns it."""
        self._batches[batch.id] = batch
        self._write("batches", batch)
        return batch

    def batch(self, owner: str, batch_id: str) -> Batch | None:
        """The batch, where it is this owner's."""
        batch = self._batches.get(batch_id)
        return batch if batch is not None and batch.owner == owner else None

    def batches(self, owner: str | None = None) -> list[Batch]:
        """All batches, or one owner's, the oldest first."""
        mine = (b for b in self._batches.values() if owner is None or b.owner == owner)
        return sorted(mine, key=lambda b: (b.created_at, b.id))

    def _data(self, file_id: str) -> Path:
        assert _ID.fullmatch(file_id), "ids are made here"
        return self._folder / "files" / f"{file_id}.data"

    def _write(self, kind: str, what: FileInfo | Batch) -> None:
        path = self._folder / kind / f"{what.id}.json"
        fresh = path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(what))
        fresh.replace(path)


def _load(folder: Path, kind: type[_Known]) -> dict[str, _Known]:
    """What is described there; a description that cannot be read counts as none."""
    found: dict[str, _Known] = {}
    for path in folder.glob("*.json"):
        try:
            what = msgspec.json.decode(path.read_bytes(), type=kind)
        except (OSError, msgspec.DecodeError):
            continue
        if what.id == path.stem and _ID.fullmatch(what.id):
            found[what.id] = what
    return found


def _now() -> int:
    return int(time.time())
