"""Files that fail as planned, and only so."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Literal

import pytest

from stepwell.store.disk.files import disk_usage, read_all, write_all
from stepwell.testing.disk import FaultyFiles

CREATE = os.O_RDWR | os.O_CREAT


def read(files: FaultyFiles, fd: int, size: int) -> bytes:
    buffer = bytearray(size)
    assert read_all(files, fd, [memoryview(buffer)], 0)
    return bytes(buffer)


def test_without_a_plan_they_are_plain_files(tmp_path: Path) -> None:
    files = FaultyFiles()
    fd = files.open(tmp_path / "a", CREATE)
    assert write_all(files, fd, [memoryview(b"ab"), memoryview(b""), memoryview(b"cde")], 0) == 5
    assert read(files, fd, 5) == b"abcde"
    assert not read_all(files, fd, [memoryview(bytearray(6))], 0)
    files.close(fd)
    assert files.injected == 0


def test_a_fault_comes_after_so_many_calls_and_so_often(tmp_path: Path) -> None:
    files = FaultyFiles()
    fd = files.open(tmp_path / "a", CREATE)
    files.fail("write", errno.EIO, after=1, count=2)
    outcomes = []
    for _ in range(4):
        try:
            files.pwritev(fd, [memoryview(b"x")], 0)
            outcomes.append(0)
        except OSError as error:
            outcomes.append(error.errno or 0)
    assert outcomes == [0, errno.EIO, errno.EIO, 0]
    assert files.injected == 2


def test_a_full_disk_writes_what_fits(tmp_path: Path) -> None:
    files = FaultyFiles()
    fd = files.open(tmp_path / "a", CREATE)
    files.fill(3)
    with pytest.raises(OSError) as caught:
        write_all(files, fd, [memoryview(b"abcde")], 0)
    assert caught.value.errno == errno.ENOSPC
    assert read(files, fd, 3) == b"abc"


def test_a_read_only_disk_can_be_read(tmp_path: Path) -> None:
    files = FaultyFiles()
    (tmp_path / "a").write_bytes(b"abc")
    files.read_only()
    assert read(files, files.open(tmp_path / "a", os.O_RDONLY), 3) == b"abc"
    with pytest.raises(OSError):
        files.open(tmp_path / "b", CREATE)
    with pytest.raises(OSError):
        files.unlink(tmp_path / "a")


def test_one_bit_flips_in_what_is_read_and_none_on_disk(tmp_path: Path) -> None:
    files = FaultyFiles()
    fd = files.open(tmp_path / "a", CREATE)
    write_all(files, fd, [memoryview(bytes(100))], 0)
    files.flip(1, after=1)
    found = [read(files, fd, 100) for _ in range(3)]
    assert [sum(byte.bit_count() for byte in one) for one in found] == [0, 1, 0]


@pytest.mark.parametrize("tail", ["cut", "zeros", "noise"])
def test_what_was_never_synced_is_lost_with_the_power(tmp_path: Path, tail: Literal["cut", "zeros", "noise"]) -> None:
    files = FaultyFiles()
    fd = files.open(tmp_path / "a", CREATE)
    files.sync_folder(tmp_path)
    write_all(files, fd, [memoryview(b"durable")], 0)
    files.fdatasync(fd)
    write_all(files, fd, [memoryview(b" hopeful")], 7)
    files.open(tmp_path / "unnamed", CREATE)
    files.lose_power(tail)
    content = (tmp_path / "a").read_bytes()
    assert content.startswith(b"durable") and b"hopeful" not in content
    assert len(content) == (7 if tail == "cut" else 15)
    assert not (tmp_path / "unnamed").exists()


def test_usage_counts_blocks_and_never_follows_links(tmp_path: Path) -> None:
    files = FaultyFiles()
    (tmp_path / "c").mkdir()
    empty = disk_usage(files, tmp_path / "c")
    (tmp_path / "big").write_bytes(b"x" * 100_000)
    (tmp_path / "c" / "link").symlink_to(tmp_path / "big")
    assert disk_usage(files, tmp_path / "c") < empty + 100_000
    assert disk_usage(files, tmp_path / "gone") == 0
