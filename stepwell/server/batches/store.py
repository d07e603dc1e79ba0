"""Files and batches of callers in one folder, within a budget of bytes.

    files/ID.json     what a file is        files/ID.data    its bytes
    batches/ID.json   a batch, rewritten whole at each change of its state

A description is written under another name and then renamed, so that what is found after a crash is whole; the data of an answer file
grows line by line, and its last line may be unfinished. How many answers a batch has is read from these, so it is not written at each.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, TypeVar

import msgspec

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.units import format_size, parse_size

MAX_FILES = 10_000
MAX_BATCHES = 1_000
"""Batches of one owner that are remembered."""
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


@dataclass(frozen=True, slots=True)
class Upload:
    """Bytes that are being written under a name, beside everything else; `room` are those that they may be."""

    info: FileInfo
    path: Path
    room: int

    def write(self, source: BinaryIO) -> int:
        """Copy `source` and return its bytes. Raises NoRoom, and keeps nothing, where there are more than `room`. Blocks."""
        with self.path.open("wb") as file:
            while chunk := source.read(1 << 20):
                if file.tell() + len(chunk) > self.room:
                    self.path.unlink()
                    raise NoRoom(f"{self.info.filename}: more than the {self.room:,} bytes that are left")
                file.write(chunk)
            return file.tell()


class BatchStore:
    """Owns the folder and the account of its bytes. Methods are quick; none is safe to call from two threads at once."""

    def __init__(self, folder: Path, room: int) -> None:
        """Raises ConfigError where the folder cannot be used."""
        self._folder, self._room = folder, room
        try:
            for name in ("files", "batches"):
                (folder / name).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--batches: cannot use {folder} ({error}): give another folder") from error
        self._files = {name: _measured(folder, info) for name, info in _load(folder / "files", FileInfo).items()}
        self._batches = _load(folder / "batches", Batch)
        self._used = sum(info.bytes for info in self._files.values())

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
        return 0 if len(self._files) >= MAX_FILES else max(0, self._room - self._used)

    def upload(self, owner: str, filename: str) -> Upload:
        """Begin a file of a caller; `add` it once it has been written. Raises NoRoom."""
        self._require(1)
        info = FileInfo(f"file-{os.urandom(12).hex()}", owner, filename[:255], "batch", _now())
        return Upload(info, self.path(info.id), self.free)

    def add(self, uploaded: Upload, size: int) -> FileInfo:
        """What has been written is a file of its owner now. Raises NoRoom, and keeps nothing, where others have taken the room."""
        try:
            self._require(size)
        except NoRoom:
            uploaded.path.unlink()
            raise
        return self._put(msgspec.structs.replace(uploaded.info, bytes=size))

    def add_answers(self, owner: str, filename: str) -> FileInfo:
        """A new file without a line. Raises NoRoom."""
        self._require(1)
        info = FileInfo(f"file-{os.urandom(12).hex()}", owner, filename[:255], "batch_output", _now())
        self.path(info.id).touch()
        return self._put(info)

    def grow(self, file_id: str, count: int) -> None:
        """`count` more bytes are about to be written to a file of answers. Raises NoRoom. The size is kept with `settle`."""
        self._require(count)
        self._resize(self._files[file_id], self._files[file_id].bytes + count)

    def settle(self, file_id: str) -> None:
        """Keep the size that the file has now."""
        if file_id in self._files:
            self._resize(self._files[file_id], self.path(file_id).stat().st_size)
            self._write("files", self._files[file_id])

    def _require(self, count: int) -> None:
        if count > self.free:
            raise NoRoom(
                f"the files of all callers may take {format_size(self._room)}: delete some, or raise --batches"
            )

    def _put(self, info: FileInfo) -> FileInfo:
        self._files[info.id] = info
        self._used += info.bytes
        self._write("files", info)
        return info

    def _resize(self, info: FileInfo, size: int) -> None:
        self._used += size - info.bytes
        self._files[info.id] = msgspec.structs.replace(info, bytes=size)

    def file(self, owner: str, file_id: str) -> FileInfo | None:
        """The file, where it is this owner's."""
        info = self._files.get(file_id)
        return info if info is not None and info.owner == owner else None

    def files(self, owner: str) -> list[FileInfo]:
        return sorted((f for f in self._files.values() if f.owner == owner), key=lambda f: f.created_at, reverse=True)

    def path(self, file_id: str) -> Path:
        """Where the bytes of a file are."""
        assert _ID.fullmatch(file_id), "ids are made here"
        return self._folder / "files" / f"{file_id}.data"

    def delete_file(self, info: FileInfo) -> None:
        self._used -= self._files.pop(info.id).bytes
        (self._folder / "files" / f"{info.id}.json").unlink(missing_ok=True)
        self.path(info.id).unlink(missing_ok=True)

    def begin(self, batch: Batch) -> Batch:
        """Remember a new batch; returns it. The oldest of its owner's that have ended make room. Raises NoRoom where none has."""
        mine = self.batches(batch.owner)
        ended = [one for one in mine if one.status not in OPEN]
        if len(mine) >= MAX_BATCHES:
            if not ended:
                raise NoRoom(f"{len(mine):,} batches are open: wait for one to end, or cancel one")
            del self._batches[ended[0].id]
            (self._folder / "batches" / f"{ended[0].id}.json").unlink(missing_ok=True)
        return self.keep(batch)

    def count(self, batch: Batch) -> None:
        """Remember how far a batch is, until the server ends."""
        self._batches[batch.id] = batch

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


def _measured(folder: Path, info: FileInfo) -> FileInfo:
    """With the bytes that it has: a server that ends at once has not kept the size of its last answers."""
    path = folder / "files" / f"{info.id}.data"
    return msgspec.structs.replace(info, bytes=path.stat().st_size if path.exists() else 0)


def _now() -> int:
    return int(time.time())
