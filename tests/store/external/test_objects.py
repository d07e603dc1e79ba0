"""An object is believed only where it is whole and exactly what its name says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.base.errors import StoreError
from stepwell.cache.disk.names import Names
from stepwell.store.external import objects

PAGE, PAGES = 32, 4
TRAIL = Names(b"k" * 32, 64).trail("salt", np.arange(200, dtype=np.int32))
NAME = next(TRAIL.records(64, 128))
ROWS = np.arange(PAGE * PAGES, dtype=np.uint8).reshape(PAGES, PAGE)


def made() -> np.ndarray:
    target = np.zeros(objects.size_of(PAGES, PAGE), np.uint8)
    objects.write(target, "kv", NAME, ROWS)
    return target


def test_what_is_written_is_read() -> None:
    assert (objects.read(made(), "kv", NAME, PAGES, PAGE) == ROWS).all()


@given(st.integers(0, objects.size_of(PAGES, PAGE) - 1), st.integers(1, 255))
def test_any_wrong_byte_is_found_out(at: int, by: int) -> None:
    bad = made()
    bad[at] ^= by
    with pytest.raises(StoreError, match="KV of tokens 64 to 128, rank 0"):
        objects.read(bad, "kv", NAME, PAGES, PAGE)


@pytest.mark.parametrize(
    "name",
    [
        replace(NAME, digest=b"x" * 16),
        replace(NAME, parent=b"x" * 16),
        replace(NAME, root=b"x" * 16),
        next(TRAIL.records(0, 64)),
    ],
)
def test_an_object_of_another_name_is_refused(name: objects.Name) -> None:
    with pytest.raises(StoreError, match="something else"):
        objects.read(made(), "kv", name, PAGES, PAGE)


@pytest.mark.parametrize(
    "size", [0, 1, objects.HEADER, objects.size_of(PAGES, PAGE) - 1, objects.size_of(PAGES, PAGE) + 1]
)
def test_an_object_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(StoreError, match=f"{size} bytes"):
        objects.read(np.resize(made(), size), "kv", NAME, PAGES, PAGE)


def test_an_image_is_no_kv() -> None:
    with pytest.raises(StoreError, match="state at token 128"):
        objects.read(made(), "image", NAME, PAGES, PAGE)
