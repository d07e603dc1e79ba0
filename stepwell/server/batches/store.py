"""Files and batches of callers in one folder, within a budget of bytes, of which each owner has an equal share.

    files/ID.json     what a file is        files/ID.data    its bytes
    batches/ID.json   a batch, rewritten whole at each change of its state

A description is written under another name and then renamed, so that what is found after a crash is whole; the data of an answer file
grows line by line, and its last line may be unfinished. How many answers a batch has is read from these, so it is not written at each.
The data of a file come before its description and go after it: the start removes data that nothing describes.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from stepwell.base.errors import ConfigError, StepwellError
from stepwell.base.units import format_size, parse_size

MAX_FILES = 10_000
"""Files of one owner."""
MAX_BATCHES = 1_000
"""Batches of one owner that are remembered."""
_ID = re.compile(r"(?:file|batch)[-_][0-9a-f]{24}", re.ASCII)
OPEN = ("validating", "in_progress", "finalizing", "cancelling")
"""States of a batch that has not ended."""


class NoRoom(StepwellError):
    """An owner's files, or those of all, take as much as they may, or an owner has as many files or batches as one may have."""


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
    """Owns the folder and the account of its bytes. Methods are quick; none is safe to call from two threads at once."""

    def __init__(self, folder: Path, room: int, owners: int = 1) -> None:
        """`room`: bytes, shared evenly by so many owners. Raises ConfigError where the folder cannot be used."""
        self._folder, self._room, self._owners = folder, room, owners
        try:
            for name in ("files", "batches"):
                (folder / name).mkdir(parents=True, exist_ok=True)
                _clean(folder / name)
        except OSError as error:
            raise ConfigError(f"--batches: cannot use {folder} ({error}): give another folder") from error
        self._files = {name: _measured(folder, info) for name, info in _load(folder / "files", FileInfo).items()}
        self._coming: dict[str, FileInfo] = {}
        self._batches = _load(folder / "batches", Batch)
        self._used = Counter[str]()  # by owner
        for info in self._files.values():
            self._used[info.owner] += info.bytes

    @classmethod
    def parse(cls, text: str, owners: int = 1) -> BatchStore:
        """Read `PATH:SIZE`. Raises ConfigError."""
        path, colon, size = text.rpartition(":")
        if not colon or not path:
            raise ConfigError(
                f"--batches {text!r} needs a folder and a size: write PATH:SIZE, such as /var/lib/stepwell:10GiB"
            )
        return cls(Path(path), parse_size(size), owners)

    @property
    def free(self) -> int:
        """Bytes that may still be written."""
        return max(0, self._room - self._used.total())

    @contextmanager
    def coming(self, owner: str) -> Iterator[str]:
        """A file that a caller is sending, as its id: `expect` its bytes, write them to `path`, and `add` it.

        Unless it was added, its bytes and its room are given back at the end of the block. Raises NoRoom.
        """
        self._require_files(owner, 1)
        info = _new_file(owner, "", "batch")
        self._coming[info.id] = info
        try:
            yield info.id
        finally:
            if info.id in self._coming:
                self._used[owner] -= self._coming.pop(info.id).bytes
                self._erase(info.id)

    def expect(self, file_id: str, size: int) -> None:
        """Reserve `size` bytes in all for a file that is coming. Raises NoRoom, and leaves what was reserved before."""
        info = self._coming[file_id]
        self._require(info.owner, size - info.bytes)
        self._used[info.owner] += size - info.bytes
        self._coming[file_id] = msgspec.structs.replace(info, bytes=size)

    def add(self, file_id: str, filename: str) -> FileInfo:
        """A file that was coming, whole at its path, is one of its owner's now. Raises OSError."""
        info = msgspec.structs.replace(self._coming[file_id], filename=filename[:255])
        self._write("files", info)
        self._files[file_id] = info
        del self._coming[file_id]
        return info

    def add_answers(self, owner: str, batch_id: str) -> tuple[FileInfo, FileInfo]:
        """Two new files without a line, for answers and for errors. Raises NoRoom or OSError, and makes neither."""
        self._require_files(owner, 2)
        good, bad = (_new_file(owner, f"{batch_id}_{kind}.jsonl", "batch_output") for kind in ("output", "error"))
        try:
            for info in (good, bad):
                self.path(info.id).touch()
                self._write("files", info)
        except OSError:
            for info in (good, bad):
                self._erase(info.id)
            raise
        self._files |= {good.id: good, bad.id: bad}
        return good, bad

    def grow(self, file_id: str, count: int) -> None:
        """A file of answers has `count` more bytes from now on, or fewer. Raises NoRoom. The size is kept with `settle`."""
        info = self._files[file_id]
        self._require(info.owner, count)
        self._resize(info, info.bytes + count)

    def settle(self, file_id: str) -> None:
        """Keep the size that the file has now."""
        if file_id in self._files:
            self._resize(self._files[file_id], self.path(file_id).stat().st_size)
            self._write("files", self._files[file_id])

    def _require(self, owner: str, count: int) -> None:
        """Room for `count` more bytes of an owner. Raises NoRoom."""
        share, held = self._room // self._owners, self._used[owner]
        if self._owners > 1 and held + count > share:
            raise NoRoom(
                f"the files of one key may take {format_size(share)}, and this one's take {held:,} bytes: delete some,"
                f" or raise --batches, which {self._owners} keys share evenly"
            )
        if count > self.free:
            raise NoRoom(
                f"the files of all callers may take {format_size(self._room)}, of which {self.free:,} bytes are free:"
                " delete some, or raise --batches"
            )

    def _require_files(self, owner: str, count: int) -> None:
        """Room for `count` more files of an owner, and for a first byte. Raises NoRoom."""
        held = sum(info.owner == owner for infos in (self._files, self._coming) for info in infos.values())
        if held + count > MAX_FILES:
            raise NoRoom(f"a key may have {MAX_FILES:,} files, and this one has {held:,}: delete some")
        self._require(owner, 1)

    def _resize(self, info: FileInfo, size: int) -> None:
        self._used[info.owner] += size - info.bytes
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
        self._used[info.owner] -= self._files.pop(info.id).bytes
        self._erase(info.id)

    def _erase(self, file_id: str) -> None:
        (self._folder / "files" / f"{file_id}.json").unlink(missing_ok=True)
        self.path(file_id).unlink(missing_ok=True)

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
        try:
            fresh.write_bytes(msgspec.json.encode(what))
            fresh.replace(path)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise


def _new_file(owner: str, filename: str, purpose: str) -> FileInfo:
    return FileInfo(f"file-{os.urandom(12).hex()}", owner, filename, purpose, _now())


def _clean(folder: Path) -> None:
    """Remove what a server that ended at once has left: half written descriptions, and data that nothing describes."""
    for path in (*folder.glob("*.new"), *folder.glob("*.data")):
        half = path.suffix == ".new" or not path.with_suffix(".json").exists()
        if half and _ID.fullmatch(path.stem):
            path.unlink()


def _load(folder: Path, kind: type[_Known]) -> dict[str, _Known]:
    """The batches described in `folder`. One whose description cannot be read is left out."""
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
