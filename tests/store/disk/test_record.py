"""Headers: what is written is read back, and nothing else passes."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
import xxhash

from stepwell.cache.moves import Name
from stepwell.store.disk.record import Damaged, Kind, Layout, decode, encode, page_sums

LAYOUT = Layout(64, 4, 3, 16, b"f" * 32)
NAME = Name(b"r" * 16, b"p" * 16, b"d" * 16, 32, 48)
SUMS = np.arange(4, dtype=np.uint64) + (1 << 63)


def sealed(header: bytes) -> bytes:
    """The header with a checksum that holds, as whoever plants one would write it."""
    return header[:8] + xxhash.xxh3_64_intdigest(header[16:]).to_bytes(8, "little") + header[16:]


def test_a_header_comes_back() -> None:
    raw, seal = encode(LAYOUT, Kind.KV, NAME, SUMS)
    header = decode(LAYOUT, Kind.KV, raw)
    assert (header.kind, header.name, header.seal, header.pages) == (Kind.KV, NAME, seal, 4)
    assert (header.sums == SUMS).all()


def test_headers_of_a_kind_have_one_length_aligned_like_the_pages() -> None:
    assert {len(encode(LAYOUT, Kind.KV, NAME, SUMS[:n])[0]) for n in (1, 2, 4)} == {LAYOUT.header_bytes(Kind.KV)}
    assert LAYOUT.header_bytes(Kind.KV) % 8 == 0
    large = Layout(8192, 4, 3, 16, b"f" * 32)
    assert len(encode(large, Kind.IMAGE, NAME, SUMS[:3])[0]) == 4096


def test_a_flipped_bit_anywhere_is_found() -> None:
    raw, _ = encode(LAYOUT, Kind.KV, NAME, SUMS)
    for at in range(len(raw)):
        for bit in range(8):
            bad = bytearray(raw)
            bad[at] ^= 1 << bit
            with pytest.raises(Damaged):
                decode(LAYOUT, Kind.KV, bytes(bad))


@pytest.mark.parametrize(
    ("offset", "layout", "value"),
    [
        (16, "<H", 2),  # version
        (18, "<B", 2),  # kind
        (18, "<B", 99),
        (20, "<I", 1 << 31),  # header bytes
        (24, "<I", 1 << 31),  # pages
        (24, "<I", 0),
        (24, "<I", 5),
        (28, "<Q", 1 << 40),  # payload bytes
        (36, "<I", 128),  # bytes of a page
    ],
)
def test_a_planted_header_with_a_good_seal_is_refused_before_anything_is_allocated(
    offset: int, layout: str, value: int
) -> None:
    raw = bytearray(encode(LAYOUT, Kind.KV, NAME, SUMS)[0])
    struct.pack_into(layout, raw, offset, value)
    with pytest.raises(Damaged):
        decode(LAYOUT, Kind.KV, sealed(bytes(raw)))


def test_another_fingerprint_s_header_is_refused() -> None:
    raw, _ = encode(Layout(64, 4, 3, 16, b"g" * 32), Kind.KV, NAME, SUMS)
    with pytest.raises(Damaged, match="another model"):
        decode(LAYOUT, Kind.KV, raw)


def test_noise_is_refused() -> None:
    rng = random.Random(0)
    for _ in range(200):
        with pytest.raises(Damaged):
            decode(LAYOUT, Kind.KV, sealed(rng.randbytes(LAYOUT.header_bytes(Kind.KV))))


def test_sums_tell_pages_apart() -> None:
    rows = np.random.default_rng(0).integers(0, 256, (5, 64), dtype=np.uint8)
    assert len(set(page_sums(rows).tolist())) == 5
    assert (page_sums(rows[::2]) == page_sums(rows)[::2]).all()
