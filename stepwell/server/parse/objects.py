"""Calls written as one JSON object: {"name": "f", "arguments": {…}}, its keys in any order."""

from __future__ import annotations

import json
from collections.abc import Callable

from stepwell.server.parse.call import Call, Result
from stepwell.server.parse.feed import Feed, Steps
from stepwell.talk.strict import JsonCopy, copied

_PIECE = 4096  # characters that are copied at once
_ARGUMENTS = frozenset({"arguments", "parameters"})


def copy_value(feed: Feed, sink: Callable[[str], None]) -> Steps[bool]:
    """Copy one JSON value to `sink` as it comes. False where there is none, or it has no end."""
    copy = JsonCopy()
    while True:
        start, end = feed.at, min(feed.at + _PIECE, len(feed.text))
        if start == end:
            if feed.ended:
                return False
            yield
            continue
        sink(copy.push(feed.text[start:end]))
        over = copy.done or copy.broken
        feed.take(end - len(copy.rest) if over else end)
        if over:
            return copy.done


def next_char(feed: Feed) -> Steps[str]:
    """The next character that is no space, unread; "" at the end of the text."""
    while True:
        left = feed.text[feed.at : feed.at + _PIECE]
        feed.take(feed.at + len(left) - len(left.lstrip()))
        if feed.at < len(feed.text):
            if not feed.text[feed.at].isspace():
                return feed.text[feed.at]
        elif feed.ended:
            return ""
        else:
            yield


def read_object(feed: Feed, call: Call) -> Steps[Result]:
    """Read a call from its opening brace on."""
    feed.take(feed.at + 1)
    members = _Members(feed, call)
    while True:
        char = yield from next_char(feed)
        if members.complete and char in ("<", ""):  # a model that forgets the brace goes on to the mark
            return members.end()
        if char == "}":
            feed.take(feed.at + 1)
            return members.end()
        if char == "," and members.count:
            feed.take(feed.at + 1)
            char = yield from next_char(feed)
        elif members.count:
            return call.cut()
        if char == "}":
            continue
        if char != '"' or not (yield from members.read()):
            return call.cut()


class _Members:
    """What has been read of a call's object. `complete`: nothing is missing but its end."""

    def __init__(self, feed: Feed, call: Call) -> None:
        self._feed = feed
        self._call = call
        self._name = ""
        self._arguments: list[str] | None = None  # None: there were none so far
        self.count = 0

    @property
    def complete(self) -> bool:
        return bool(self._name) and self._arguments is not None

    def read(self) -> Steps[bool]:
        """One key and its value; False where that is no JSON, or no call's."""
        key: list[str] = []
        if not (yield from copy_value(self._feed, key.append)) or (yield from next_char(self._feed)) != ":":
            return False
        self._feed.take(self._feed.at + 1)
        self.count += 1
        name = "".join(key)[1:-1]
        if name == "name" and not self._name:
            return (yield from self._read_name())
        if name in _ARGUMENTS and self._arguments is None:
            return (yield from self._read_arguments())
        return (yield from copy_value(self._feed, _dropped))

    def _read_name(self) -> Steps[bool]:
        value: list[str] = []
        if (yield from next_char(self._feed)) != '"' or not (yield from copy_value(self._feed, value.append)):
            return False
        self._name = str(json.loads("".join(value))).encode("utf-8", "replace").decode().strip()
        return bool(self._name)

    def _read_arguments(self) -> Steps[bool]:
        """Arguments go to the caller as they come, once it knows the name. They may also be a text that holds JSON, or null."""
        pieces: list[str] = []
        char = yield from next_char(self._feed)
        streams = char == "{" and bool(self._name)
        if streams:
            self._call.open(self._name)
        if not (yield from copy_value(self._feed, self._call.grow if streams else pieces.append)):
            return False
        if char == "{":
            self._arguments = pieces
            return True
        written = "".join(pieces)
        inner = "{}" if written in ("null", '""') else copied(json.loads(written)) if char == '"' else None
        self._arguments = [inner or ""]
        return inner is not None and inner.startswith("{")

    def end(self) -> Result:
        """The object has ended."""
        if not self._call.name:
            if not self._name:
                return Result.NONE
            self._call.open(self._name)
            self._call.grow("".join(self._arguments or ()) or "{}")
        return self._call.close()


def _dropped(text: str) -> None:
    """Members of a call's object that mean nothing."""
