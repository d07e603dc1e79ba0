"""Whatever the bytes of a cache depend on makes another name; what they do not depend on makes none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepwell.base.errors import ConfigError
from stepwell.model.identity import config_digest, fingerprint, weights_digest

MIB = 1 << 20


def weights(folder: Path, name: str = "model.safetensors", size: int = 3 * MIB, header: bytes = b'{"a":1}') -> Path:
    """A file of the shape of a safetensors file."""
    path = folder / name
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    return path


def test_parts_count_and_their_order_does_not() -> None:
    one = fingerprint({"a": "1", "b": "2"})
    assert len(one) == 32 and one == fingerprint({"b": "2", "a": "1"})
    assert one not in (fingerprint({"a": "1", "b": "3"}), fingerprint({"a": "1"}), fingerprint({"a": "12", "b": ""}))


def test_config_counts_by_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a": 1, "b": [2, 3]}')
    one = config_digest(tmp_path)
    path.write_text('{\n "b":[2,3],\n "a":1}')
    assert config_digest(tmp_path) == one
    path.write_text(json.dumps({"a": 1, "b": [3, 2]}))
    assert config_digest(tmp_path) != one


@pytest.mark.parametrize("offset", [20, MIB // 2, 3 * MIB + 10])
def test_a_changed_byte_at_either_end_of_the_weights_is_seen(tmp_path: Path, offset: int) -> None:
    path = weights(tmp_path)
    one = weights_digest(tmp_path)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"x")
    assert weights_digest(tmp_path) != one


def test_a_changed_stretch_in_the_middle_is_seen(tmp_path: Path) -> None:
    path = weights(tmp_path, size=20 * MIB)
    one = weights_digest(tmp_path)
    with path.open("r+b") as file:
        file.seek(9 * MIB)
        file.write(b"x" * MIB)
    assert weights_digest(tmp_path) != one


def test_names_sizes_headers_and_number_of_files_count(tmp_path: Path) -> None:
    digests = set()
    for i, make in enumerate(
        (
            lambda f: weights(f),
            lambda f: weights(f, "other.safetensors"),
            lambda f: weights(f, size=3 * MIB + 1),
            lambda f: weights(f, header=b'{"b":1}'),
            lambda f: (weights(f), weights(f, "more.safetensors")),
        )
    ):
        folder = tmp_path / str(i)
        folder.mkdir()
        make(folder)
        digests.add(weights_digest(folder))
    assert len(digests) == 5


def test_a_file_that_lies_about_its_header_is_sampled_all_the_same(tmp_path: Path) -> None:
    path = weights(tmp_path, size=10)
    path.write_bytes(b"\xff" * 8 + b"short")
    assert weights_digest(tmp_path)


def test_missing_config_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config\.json"):
        config_digest(tmp_path)
