"""The grammar process: reads grammars and follows answers, one question after the other.

    python -m stepwell.engine.grammar.process      a Start on standard input, then questions; answers on standard output

It ends with its input, so with its engine. A mask or a grammar that takes too much processor time ends it, since nothing interrupts
llguidance: that question is answered with its fault before. So does memory beyond what the process is given, without an answer. The
engine starts it again.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO

from stepwell.engine.grammar import wire
from stepwell.engine.grammar.vocabulary import GuideError, first_line, read_vocabulary, refusal
from stepwell.engine.grammar.watch import Watch

MASK_SECONDS = 20.0
"""Seconds of its thread's processor time after which a mask ends the process."""
READ_SECONDS = 120.0
"""Seconds of its thread's processor time after which a grammar that is still being read ends the process; the server's own trial of it
takes 20 at most."""
TOLD = 3
"""Exit status after a question that took too long: it has been answered, and nothing else had to do with the end."""
MOST_BYTES = 2_000_000
"""Of all grammars that are kept as text: what was read of them takes 150 MB at most, as measured."""
_MEMORY = 4 * 2**30  # bytes of address space
_STACK = 256 * 2**20  # bytes; rules that lead to rules, 100,000 characters of them, were seen to take up to 128 MB
READING = 2
"""Threads that read; one that reads a huge grammar leaves the other to the small ones."""


def reading_threads(count: int) -> ThreadPoolExecutor:
    """Threads that may read grammars: llguidance follows references by recursion, and a stack that overflows ends the process."""
    pool = ThreadPoolExecutor(count, "grammar")
    usual = threading.stack_size(_STACK)  # of threads that start from now on: all of the pool's are made to
    try:
        together = threading.Barrier(count)
        for waits in [pool.submit(together.wait) for _ in range(count)]:
            waits.result()
    finally:
        threading.stack_size(usual)
    return pool


@dataclass(slots=True)
class _Parser:
    """`state` has read `given` tokens of an answer."""

    state: Any
    given: int = 0


class Follower:
    """Owns what has been read, and the parsers. `read` may be called in several threads, `next` in one."""

    __slots__ = ("_keep", "_lock", "_parsers", "_read", "_tokenizer")

    def __init__(self, tokenizer: Any, keep: int) -> None:
        """`keep`: how many grammars, and parsers, are remembered: those used last."""
        self._tokenizer = tokenizer
        self._keep = keep
        self._lock = threading.Lock()
        self._read: OrderedDict[bytes, tuple[int, Any]] = OrderedDict()
        self._parsers: OrderedDict[int, _Parser] = OrderedDict()

    def read(self, grammar: bytes) -> wire.Told:
        """Read a grammar, without the interpreter's lock: up to seconds. Whatever is wrong with it is told."""
        began = time.thread_time()
        try:
            matcher = self._matcher(grammar)
        except BaseException as error:  # a panic in Rust is no Exception
            return _failed(error, began)
        with self._lock:
            self._read[wire.digest(grammar)] = len(grammar), matcher
            self._forget()
        return wire.Told("", time.thread_time() - began)

    def next(self, asked: wire.Next) -> wire.Told | wire.Lost:
        """What may follow. However a parser fails is told, and costs that parser alone."""
        began = time.thread_time()
        parser = self._parsers.pop(asked.parser, None)
        try:
            if parser is None or parser.given != asked.given:
                if asked.given or (read := self._known(asked.grammar)) is None:
                    return wire.Lost()
                parser = _Parser(read.deep_copy())
            bits = _consumed(parser.state, asked.tokens)
        except BaseException as error:
            return _failed(error, began)
        parser.given += len(asked.tokens)
        self._parsers[asked.parser] = parser
        if len(self._parsers) > self._keep:
            self._parsers.popitem(last=False)
        return wire.Told("", time.thread_time() - began, bits)

    def _matcher(self, grammar: bytes) -> Any:
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokenizer, grammar.decode("utf-8", "surrogatepass"), log_level=0)
        if not matcher.is_error():
            matcher.compute_bitmask()  # the first one reads on: not while others wait for theirs
        if matcher.is_error():
            raise GuideError(f"the grammar cannot be followed: {first_line(matcher.get_error())}")
        return matcher

    def _known(self, name: bytes) -> Any:
        with self._lock:
            if name not in self._read:
                return None
            self._read.move_to_end(name)
            return self._read[name][1]

    def _forget(self) -> None:
        while len(self._read) > 1 and (
            len(self._read) > self._keep or sum(size for size, _ in self._read.values()) > MOST_BYTES
        ):
            self._read.popitem(last=False)


def _consumed(state: Any, tokens: list[int]) -> bytes:
    """What may follow once `state` has read `tokens`. Raises GuideError, or whatever llguidance raises."""
    if not state.consume_tokens(tokens):
        raise GuideError(f"the answer left its grammar: {first_line(state.get_error())}")
    bits = bytes(state.compute_bitmask())
    if state.is_error():
        raise GuideError(f"the grammar cannot be followed: {first_line(state.get_error())}")
    return bits


def _failed(error: BaseException, began: float) -> wire.Told:
    message = (
        str(error)
        if isinstance(error, GuideError)
        else f"the grammar cannot be followed: {first_line(f'{type(error).__name__}: {error}')}"
    )
    return wire.Told(message, time.thread_time() - began)


class _Unread:
    """Stands in for a Follower where the vocabulary cannot be read any more."""

    def __init__(self, fault: str) -> None:
        self._fault = fault

    def read(self, grammar: bytes) -> wire.Told:
        return wire.Told(self._fault, 0.0)

    def next(self, asked: wire.Next) -> wire.Lost:
        return wire.Lost()


class _Answers:
    """Standard output, for several threads."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, number: int, answer: wire.Answer) -> None:
        with self._lock:
            self._stream.write(wire.framed((number, answer)))
            self._stream.flush()


def serve(questions: BinaryIO, answers: BinaryIO) -> None:
    """Answer until the input ends."""
    start = wire.start(questions)
    if start is None:
        return
    os.nice(start.nice)
    follower: Follower | _Unread
    try:
        follower = Follower(read_vocabulary(start.directory, start.size, start.ends), start.keep)
    except GuideError as error:
        follower = _Unread(str(error))
    out = _Answers(answers)
    watch = Watch(partial(_end, out))
    readers = reading_threads(READING)
    while (asked := wire.question(questions)) is not None:
        number, what = asked
        match what:
            case wire.Read(grammar):
                readers.submit(_read, follower, watch, out, number, grammar)
            case wire.Next():
                out.send(number, _next(follower, watch, number, what))


def _read(follower: Follower | _Unread, watch: Watch, out: _Answers, number: int, grammar: bytes) -> None:
    with watch.over(number, READ_SECONDS, refusal(f"it takes more than {READ_SECONDS:g} s to read")):
        told = follower.read(grammar)
    out.send(number, told)


def _next(follower: Follower | _Unread, watch: Watch, number: int, what: wire.Next) -> wire.Told | wire.Lost:
    # The signal of this timer ends the process even where the interpreter's lock is held. All threads' time counts for it, so it leaves
    # each of them as much as a mask may take.
    signal.setitimer(signal.ITIMER_PROF, MASK_SECONDS * (1 + READING))
    try:
        with watch.over(number, MASK_SECONDS, refusal(f"one mask takes more than {MASK_SECONDS:g} s")):
            return follower.next(what)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _end(out: _Answers, number: int, fault: str) -> None:
    out.send(number, wire.Told(fault, READ_SECONDS))
    os._exit(TOLD)


def main() -> None:
    """Entry of the process. Signals of the terminal are the engine's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed is no answer
    status = 0
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:
        pass  # the engine has gone
    except Exception:
        traceback.print_exc()
        status = 1
    os._exit(status)  # whatever is still being read, or could not be told: nobody asks for it any more


if __name__ == "__main__":
    main()
