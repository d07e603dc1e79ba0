"""Calls whose parameters stand between marks of their own.

    <function=f>
    <parameter=x>
    any text
    </parameter>
    </function>

A value may itself hold such marks. One ends it only where what follows could follow a value; a mark that the model forgets is made up for
where only one thing can be meant.
"""

from __future__ import annotations

from stepwell.server.parse.call import Call, Result
from stepwell.server.parse.feed import Feed, Steps
from stepwell.server.parse.marks import Kind, Mark, mark_at, mark_behind
from stepwell.server.parse.objects import copy_value, next_char
from stepwell.server.parse.signatures import Signatures, Types, quoted, read_value

_NULL = 64  # characters up to which a value may turn out to be null


def read_function(feed: Feed, call: Call, signatures: Signatures) -> Steps[Result]:
    """Read a call from its whole head, `<function=f>`, on."""
    head = mark_at(feed, feed.at)
    feed.take(head.end)
    call.open(head.name)
    seen: set[str] = set()
    while True:
        char = yield from next_char(feed)
        mark = mark_at(feed, feed.at)
        match mark.kind:
            case Kind.WAIT:
                yield
            case Kind.PARAMETER if mark.name not in seen:
                seen.add(mark.name)
                if not (yield from _Parameter(feed, call, signatures, seen).read(mark)):
                    return call.cut()
            case Kind.END_FUNCTION:
                feed.take(mark.end)
                return _end(call, seen)
            case Kind.CLOSE | Kind.OPEN | Kind.FUNCTION:
                return _end(call, seen)
            case Kind.END if seen and feed.closed:
                return _end(call, seen)
            case Kind.OTHER if char == "{" and not seen:
                return (yield from _object(feed, call))
            case _:
                return call.cut()


def _end(call: Call, seen: set[str]) -> Result:
    call.grow("}" if seen else "{}")
    return call.close()


def _object(feed: Feed, call: Call) -> Steps[Result]:
    """Arguments as one JSON object in place of marked parameters."""
    if not (yield from copy_value(feed, call.grow)):
        return call.cut()
    result = call.close()
    yield from next_char(feed)
    while (mark := mark_at(feed, feed.at)).kind is Kind.WAIT:
        yield
    if mark.kind is Kind.END_FUNCTION:
        feed.take(mark.end)
    return result


class _Parameter:
    """Reads one parameter. `seen` are the names of those so far, this one's among them."""

    def __init__(self, feed: Feed, call: Call, signatures: Signatures, seen: set[str]) -> None:
        self._feed = feed
        self._call = call
        self._signatures = signatures
        self._seen = seen

    def read(self, head: Mark) -> Steps[bool]:
        """The whole of it, as a member of the call's arguments; False where the text ends within it."""
        feed, call = self._feed, self._call
        feed.take(head.end)
        call.grow(f"{', ' if len(self._seen) > 1 else '{'}{quoted(head.name)}: ")
        value = _Value(call, self._signatures.allowed(call.name, head.name))
        while feed.at == len(feed.text) and not feed.ended:
            yield
        begun = feed.text.startswith("\n", feed.at)
        feed.take(feed.at + begun)
        while True:
            sign = feed.text.find("<", feed.at)
            end = len(feed.text) if sign < 0 else sign
            held = end - (end > feed.at and feed.text[end - 1] == "\n")  # it may belong to the mark
            begun = (begun and end == feed.at) or held < end
            value.give(feed.take(held))
            after = self._end(sign, begun) if sign >= 0 else None
            if after is not None and after.kind is not Kind.WAIT:
                if after.kind is not Kind.OTHER:
                    feed.take(after.end if after.kind is Kind.END_PARAMETER else after.start)
                    value.finish()
                    return True
                begun = False
                value.give(feed.take(sign + 1))
            elif feed.ended:
                return False
            else:
                yield

    def _end(self, sign: int, begins_line: bool) -> Mark:
        """The mark at `sign` where it ends the value, and other text where it does not."""
        mark = mark_at(self._feed, sign)
        other = Mark(Kind.OTHER, sign, sign)
        match mark.kind:
            case Kind.WAIT | Kind.OTHER:
                return mark
            case Kind.PARAMETER:
                declared = self._signatures.declares(self._call.name, mark.name) and mark.name not in self._seen
                return mark if begins_line and declared else other
            case Kind.END_PARAMETER:
                follows = {Kind.END_FUNCTION, Kind.CLOSE, Kind.OPEN}
            case Kind.END_FUNCTION if begins_line:
                follows = {Kind.CLOSE, Kind.OPEN}
            case Kind.CLOSE if begins_line:
                follows = set()
            case _:
                return other
        behind = mark_behind(self._feed, mark.end)
        match behind.kind:
            case Kind.WAIT:
                return behind
            case Kind.END:
                return mark if self._feed.closed else other
            case Kind.PARAMETER:
                return mark if mark.kind is Kind.END_PARAMETER and behind.name not in self._seen else other
            case Kind.FUNCTION:
                return mark if mark.kind is not Kind.CLOSE and self._signatures.knows(behind.name) else other
            case kind:
                return mark if kind in follows else other


class _Value:
    """A value on its way to a call: text that can only be a string goes at once, everything else when it is whole."""

    __slots__ = ("_allowed", "_call", "_held", "_length", "_streams")

    def __init__(self, call: Call, allowed: Types) -> None:
        self._call = call
        self._allowed = allowed
        self._held: list[str] = []
        self._length = 0
        self._streams = False

    def give(self, text: str) -> None:
        if not text:
            return
        if self._streams:
            self._call.grow(quoted(text)[1:-1])
            return
        self._held.append(text)
        self._length += len(text)
        if "string" in self._allowed and not ("null" in self._allowed and self._may_be_null()):
            self._streams = True
            self._call.grow(quoted("".join(self._held))[:-1])

    def finish(self) -> None:
        self._call.grow('"' if self._streams else read_value("".join(self._held), self._allowed))

    def _may_be_null(self) -> bool:
        if self._length > _NULL:
            return False
        begun = "".join(self._held).lstrip()
        return "null".startswith(begun) or (begun.startswith("null") and not begun[4:].strip())
