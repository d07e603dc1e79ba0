"""Copies JSON out of a model's text, in pieces, so that the copy is strict JSON (RFC 8259) that every parser accepts.

What models get wrong and what can only mean one thing is mended on the way: raw line breaks in strings, backslashes that escape nothing,
halves of surrogate pairs, `True`, `None`, `NaN` and numbers beyond a float (both as strings), a comma too many at an end.
"""

from __future__ import annotations

import json
import math
import re
from enum import Enum, auto

MAX_DEPTH = 200
"""Objects and lists within each other. Writers and readers of JSON give up at 250 to 1,000."""
_MAX_WORD = 400  # characters of a number or a literal; a number with more digits than this is no float

_SPACE = re.compile(r"[ \t\r\n]+")
_RUN = re.compile(r'[^"\\\x00-\x1f]+')
_WORD = re.compile(r'[^\s,\]}\[{":]+')
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_UNIT = re.compile(r"\\u([0-9a-fA-F]{4})")
_SIMPLE = frozenset('"\\/bfnrt')
_WORDS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_NOT_FINITE = frozenset({"NaN", "Infinity", "+Infinity", "-Infinity"})
_LONE = "\\ufffd"


class _At(Enum):
    """What may come next."""

    VALUE = auto()
    FIRST = auto()  # a list's first value, or its end
    KEY = auto()  # a key, or the object's end
    COLON = auto()
    AFTER = auto()  # a comma, or an end
    STRING = auto()
    WORD = auto()


class JsonCopy:
    """Copies one value. `done` once it is whole; `broken` where the text is no JSON, even mended; `rest` is what follows."""

    __slots__ = ("_at", "_comma", "_is_key", "_open", "_word", "broken", "done", "rest")

    def __init__(self) -> None:
        self._at = _At.VALUE
        self._open: list[str] = []  # closing marks that are due, the outermost first
        self._comma = ""  # with the space behind it, held back until a value follows
        self._is_key = False
        self._word = ""
        self.done = False
        self.broken = False
        self.rest = ""

    def push(self, text: str) -> str:
        """The copy of what more text makes clear. O(len(text)), but for a few characters that are looked at again."""
        text = self.rest + text
        out: list[str] = []
        i = 0
        while i < len(text) and not self.done and not self.broken:
            after = self._step(text, i, out)
            if after is None:
                break
            i = after
        self.rest = text[i:]
        return "".join(out)

    def _step(self, text: str, i: int, out: list[str]) -> int | None:
        """Read on from `i`; where the next step begins, or None where more text is needed."""
        if self._at is _At.STRING:
            return self._string(text, i, out)
        if self._at is _At.WORD:
            return self._in_word(text, i, out)
        if (space := _SPACE.match(text, i)) is not None:
            self._spaced(space[0], out)
            return space.end()
        return self._mark(text[i], i, out)

    def _spaced(self, space: str, out: list[str]) -> None:
        if self._comma:
            self._comma = (self._comma + space)[:_MAX_WORD]
        elif self._open:
            out.append(space)

    def _mark(self, char: str, i: int, out: list[str]) -> int:
        match self._at, char:
            case (_At.AFTER, ","):
                self._comma, self._at = ",", _At.KEY if self._open[-1] == "}" else _At.FIRST
            case (_At.COLON, ":"):
                out.append(char)
                self._at = _At.VALUE
            case (_At.AFTER | _At.FIRST | _At.KEY, "]" | "}") if self._open[-1] == char:
                self._comma = ""
                out.append(self._open.pop())
                self._ended()
            case (_At.KEY, '"'):
                self._begin_string(True, out)
            case (_At.VALUE | _At.FIRST, '"'):
                self._begin_string(False, out)
            case (_At.VALUE | _At.FIRST, "{" | "["):
                self._begin_nested(char, out)
            case (_At.VALUE | _At.FIRST, _) if _WORD.match(char):
                self._word, self._at = "", _At.WORD
                return i
            case _:
                self.broken = True
        return i + 1

    def _begin_string(self, is_key: bool, out: list[str]) -> None:
        out += (self._comma, '"')
        self._comma, self._is_key, self._at = "", is_key, _At.STRING

    def _begin_nested(self, char: str, out: list[str]) -> None:
        if len(self._open) == MAX_DEPTH:
            self.broken = True
            return
        out += (self._comma, char)
        self._comma = ""
        self._open.append("}" if char == "{" else "]")
        self._at = _At.KEY if char == "{" else _At.FIRST

    def _ended(self) -> None:
        """A value has ended."""
        self._at = _At.AFTER
        self.done = not self._open

    def _string(self, text: str, i: int, out: list[str]) -> int | None:
        if (run := _RUN.match(text, i)) is not None:
            out.append(run[0])
            return run.end()
        if text[i] == "\\":
            escape = _escape(text, i)
            if escape is None:
                return None
            out.append(escape[0])
            return escape[1]
        if text[i] != '"':
            out.append(json.dumps(text[i])[1:-1])
        else:
            out.append('"')
            if self._is_key:
                self._at = _At.COLON
            else:
                self._ended()
        return i + 1

    def _in_word(self, text: str, i: int, out: list[str]) -> int | None:
        run = _WORD.match(text, i)
        if run is not None:
            self._word += run[0][: _MAX_WORD + 1]
        if run is not None and run.end() == len(text) and len(self._word) <= _MAX_WORD:
            return run.end()
        written = word(self._word) if len(self._word) <= _MAX_WORD else None
        if written is None:
            self.broken = True
            return None
        out += (self._comma, written)
        self._comma = ""
        self._ended()
        return i if run is None else run.end()

    def finish(self) -> str:
        """The text has ended: what is left of the copy, where a number or a literal stands alone."""
        written = word(self._word) if self._at is _At.WORD and not self._open and not self.rest else None
        if written is None or self.broken:
            return ""
        self._ended()
        return written

    def rescue(self) -> str:
        """What must follow the copy so far to make it a whole value: the end of a string, null for what is missing, closing marks."""
        out = '"' if self._at is _At.STRING else ""
        if self._at is _At.COLON or (self._at is _At.STRING and self._is_key):
            out += ": null"
        elif self._at in (_At.VALUE, _At.WORD) and not self._comma:
            out += "null"
        return out + "".join(reversed(self._open))


def word(text: str) -> str | None:
    """A number or a literal as JSON; None where it is neither."""
    if text in _NOT_FINITE:
        return json.dumps(text)
    if _NUMBER.fullmatch(text):
        return text if math.isfinite(float(text)) else json.dumps(text)
    return _WORDS.get(text)


def copied(text: str) -> str | None:
    """All of `text` as strict JSON; None where it is not one value."""
    copy = JsonCopy()
    out = copy.push(text)
    out += "" if copy.done else copy.finish()
    return out.strip() if copy.done and not copy.rest.strip() else None


def _escape(text: str, i: int) -> tuple[str, int] | None:
    """What the escape at `i` stands for, as JSON, and where it ends; None where more text is needed."""
    if len(text) < i + 2:
        return None
    if text[i + 1] in _SIMPLE:
        return text[i : i + 2], i + 2
    unit = _UNIT.match(text, i)
    if unit is None:
        return None if _may_become_unit(text[i : i + 6]) else ("\\\\", i + 1)
    code = int(unit[1], 16)
    if not 0xD800 <= code <= 0xDFFF:
        return unit[0], i + 6
    if code >= 0xDC00:
        return _LONE, i + 6
    low = _UNIT.match(text, i + 6)
    if low is None:
        return None if _may_become_unit(text[i + 6 : i + 12]) else (_LONE, i + 6)
    return (unit[0] + low[0], i + 12) if 0xDC00 <= int(low[1], 16) <= 0xDFFF else (_LONE, i + 6)


def _may_become_unit(start: str) -> bool:
    """Whether `start`, which is the end of the text so far, may be the beginning of an escape by number."""
    return len(start) < 6 and _UNIT.match(start + "\\u0000"[len(start) :]) is not None
