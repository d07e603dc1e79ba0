"""Judging a disk cache of the tell-tale from its files alone: is every record what its name says, and does everything add up?

Neither the store's reader nor its mover is trusted here: rows come from the index, bytes from the files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from stepwell.base.geometry import Ints
from stepwell.cache.disk.names import Names
from stepwell.store.arena import Rows
from stepwell.store.disk.manifest import Manifest, Row
from stepwell.store.disk.record import Damaged, Kind, decode, page_sums
from stepwell.store.disk.store import DiskStore
from stepwell.testing.onfiles import CHUNK, SIZES, layout
from stepwell.testing.telltale import Memory, content


@dataclass(frozen=True, slots=True)
class Verdict:
    """records    that an engine opening the folder would find
    unverified    of them: nobody knows their name, or their bytes are not what the model makes of its tokens
    lost_slots    pages by which the store's own account of its room differs from the rows and files
    """

    records: int
    unverified: int
    lost_slots: int


class Known:
    """All prefixes, at block boundaries, of sequences that were ever served, by digest."""

    def __init__(self, key: bytes, sequences: Iterable[Ints]) -> None:
        names = Names(key, CHUNK)
        self._prefix: dict[bytes, Ints] = {}
        for tokens in sequences:
            trail = names.trail("", tokens)
            for end in range(0, len(tokens) + 1, SIZES.block):
                self._prefix.setdefault(trail.at(end), tokens[:end])

    def holds(self, row: Row, rows: Rows) -> bool:
        """Whether a row's name is that of something served, and these bytes are what belongs there."""
        tokens, above = self._prefix.get(row.name.digest), self._prefix.get(row.name.parent)
        if tokens is None or above is None or len(tokens) != row.name.end or len(above) != row.name.start:
            return False
        if row.kind is Kind.IMAGE:
            return len(tokens) == len(above) and bool((rows == _image(tokens)).all())
        pages = (row.name.end - row.name.start) // SIZES.block
        return pages == row.pages and bool((rows == _kv(tokens)[len(tokens) // SIZES.block - pages :]).all())


def judge(folder: Path, store: DiskStore, sequences: Iterable[Ints]) -> Verdict:
    """Judge a folder that `store` has just opened and nobody has used yet."""
    (namespace,) = [path.parent for path in folder.glob("*/manifest.sqlite") if _is_own(path.parent, store)]
    manifest = Manifest(namespace / "manifest.sqlite", reads_only=True)
    try:
        segments = {s.number: s for s in manifest.segments()}
        rows = [row for number in segments for row in manifest.lying_in(number).rows]
    finally:
        manifest.close()
    known = Known(store.names_key, sequences)
    unverified = sum(not _good(namespace, row, known) for row in rows)
    live = Counter[int]()
    for row in rows:
        live[row.segment] += row.pages
    lost = abs(store.catalogue.pages - live.total())
    lost += sum(abs(segment.live - live[number]) for number, segment in segments.items())
    lost += max(0, store.catalogue.pages - store.slots)
    files = {int(path.stem): path.stat().st_size for path in (namespace / "segments").glob("*.seg")}
    wrong = sum(files.get(number) != segment.length for number, segment in segments.items())
    return Verdict(len(rows), unverified, lost + wrong + len(files.keys() - segments.keys()))


def _is_own(path: Path, store: DiskStore) -> bool:
    return path.name == store.layout.fingerprint.hex()[:16]


def _good(namespace: Path, row: Row, known: Known) -> bool:
    """Whether the record that a row speaks of is there, whole, sealed, and the right one."""
    rules = layout()
    size = rules.header_bytes(row.kind)
    with (namespace / "segments" / f"{row.segment:08d}.seg").open("rb") as file:
        file.seek(row.offset)
        raw = file.read(size)
        file.seek(row.offset + size + row.first * rules.page_bytes)
        data = file.read(row.pages * rules.page_bytes)
    if len(raw) < size or len(data) < row.pages * rules.page_bytes:
        return False
    try:
        header = decode(rules, row.kind, raw)
    except Damaged:
        return False
    rows = np.frombuffer(data, np.uint8).reshape(row.pages, rules.page_bytes)
    sealed = header.seal == row.seal and (page_sums(rows) == header.sums[row.first : row.first + row.pages]).all()
    return bool(sealed) and known.holds(row, rows)


def _kv(tokens: Ints) -> Rows:
    """Pages of KV of these tokens, [blocks, page_bytes]."""
    return content(tokens)[1].view(np.uint8).reshape(len(tokens) // SIZES.block, SIZES.page_bytes)


def _image(tokens: Ints) -> Rows:
    """The image after these tokens, [image_pages, page_bytes]."""
    memory = Memory(SIZES, 0, 0, 0)
    packed = memory.pack((int(content(tokens)[0][-1]), len(tokens)), SIZES.image_pages)
    return packed.view(np.uint8).reshape(SIZES.image_pages, SIZES.page_bytes)
