"""Bringing index and files into agreement after whatever ended the last process. Nothing is loaded but the list of segments."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stepwell.store.disk.files import is_plain
from stepwell.store.disk.folder import Namespace
from stepwell.store.disk.health import Health, is_ruin
from stepwell.store.disk.manifest import Manifest, SegmentRow
from stepwell.store.disk.segments import Segment, Segments


@dataclass(frozen=True, slots=True)
class Opened:
    """The writer's connection and the readers', the last id in use, the next segment's number, and pages of all rows."""

    index: Manifest
    view: Manifest
    last: int
    next_segment: int
    pages: int


def open_index(space: Namespace, segments: Segments, checkpoint_pages: int, health: Health) -> Opened:
    """Open the index of a namespace and fill `segments`; begin anew where it is damaged. OSError, sqlite3.Error otherwise."""
    try:
        return _open(space, segments, checkpoint_pages)
    except sqlite3.DatabaseError as error:
        if not is_ruin(error):
            raise
        health.note(type(error).__name__, f"the index in {space.path} is damaged and begins anew: {error}")
    segments.all.clear()
    for path in space.index_files:
        path.unlink(missing_ok=True)
    return _open(space, segments, checkpoint_pages)


def _open(space: Namespace, segments: Segments, checkpoint_pages: int) -> Opened:
    for path in space.index_files:
        if os.path.lexists(path) and not is_plain(path.lstat()):
            path.unlink()  # a link or the like: nothing of ours
    index = Manifest(space.manifest, checkpoint_pages=checkpoint_pages)
    try:
        last = _reconcile(index, segments)
        newest = max([0, *segments.found(), *(s.number for s in index.segments())])
        view = Manifest(space.manifest, reads_only=True)
    except BaseException:
        index.close()
        raise
    return Opened(index, view, last, newest + 1, sum(s.live for s in segments.all.values()))


def _reconcile(index: Manifest, segments: Segments) -> int:
    """Rows without a file go, files without a row go, what is behind the published end is cut off. Returns the last id."""
    last = index.last()
    files = segments.found()
    for row in index.segments():
        status = files.get(row.number)
        if (
            status is None
            or not is_plain(status)
            or min(row.number, row.length, row.live, row.rows) < 0
            or row.number == 0
        ):
            index.drop_segment(row.number)
            continue
        length = min(row.length, status.st_size)
        if status.st_size > length:
            _cut(segments, segments.path(row.number), length)
        segments.all[row.number] = Segment(row.number, length, row.live, row.rows)
    _drop_nameless(index, segments)
    for number in files.keys() - segments.all.keys():
        index.drop_segment(number)
        with suppress(OSError):
            segments.files.unlink(segments.path(number))
    return last


def _drop_nameless(index: Manifest, segments: Segments) -> None:
    """Rows that only the last process could use go, and are counted no more."""
    found = index.nameless()
    for row in found.rows:
        if row.segment in segments.all:
            segment = segments.all[row.segment]
            segment.live, segment.rows = max(0, segment.live - row.pages), max(0, segment.rows - 1)
    gone = [*(row.id for row in found.rows), *found.damaged]
    if gone:
        fewer = {row.segment for row in found.rows} & segments.all.keys()
        known = [segments.all[number] for number in fewer]
        index.commit(dict.fromkeys(gone), [SegmentRow(s.number, s.length, s.live, s.rows) for s in known])


def _cut(segments: Segments, path: Path, length: int) -> None:
    fd = segments.files.open(path, os.O_RDWR)
    try:
        segments.files.truncate(fd, length)
    finally:
        segments.files.close(fd)
