"""An answer's text taken apart: thoughts, text, calls of tools.

    <think> … </think> text <tool_call> … </tool_call> text …

Text is held back only while it may still become a mark, or space that a mark would swallow.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from stepwell.server.parse.call import Call, Result
from stepwell.server.parse.feed import Feed, Steps
from stepwell.server.parse.marks import (
    FUNCTION,
    MOST_SPACE,
    OPEN,
    Kind,
    mark_at,
    mark_behind,
    without_beginning,
    without_space,
)
from stepwell.server.parse.objects import next_char, read_object
from stepwell.server.parse.signatures import Signatures
from stepwell.server.parse.tagged import read_function
from stepwell.server.write.deltas import Delta, Said, Thought

THINK, THOUGHT = "<think>", "</think>"

_SIGNS = re.compile(f"{OPEN}|{FUNCTION}")
_SPACE = re.compile(r"\s*")


class ReplyStart(Enum):
    """Where the prompt leaves the answer."""

    OPEN = auto()  # the model may begin with a thought
    THINKING = auto()  # the prompt has opened one
    SPEAKING = auto()  # marks of thoughts mean nothing


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read an answer. `signatures` None: no calls are looked for; `several` False: the first call ends the answer.

    end_of_thought  the token that ends a thought, where it is one token
    """

    start: ReplyStart = ReplyStart.SPEAKING
    signatures: Signatures | None = None
    several: bool = True
    new_id: Callable[[], str] = field(default=lambda: f"call_{secrets.token_hex(12)}")
    end_of_thought: int | None = None

    @property
    def plain(self) -> bool:
        """Whether all text is simply said."""
        return self.start is ReplyStart.SPEAKING and self.signatures is None


class ReplyReader:
    """Reads one answer.

    calls     calls that the caller has heard of
    cut       the last of them has no end
    over      nothing after what was read is wanted: the one call that was allowed has come, or one that is broken
    thinking  a thought has begun and not ended
    tail      everything from the space before the first call on, as the model wrote it
    """

    __slots__ = ("_feed", "_out", "_reading", "_spoke", "_steps", "calls", "cut", "over", "thinking")

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self._feed = Feed()
        self._out: list[Delta] = []
        self._spoke = False
        self.calls = 0
        self.cut = False
        self.over = False
        self.thinking = reading.start is ReplyStart.THINKING
        self._steps: Steps[None] | None = self._read()

    @property
    def tail(self) -> str:
        return "".join(self._feed.kept or ())

    def push(self, text: str) -> list[Delta]:
        """What more text adds."""
        self._feed.push(text)
        return self._go_on()

    def flush(self, cut: bool = False) -> list[Delta]:
        """The answer has ended: whatever was held back. `cut`: there was no room for more of it."""
        self._feed.ended, self._feed.cut = True, cut
        return self._go_on()

    def _go_on(self) -> list[Delta]:
        if self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None
                self.over = not self._feed.ended
        out = self._out.copy()
        self._out.clear()
        return out

    def _read(self) -> Steps[None]:
        if self._reading.start is ReplyStart.OPEN:
            yield from self._begin()
        if self.thinking:
            yield from self._think()
            yield from next_char(self._feed)
        yield from self._speak()

    def _begin(self) -> Steps[None]:
        """Whether the answer begins with a thought."""
        feed = self._feed
        while True:
            start = feed.text.lstrip()
            space = len(feed.text) - len(start)
            if space <= MOST_SPACE and start.startswith(THINK):
                feed.take(space + len(THINK))
                self.thinking = True
                return
            if feed.ended or space > MOST_SPACE or not THINK.startswith(start):
                return
            yield

    def _think(self) -> Steps[None]:
        feed = self._feed
        yield from next_char(feed)
        while True:
            mark = feed.text.find(THOUGHT, feed.at)
            end = without_beginning(feed.text, feed.at, (THOUGHT,)) if mark < 0 and not feed.ended else mark
            end = len(feed.text) if end < 0 else end
            self._pass(Thought, feed.take(without_space(feed.text, feed.at, end)))
            if mark >= 0:
                feed.take(mark + len(THOUGHT))
                self.thinking = False
                return
            if feed.ended:
                return
            yield

    def _speak(self) -> Steps[None]:
        lead: str | None = ""
        while lead is not None:
            before = yield from self._say(lead)
            if before is None:
                return
            lead = yield from self._calls(before)

    def _say(self, lead: str) -> Steps[str | None]:
        """Text up to a call's mark, with `lead` before it; the space before the mark, or None at the end of the answer."""
        feed, calls = self._feed, self._reading.signatures is not None
        looked = 0
        while True:
            sign = _SIGNS.search(feed.text, feed.at + looked) if calls else None
            if sign is not None and sign[0] == FUNCTION and not self._is_call(sign.start()):
                looked = sign.end() - feed.at  # text
                continue
            end = sign.start() if sign is not None else len(feed.text)
            if sign is None and calls and not feed.ended:
                end = without_beginning(feed.text, feed.at, (OPEN, FUNCTION))
            held = end if feed.ended and sign is None else without_space(feed.text, feed.at, end) if calls else end
            if held > feed.at:
                self._pass(Said, lead + feed.take(held))
                self._spoke, lead = True, ""
            looked = 0
            if sign is not None and self._decided(sign.start()):
                return feed.take(sign.start())
            if feed.ended:
                return None
            yield

    def _is_call(self, place: int) -> bool:
        """Whether the head of a function at `place`, which nothing has announced, may begin a call."""
        signatures, head = self._reading.signatures, mark_at(self._feed, place)
        assert signatures is not None
        if head.kind is Kind.WAIT:
            return True
        if head.kind is not Kind.FUNCTION or not signatures.knows(head.name):
            return False
        behind = mark_behind(self._feed, head.end)
        if behind.kind is Kind.OTHER:
            return self._feed.text.startswith("{", behind.start)
        return behind.kind in (Kind.PARAMETER, Kind.END_FUNCTION, Kind.WAIT)

    def _decided(self, place: int) -> bool:
        """Whether it can be said that a call begins at `place`."""
        head = mark_at(self._feed, place)
        return head.kind is Kind.OPEN or (
            head.kind is Kind.FUNCTION and mark_behind(self._feed, head.end).kind is not Kind.WAIT
        )

    def _calls(self, before: str) -> Steps[str | None]:
        """Read one call, or several within one pair of marks. Returns the beginning of the text after them; None if no more is wanted."""
        feed = self._feed
        feed.mark()
        if not self.calls:
            feed.kept = [before]
        opening = mark_at(feed, feed.at)
        if opening.kind is Kind.OPEN:
            feed.take(opening.end)
        space = before
        while True:
            result = yield from self._call()
            if result is Result.NONE:
                if not self.calls:
                    feed.kept = None
                self._pass(Said, space + feed.since_mark())
                self._spoke = True
                return ""
            self.calls += 1
            self.cut = result is Result.CUT
            if self.cut or not self._reading.several:
                return None
            space = yield from self._space()
            while (behind := mark_at(feed, feed.at)).kind is Kind.WAIT:
                yield
            if behind.kind is Kind.CLOSE:
                feed.take(behind.end)
                space = yield from self._space()
            elif opening.kind is Kind.OPEN and feed.text.startswith("{", feed.at):
                feed.mark()
                continue
            return (space or before or "\n") if self._spoke else ""

    def _call(self) -> Steps[Result]:
        feed, signatures = self._feed, self._reading.signatures
        assert signatures is not None
        call = Call(self.calls, self._reading.new_id, self._out)
        char = yield from next_char(feed)
        if char == "{":
            return (yield from read_object(feed, call))
        while (head := mark_at(feed, feed.at)).kind is Kind.WAIT:
            yield
        if head.kind is Kind.FUNCTION:
            return (yield from read_function(feed, call, signatures))
        return Result.NONE

    def _space(self) -> Steps[str]:
        """The space that comes next, or the first part of it."""
        feed, space = self._feed, ""
        while True:
            found = _SPACE.match(feed.text, feed.at)
            assert found is not None
            space = (space + feed.take(found.end()))[:MOST_SPACE]
            if feed.at < len(feed.text) or feed.ended:
                return space
            yield

    def _pass(self, kind: type[Said] | type[Thought], text: str) -> None:
        if text:
            self._out.append(kind(text))
