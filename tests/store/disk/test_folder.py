"""The folder: made where it can be, locked, private, and never followed out of."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
from pathlib import Path

import pytest

from stepwell.base.errors import ConfigError
from stepwell.store.disk.folder import Lock, names_key, prepare, read_key
from tests.store.disk.rig import Chat, Rig, layout


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_made_is_private(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "c")
    rig.save(Chat(1), 0, 16)
    folders = [p for p in [tmp_path / "c", *(tmp_path / "c").rglob("*")] if p.is_dir()]
    assert {mode(path) for path in folders} == {0o700}
    assert mode(tmp_path / "c" / "key") == 0o600
    assert mode(next((tmp_path / "c").glob("*/segments/*.seg"))) == 0o600


def test_only_the_last_part_of_the_path_is_made(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make it first"):
        prepare(tmp_path / "no" / "c")


def test_a_file_is_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("x")
    with pytest.raises(ConfigError, match="not a folder"):
        prepare(tmp_path / "c")


def test_the_lock_is_free_again_when_its_holder_closes(tmp_path: Path) -> None:
    lock = Lock(tmp_path / "LOCK")
    with pytest.raises(ConfigError, match="in use"):
        Lock(tmp_path / "LOCK")
    lock.close()
    lock.close()
    assert lock.closed
    Lock(tmp_path / "LOCK").close()


@pytest.mark.parametrize("name", ["LOCK", "key"])
def test_links_are_not_followed(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (tmp_path / "target").write_bytes(b"k" * 32)
    (folder / name).symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="cannot be opened"):
        Rig(folder)
    assert (tmp_path / "target").read_bytes() == b"k" * 32


def test_a_namespace_that_is_a_link_is_replaced_not_entered(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    folder.mkdir()
    (tmp_path / "outside").mkdir()
    (folder / ("66" * 8)).symlink_to(tmp_path / "outside")
    Rig(folder).save(Chat(1), 0, 16)
    assert list((tmp_path / "outside").iterdir()) == []


def test_the_key_is_drawn_once(tmp_path: Path) -> None:
    key = read_key(tmp_path)
    assert len(key) == 32 and read_key(tmp_path) == key
    other = tmp_path / "other"
    other.mkdir()
    assert read_key(other) != key


@pytest.mark.parametrize("content", [b"", b"k" * 31, b"k" * 33])
def test_a_key_of_another_length_is_an_error_that_says_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match="remove"):
        read_key(tmp_path)


def test_names_depend_on_key_and_fingerprint() -> None:
    keys = {names_key(key, mark) for key in (b"a" * 32, b"b" * 32) for mark in (b"f" * 32, b"g" * 32)}
    assert len(keys) == 4 and all(len(key) == 32 for key in keys)


def test_the_label_tells_people_what_the_namespace_is(tmp_path: Path) -> None:
    Rig(tmp_path / "c", parts={"model": "tiny", "kv": "bfloat16"})
    label = json.loads(next((tmp_path / "c").glob("*/namespace.json")).read_text())
    assert label["made_of"] == {"model": "tiny", "kv": "bfloat16"}
    assert label["fingerprint"] == layout().fingerprint.hex()


@pytest.mark.parametrize("label", [b"", b"[", b"[]", b'{"format": 2}', b"[" * 100_000])
def test_a_label_that_does_not_fit_means_a_new_beginning(tmp_path: Path, label: bytes) -> None:
    rig = Rig(tmp_path / "c")
    rig.save(Chat(1), 0, 16)
    rig.store.close()
    next((tmp_path / "c").glob("*/namespace.json")).write_bytes(label)
    assert Rig(tmp_path / "c").recall(Chat(1)) == (0, 0)


def test_a_folder_that_cannot_be_written_to_is_an_error_that_says_so(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "LOCK").mkdir()
    with pytest.raises(ConfigError, match="cannot be opened"):
        Rig(tmp_path / "c")


def test_a_full_disk_has_no_room_for_the_pid_but_the_lock_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    lock = Lock(tmp_path / "LOCK")
    with pytest.raises(ConfigError, match="in use by another engine"):
        Lock(tmp_path / "LOCK")
    lock.close()


def test_a_file_system_without_locks_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ConfigError, match="cannot be locked"):
        Lock(tmp_path / "LOCK")
