"""The engine's side of a grammar process: starts it when it is first needed, and again whenever it has ended."""

from __future__ import annotations

import logging
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import BinaryIO

import msgspec

from stepwell.base.children import ONE_THREAD, command, environment
from stepwell.base.errors import StepwellError
from stepwell.engine.grammar import wire
from stepwell.engine.grammar.process import MASK_SECONDS, READ_SECONDS, READING, TOLD
from stepwell.engine.grammar.vocabulary import refusal

log = logging.getLogger(__name__)

_MODULE = "stepwell.engine.grammar.process"


class Unavailable(StepwellError):
    """No process can be asked."""


class Ended(StepwellError):
    """The process ended before it answered. `suspect`: this question may be the reason; if it is not one, ask it again."""

    def __init__(self, message: str, suspect: bool) -> None:
        super().__init__(message)
        self.suspect = suspect


@dataclass(frozen=True, slots=True, eq=False)
class _Asked:
    """A question without an answer."""

    what: wire.Question
    answer: Future[wire.Answer] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class _Running:
    """A process that has been started, and what it has been asked, in order. `over`: no answer comes any more."""

    process: subprocess.Popen[bytes]
    questions: BinaryIO
    answers: BinaryIO
    waiting: dict[int, _Asked] = field(default_factory=dict)
    over: bool = False


class GrammarProcess:
    """Safe to call from several threads. Each process has a thread that takes its answers."""

    __slots__ = ("_cells", "_closed", "_count", "_lock", "_running", "_start", "_threads", "_writing")

    def __init__(self, start: wire.Start) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._running: _Running | None = None
        self._threads: list[threading.Thread] = []
        self._cells: set[GrammarProcess] = set()
        self._count = 0
        self._closed = False

    def ask(self, questions: Sequence[wire.Question]) -> list[Future[wire.Answer]]:
        """The answers to come, or `Ended`, or `Unavailable`. Starts a process where none runs. Blocks while the process reads nothing: as
        long as its questions before take."""
        asked = [_Asked(what) for what in questions]
        with self._writing:
            try:
                running, frames = self._registered(asked)
            except Unavailable as error:
                for one in asked:
                    one.answer.set_exception(error)
            else:
                try:
                    running.questions.write(frames)
                    running.questions.flush()
                except (OSError, ValueError):
                    pass  # it has ended: who takes its answers tells everybody
        return [one.answer for one in asked]

    @contextmanager
    def cell(self) -> Iterator[GrammarProcess]:
        """Another process like this one, for questions that may end it. It ends with the block, and when this one is closed."""
        made = GrammarProcess(self._start)
        with self._lock:
            made._closed = self._closed
            self._cells.add(made)
        try:
            yield made
        finally:
            made.close()
            with self._lock:
                self._cells.discard(made)

    def close(self) -> None:
        """End the process for good: what it has been asked is `Ended`."""
        with self._lock:
            self._closed = True
            running, cells, threads = self._running, list(self._cells), list(self._threads)
        if running is not None:
            running.process.kill()
        for cell in cells:
            cell.close()
        for thread in threads:
            thread.join()

    def _registered(self, asked: Sequence[_Asked]) -> tuple[_Running, bytes]:
        """Who will answer, and what to write. Raises Unavailable."""
        with self._lock:
            if self._closed:
                raise Unavailable("the engine is closing")
            frames = []
            if self._running is None or self._running.over:
                self._running = self._begun()
                frames.append(wire.framed(self._start))
            for one in asked:
                self._count += 1
                self._running.waiting[self._count] = one
                frames.append(wire.framed((self._count, one.what)))
            return self._running, b"".join(frames)

    def _begun(self) -> _Running:
        try:
            process = subprocess.Popen(
                command(_MODULE),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment(**ONE_THREAD),
                process_group=0,  # Ctrl-C is the engine's business, before the process can say so itself
            )
        except OSError as error:
            raise Unavailable(f"its process cannot be started ({error})") from error
        assert process.stdin is not None and process.stdout is not None
        running = _Running(process, process.stdin, process.stdout)  # type: ignore[arg-type]
        taker = threading.Thread(target=self._take_answers, args=(running,), name="grammar-answers", daemon=True)
        self._threads = [thread for thread in self._threads if thread.is_alive()] + [taker]
        taker.start()
        return running

    def _take_answers(self, running: _Running) -> None:
        try:
            while (answer := wire.answer(running.answers)) is not None:
                with self._lock:
                    asked = running.waiting.pop(answer[0])
                asked.answer.set_result(answer[1])
        except (msgspec.DecodeError, StepwellError, KeyError) as fault:
            log.error("a grammar process said what is no answer (%s: %s): it is ended", type(fault).__name__, fault)
        running.process.kill()  # where it has closed its output and goes on
        status = running.process.wait()
        with self._lock:
            running.over = True
            left = list(running.waiting.values())
            running.waiting.clear()
        _settle(left, status)
        running.answers.close()


def _settle(left: Sequence[_Asked], status: int) -> None:
    """Tell each question without an answer what the end of the process, of this exit status, means for it.

    The process follows one answer at a time, and reads so many grammars at once, each in the order in which they were asked for.
    """
    masks = (one for one in left if isinstance(one.what, wire.Next))
    reads = (one for one in left if isinstance(one.what, wire.Read))
    under_way = {*islice(masks, 1), *islice(reads, READING)}
    for one in left:
        if status == -signal.SIGPROF and one in under_way and isinstance(one.what, wire.Next):
            one.answer.set_result(wire.Told(refusal(f"one mask takes more than {MASK_SECONDS:g} s"), READ_SECONDS))
        else:
            suspect = one in under_way and status not in (TOLD, -signal.SIGPROF)
            why = f"its process ended (status {status}): more memory than it is given, for one"
            one.answer.set_exception(Ended(why, suspect))
