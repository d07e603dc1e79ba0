"""The folder that `--disk-cache` names: its lock, its key, one namespace for each model that has used it, and how fast it is read.

PATH/LOCK                held while an engine runs; the pid of the last one
PATH/key                 32 random bytes, without which no name can be computed
PATH/<16 hex digits>/    namespace.json · manifest.sqlite · segments/########.seg
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from stepwell.base.errors import ConfigError
from stepwell.store.disk.files import Files, OsFiles, Point, disk_usage
from stepwell.store.disk.record import Layout

FORMAT = 1
KEY_BYTES = 32
_NAMESPACE = re.compile(r"[0-9a-f]{16}")


class Lock:
    """One engine at a time. Held until `close`, or until the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._fd = _open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._fd, 20, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise ConfigError(
                f"--disk-cache {path.parent} is in use by another engine (pid {holder}): stop it, or give this one another folder"
            ) from error
        except OSError as error:
            os.close(self._fd)
            raise ConfigError(
                f"--disk-cache {path.parent} cannot be locked ({error.strerror}): choose a folder on a file system with locks"
            ) from error
        with suppress(OSError):  # a full disk has no room for it; the lock holds without
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, str(os.getpid()).encode(), 0)

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def close(self) -> None:
        """Twice does no harm."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@dataclass(frozen=True, slots=True)
class Namespace:
    """The folder of one fingerprint."""

    path: Path

    @property
    def segments(self) -> Path:
        return self.path / "segments"

    @property
    def manifest(self) -> Path:
        return self.path / "manifest.sqlite"

    @property
    def index_files(self) -> list[Path]:
        """The index, and what SQLite keeps beside it."""
        return [self.path / f"{self.manifest.name}{suffix}" for suffix in ("", "-wal", "-shm")]

    def distrust(self) -> None:
        """Let the next start find no label here, and so begin anew."""
        with suppress(OSError):
            self.label.unlink(missing_ok=True)

    @property
    def label(self) -> Path:
        return self.path / "namespace.json"


def prepare(path: Path) -> Lock:
    """Make the folder where only it is missing, and lock it. ConfigError says what to change."""
    if not path.exists():
        if not path.parent.is_dir():
            raise ConfigError(
                f"--disk-cache {path}: {path.parent} is not a folder; make it first, or mount what belongs there"
            )
        try:
            path.mkdir(mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"--disk-cache {path} cannot be made ({error.strerror}): choose a folder you may write to"
            ) from error
    if not path.is_dir():
        raise ConfigError(f"--disk-cache {path} is not a folder: choose one, or a name that is free")
    return Lock(path / "LOCK")


def read_key(path: Path) -> bytes:
    """The key in PATH/key, drawn the first time. ConfigError if it is not one."""
    file = path / "key"
    if not os.path.lexists(file):
        fresh = path / "key.new"
        fresh.unlink(missing_ok=True)
        fd = _open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            os.write(fd, secrets.token_bytes(KEY_BYTES))
            os.fsync(fd)
        finally:
            os.close(fd)
        fresh.rename(file)
        OsFiles().sync_folder(path)
    fd = _open(file, os.O_RDONLY)
    try:
        key = os.read(fd, KEY_BYTES + 1)
    finally:
        os.close(fd)
    if len(key) != KEY_BYTES:
        raise ConfigError(
            f"{file} does not hold a key of {KEY_BYTES} bytes: remove {path} and what is in it to start over"
        )
    return key


def names_key(key: bytes, fingerprint: bytes) -> bytes:
    """The key of all names in the namespace of this fingerprint."""
    return blake3(b"names of " + fingerprint, key=key).digest(KEY_BYTES)


def enter(path: Path, layout: Layout, parts: dict[str, str], files: Files, point: Point) -> Namespace:
    """The namespace of this layout, made where there is none; one of another format or fingerprint is removed first."""
    space = Namespace(path / layout.fingerprint.hex()[:16])
    label = {
        "format": FORMAT,
        "fingerprint": layout.fingerprint.hex(),
        "page_bytes": layout.page_bytes,
        "block": layout.block,
    }
    label |= {"image_pages": layout.image_pages, "chunk": layout.chunk}
    if os.path.lexists(space.path) and not _is_folder(space.path):
        space.path.unlink()
    if space.path.is_dir() and _label(space) != label:
        point("remove.before")
        files.remove_tree(space.path)
        point("remove.after")
    for folder in (space.path, space.segments):
        if os.path.lexists(folder) and not _is_folder(folder):
            folder.unlink()
        if not folder.is_dir():
            files.mkdir(folder)
    fresh = space.path / "namespace.new"
    fresh.unlink(missing_ok=True)
    fd = _open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    with os.fdopen(fd, "w") as file:
        file.write(json.dumps(label | {"made_of": parts}, indent=1))
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(space.label)
    for folder in (space.path, path):
        files.sync_folder(folder)
    return space


def others(path: Path, own: Namespace) -> list[Namespace]:
    """The other namespaces in PATH, least recently opened first. Links and whatever else lies there are not."""
    found = [
        entry
        for entry in path.iterdir()
        if _NAMESPACE.fullmatch(entry.name) and entry != own.path and _is_folder(entry)
    ]
    return sorted(map(Namespace, found), key=_opened)


def usage(path: Path, files: Files) -> int:
    """Bytes that the folder takes, as `du` counts them."""
    return disk_usage(files, path)


def _opened(space: Namespace) -> float:
    try:
        return space.label.lstat().st_mtime
    except OSError:
        return 0.0


def _label(space: Namespace) -> dict[str, object]:
    """What namespace.json says, without what is for people; empty if it cannot be read."""
    try:
        with os.fdopen(_open(space.label, os.O_RDONLY), "rb") as file:
            found = json.loads(file.read(1 << 16))
    except (OSError, ValueError, ConfigError, RecursionError):
        return {}
    return {key: value for key, value in found.items() if key != "made_of"} if isinstance(found, dict) else {}


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _open(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"--disk-cache: {path} cannot be opened ({error.strerror}): check who owns the folder and what is in it"
        ) from error


TYPICAL = 1e9
"""Bytes a second where nothing can be measured: a slow NVMe drive or a good network file system."""
_NAME = "speed.trial"
_PIECE = 4 << 20
_MOST = 64 << 20
_PATIENCE = 1.0  # seconds of writing


def read_speed(folder: Path, budget: int) -> float:
    """Bytes a second of a plain read of a file just written and dropped from the page cache; TYPICAL where that fails.

    Writes at most 64 MiB and 1/16 of `budget` bytes, for about a second, and removes them. The folder must be locked.
    """
    count = min(_MOST, budget // 16) // _PIECE
    path = folder / _NAME
    try:
        if not count:
            return TYPICAL
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            return _measure(fd, count)
        finally:
            os.close(fd)
    except OSError:
        return TYPICAL
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _measure(fd: int, count: int) -> float:
    piece = memoryview(os.urandom(_PIECE))
    began, size = time.monotonic(), 0
    for _ in range(count):
        size += os.pwrite(fd, piece, size)
        os.fdatasync(fd)
        if time.monotonic() - began > _PATIENCE:
            break
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    buffer = [memoryview(bytearray(_PIECE))]
    began, offset = time.monotonic(), 0
    while offset < size:
        done = os.preadv(fd, buffer, offset)
        if not done:
            break
        offset += done
    return offset / max(time.monotonic() - began, 1e-6)
