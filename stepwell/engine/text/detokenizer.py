"""From tokens to the text that a caller sees, piece by piece.

    tokens ──decoder──▶ characters ──stop finder──▶ visible text
              holds back an           holds back a possible
              unfinished character    beginning of a stop

Both stages take one unit at a time, so the joined pieces do not depend on how tokens were grouped on the way.
This module knows text; it does not know requests, HTTP or engines.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from stepwell.sched.request import FinishReason

_REPLACEMENT = "\ufffd"
_MAX_HELD_TOKENS = 8


class TokenDecoder(Protocol):
    """Turns tokens into characters; an unfinished character waits for its rest."""

    def push(self, token: int) -> str: ...

    def flush(self) -> str:
        """What is still held back, with U+FFFD for bytes that never became a character."""


class ByteDecoder:
    """For byte-level vocabularies: `pieces[token]` are the token's bytes, empty for what is not shown.

    names: texts of tokens that have no piece and are to be shown all the same.
    """

    __slots__ = ("_names", "_pieces", "_utf8")

    def __init__(self, pieces: Sequence[bytes], names: Mapping[int, bytes] | None = None) -> None:
        self._pieces = pieces
        self._names = names or {}
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        if token >= len(self._pieces):  # rows that pad the embedding stand for no text
            return ""
        return self._utf8.decode(self._pieces[token] or self._names.get(token, b""))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


class WindowDecoder:
    """For any other vocabulary: decodes a short window twice and emits the difference.

    context: the last tokens of the prompt, so that the first piece keeps its leading space.
    """

    __slots__ = ("_decode", "_shown", "_window")

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = list(context)
        self._shown = len(self._window)

    def push(self, token: int) -> str:
        self._window.append(token)
        text = self._fresh()
        held = len(self._window) - self._shown
        # A character has at most four bytes: what stays broken for longer than that is broken for good.
        if not text or (text.endswith(_REPLACEMENT) and held < _MAX_HELD_TOKENS):
            return ""
        return self._emit(text)

    def flush(self) -> str:
        return self._emit(self._fresh())

    def _fresh(self) -> str:
        return self._decode(self._window)[len(self._decode(self._window[: self._shown])) :]

    def _emit(self, text: str) -> str:
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        return text


class StopFinder:
    """Passes text on until the first stop string, of which no character is shown, or all of it where it is to be kept.

    Reads one character at a time (Knuth–Morris–Pratt, one automaton a stop): the stop that ends first wins, of those that
    end together the longest. Only what may still become a stop is held back. O(stops) a character.
    """

    __slots__ = ("_held", "_keep", "_stops", "found")

    def __init__(self, stops: Sequence[str], keep: bool = False) -> None:
        assert all(stops), "an empty stop string stops everything"
        self._keep = keep
        self._stops = [_Automaton(stop) for stop in stops]
        self._held = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The part of the text so far that is now safe to show."""
        if not self._stops:
            return text
        for i, char in enumerate(text):
            ended = [stop.pattern for stop in self._stops if stop.step(char)]
            if ended:
                self.found = max(ended, key=len)
                read = self._held + text[: i + 1]
                return read if self._keep else read[: -len(self.found)]
        buffer = self._held + text
        keep = len(buffer) - max(stop.matched for stop in self._stops)
        self._held = buffer[keep:]
        return buffer[:keep]

    def flush(self) -> str:
        """What was held back and never became a stop."""
        held, self._held = self._held, ""
        return "" if self.found else held


class _Automaton:
    """How much of a pattern the text read so far ends with."""

    __slots__ = ("_fail", "matched", "pattern")

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.matched = 0
        self._fail = [0] * len(pattern)
        length = 0
        for i in range(1, len(pattern)):
            while length and pattern[i] != pattern[length]:
                length = self._fail[length - 1]
            length += pattern[i] == pattern[length]
            self._fail[i] = length

    def step(self, char: str) -> bool:
        """Read one character; True where the whole pattern has just ended."""
        matched = self.matched
        while matched and self.pattern[matched] != char:
            matched = self._fail[matched - 1]
        matched += self.pattern[matched] == char
        self.matched = matched
        return matched == len(self.pattern)


class Transcript:
    """One answer as it grows: counts its tokens, shows its text, knows why it ended.

    min_tokens: text of the first `min_tokens` tokens is shown as it is; stop strings are looked for only after it.
    keep_stop: the stop string that ends the answer is shown as its last text.
    """

    __slots__ = ("_decoder", "_min_tokens", "_no_stops", "_stops", "reason", "tokens")

    def __init__(
        self, decoder: TokenDecoder, stops: Sequence[str] = (), min_tokens: int = 0, keep_stop: bool = False
    ) -> None:
        self._decoder = decoder
        self._stops = StopFinder(stops, keep_stop)
        self._no_stops = not stops
        self._min_tokens = min_tokens
        self.tokens = 0
        self.reason: FinishReason | None = None

    @property
    def stop(self) -> str | None:
        """The stop string that ended the answer, if one did."""
        return self._stops.found

    def take(self, tokens: Sequence[int], end: FinishReason | None = None) -> str:
        """Text that `tokens` make visible. `end`: the engine has finished, and these are its last tokens.

        After an end by token (`"stop"`) the last token is counted but not shown. A stop string sets `reason` to `"stop"`
        and leaves later tokens uncounted: the caller then aborts the request.
        """
        assert self.reason is None, "this answer has ended"
        shown = tokens[:-1] if end == "stop" else tokens
        if self._no_stops:
            return self._take_all(tokens, shown, end)
        parts = []
        for token in shown:
            parts.append(self._show(self._decoder.push(token)))
            if self._stops.found:
                self.reason = "stop"
                return "".join(parts)
        self.tokens += len(tokens) - len(shown)
        if end is not None:
            self.reason = end
            parts += [self._stops.push(self._decoder.flush()), self._stops.flush()]
            if self._stops.found:
                self.reason = "stop"
        return "".join(parts)

    def _take_all(self, tokens: Sequence[int], shown: Sequence[int], end: FinishReason | None) -> str:
        """`take` where no stop string can hold anything back: most answers, so that it is kept short."""
        self.tokens += len(tokens)
        text = "".join(map(self._decoder.push, shown))
        if end is None:
            return text
        self.reason = end
        return text + self._decoder.flush()

    def _show(self, text: str) -> str:
        self.tokens += 1
        return self._stops.push(text) if self.tokens > self._min_tokens else text
