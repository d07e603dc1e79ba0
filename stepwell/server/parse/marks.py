"""The marks between which models write calls of tools, found in text of which more may come."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto

from stepwell.server.parse.feed import Feed

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION = "<function="
MOST_SPACE = 256
"""Most characters of space before or after a mark that belong to it; bounded, so that no more is scanned twice."""

_NAME = r"([^>\n]{1,256})"
_MARK = re.compile(rf"(<tool_call>)|(</tool_call>)|<function={_NAME}>|(</function>)|<parameter={_NAME}>|(</parameter>)")
_FIXED = (OPEN, CLOSE, "</function>", "</parameter>", FUNCTION, "<parameter=")
_LONGEST = max(map(len, _FIXED)) + 257
_NAMING = re.compile(r"<(?:function|parameter)=[^>\n]{0,256}")
_SPACE = re.compile(rf"\s{{0,{MOST_SPACE}}}")


class Kind(Enum):
    """What stands at a place."""

    OPEN = auto()
    CLOSE = auto()
    FUNCTION = auto()
    END_FUNCTION = auto()
    PARAMETER = auto()
    END_PARAMETER = auto()
    OTHER = auto()  # other text
    WAIT = auto()  # more text must come before it can be said
    END = auto()  # the end of the text


_KINDS = (Kind.OPEN, Kind.CLOSE, Kind.FUNCTION, Kind.END_FUNCTION, Kind.PARAMETER, Kind.END_PARAMETER)


@dataclass(frozen=True, slots=True)
class Mark:
    """A mark from `start` to `end`; `name` is what a function's or a parameter's says."""

    kind: Kind
    start: int
    end: int
    name: str = ""


def mark_at(feed: Feed, place: int) -> Mark:
    """What stands at `place`."""
    text = feed.text
    if place >= len(text):
        return Mark(Kind.END if feed.ended else Kind.WAIT, place, place)
    found = _MARK.match(text, place)
    if found is not None:
        assert found.lastindex is not None
        return Mark(_KINDS[found.lastindex - 1], place, found.end(), found[found.lastindex].strip())
    waits = not feed.ended and _may_become(text[place : place + _LONGEST])
    return Mark(Kind.WAIT if waits else Kind.OTHER, place, place)


def mark_behind(feed: Feed, place: int) -> Mark:
    """The mark after the space at `place`."""
    space = _SPACE.match(feed.text, place)
    assert space is not None
    return mark_at(feed, space.end())


def _may_become(start: str) -> bool:
    """Whether `start`, with which the text ends so far, may be the beginning of a mark."""
    return any(mark.startswith(start) for mark in _FIXED) or _NAMING.fullmatch(start) is not None


def without_beginning(text: str, start: int, marks: tuple[str, ...]) -> int:
    """Where in `text` what may become one of `marks` begins; the text's end where nothing does."""
    for size in range(min(max(map(len, marks)) - 1, len(text) - start), 0, -1):
        if text.startswith("<", len(text) - size) and any(mark.startswith(text[-size:]) for mark in marks):
            return len(text) - size
    return len(text)


def without_space(text: str, start: int, end: int) -> int:
    """Where the space ends in which `text[start:end]` ends."""
    last = max(start, end - MOST_SPACE)
    return last + len(text[last:end].rstrip())
