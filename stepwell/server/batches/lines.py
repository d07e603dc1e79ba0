"""The lines of a batch's file: one call each, of bounded length, checked before the first one is answered."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any, BinaryIO

import orjson

MAX_LINES = 50_000
_FRAME = 4096  # bytes of a line around its body: custom_id, method, url
_FAULTS = 100  # of a file, that are told
_TAIL = 1 << 16  # bytes that are looked at together for the end of the last whole line

Fault = tuple[int, str, str]
"""Line, code, message."""


class LineTooLong(ValueError):
    """A line is longer than a call may be."""


@dataclass(frozen=True, slots=True)
class Line:
    """One call of a batch."""

    custom_id: str
    body: dict[str, Any]


def texts(path: Path, body_bytes: int) -> Iterator[bytes]:
    """The lines of a file that are not empty. Raises LineTooLong where one holds more than a body of `body_bytes` and its frame."""
    most = body_bytes + _FRAME
    with path.open("rb") as file:
        while text := file.readline(most + 1):
            if len(text) > most:
                raise LineTooLong(f"a line has more than {most:,} bytes, which no call may have (--max-body-size)")
            if text.strip():
                yield text


def calls(path: Path, body_bytes: int) -> Iterator[Line]:
    """The calls of a file that `faults_of` has found nothing wrong with."""
    for text in texts(path, body_bytes):
        line = orjson.loads(text)
        yield Line(line["custom_id"], line["body"])


def faults_of(path: Path, endpoint: str, body_bytes: int) -> tuple[list[Fault], int]:
    """What keeps a file from being used, and its lines. Reads all of it: for a thread of its own."""
    faults: list[Fault] = []
    seen: set[str] = set()
    count = 0
    try:
        for count, text in enumerate(texts(path, body_bytes), 1):
            fault = fault_of(text, endpoint, seen)
            if fault and len(faults) < _FAULTS:
                faults.append((count, *fault))
            if count > MAX_LINES:
                return [(count, "too_many_lines", f"a batch has at most {MAX_LINES:,} lines")], count
    except LineTooLong as error:
        return [*faults, (count + 1, "line_too_long", str(error))], count + 1
    return faults or ([] if count else [(0, "empty_file", "the file has no line")]), count


def fault_of(text: bytes, endpoint: str, seen: set[str]) -> tuple[str, str] | None:
    """Error code and message for one line, if it is wrong; adds its custom_id to `seen`."""
    try:
        line = orjson.loads(text)
    except orjson.JSONDecodeError:
        return "invalid_json_line", "this line is not valid JSON"
    if not isinstance(line, dict) or not isinstance(line.get("body"), dict):
        return "invalid_request", "a line is an object with custom_id, method, url and body"
    name = line.get("custom_id")
    if not isinstance(name, str) or not 0 < len(name) <= 512:
        return "missing_custom_id", "custom_id must be a string of 1 to 512 characters"
    if name in seen:
        return "duplicate_custom_id", f"custom_id {name!r} is there twice"
    seen.add(name)
    if line.get("method", "POST") != "POST" or line.get("url") != endpoint:
        return "invalid_url", f"method and url must be POST and {endpoint}, as the batch says"
    return None


def answered(file: BinaryIO) -> set[str]:
    """The custom_ids of a file of answers. Cuts off an unfinished last line, and leaves the file at its end."""
    file.truncate(_whole(file))
    file.seek(0)
    found = {str(orjson.loads(line)["custom_id"]) for line in file}
    file.seek(0, os.SEEK_END)
    return found


def append(file: FileIO, text: bytes) -> None:
    """Add a line to the end of an unbuffered file. Raises OSError, and adds nothing, where the disk does not take all of it."""
    end = file.seek(0, os.SEEK_END)
    try:
        written = file.write(text)
        if written != len(text):
            raise OSError(errno.ENOSPC, f"the disk took {written} of {len(text)} bytes")
    except OSError:
        file.truncate(end)
        raise


def _whole(file: BinaryIO) -> int:
    """Bytes up to the end of the last whole line; found from the end."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _TAIL)
        file.seek(start)
        at = file.read(end - start).rfind(b"\n")
        if at >= 0:
            return start + at + 1
        end = start
    return 0
