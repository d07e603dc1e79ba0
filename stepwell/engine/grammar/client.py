"""The engine's side of a grammar process: starts it when it is first needed, and again whenever it has ended."""

from __future__ import annotations

import logging
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from stepwell.base.errors import StepwellError
from stepwell.engine.grammar import wire

log = logging.getLogger(__name__)

_MODULE = "stepwell.engine.grammar.process"


class Ended(StepwellError):
    """The process ended before it answered. `slow`: because a mask took too long."""

    def __init__(self, message: str, slow: bool) -> None:
        super().__init__(message)
        self.slow = slow


@dataclass(slots=True, eq=False)
class _Running:
    """A process that has been started, and the futures that wait for its answers. `over`: no answer comes any more."""

    process: subprocess.Popen[bytes]
    questions: BinaryIO
    answers: BinaryIO
    waiting: dict[int, Future[wire.Answer]] = field(default_factory=dict)
    over: bool = False


class GrammarProcess:
    """Safe to call from several threads. Each process has a thread that takes its answers."""

    __slots__ = ("_asked", "_closed", "_lock", "_running", "_start", "_threads", "_writing")

    def __init__(self, start: wire.Start) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._running: _Running | None = None
        self._threads: list[threading.Thread] = []
        self._asked = 0
        self._closed = False

    def ask(self, questions: Sequence[wire.Question]) -> list[Future[wire.Answer]]:
        """The answers to come, or `Ended`. Starts a process where none runs. Blocks while the process reads nothing: as long as its
        questions before take."""
        asked: list[Future[wire.Answer]] = [Future() for _ in questions]
        with self._writing:
            try:
                running, frames = self._registered(questions, asked)
            except Ended as error:
                for future in asked:
                    future.set_exception(error)
                return asked
            try:
                running.questions.write(frames)
                running.questions.flush()
            except (OSError, ValueError):
                pass  # it has ended: who takes its answers tells everybody
        return asked

    def stop(self) -> None:
        """End the process, if one runs: what it has been asked is `Ended`. The next question starts another."""
        with self._lock:
            running = self._running
        if running is not None:
            running.process.kill()

    def close(self) -> None:
        """End the process for good."""
        with self._lock:
            self._closed = True
        self.stop()
        for thread in self._threads:
            thread.join()

    def _registered(
        self, questions: Sequence[wire.Question], asked: list[Future[wire.Answer]]
    ) -> tuple[_Running, bytes]:
        """Who will answer, and what to write."""
        with self._lock:
            if self._closed:
                raise Ended("the engine is closing", slow=False)
            frames = []
            if self._running is None or self._running.over:
                self._running = self._begun()
                frames.append(wire.framed(self._start))
            for what, future in zip(questions, asked, strict=True):
                self._asked += 1
                self._running.waiting[self._asked] = future
                frames.append(wire.framed((self._asked, what)))
            return self._running, b"".join(frames)

    def _begun(self) -> _Running:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                process_group=0,  # Ctrl-C is the engine's business, before the process can say so itself
            )
        except OSError as error:
            raise Ended(f"its process cannot be started ({error})", slow=False) from error
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
                    future = running.waiting.pop(answer[0])
                future.set_result(answer[1])
        except (msgspec.DecodeError, StepwellError, KeyError) as fault:
            log.error("a grammar process said what is no answer (%s: %s): it is ended", type(fault).__name__, fault)
        running.process.kill()  # where it has closed its output and goes on
        error = _why(running.process.wait())
        with self._lock:
            running.over = True
            left = list(running.waiting.values())
            running.waiting.clear()
        for future in left:
            future.set_exception(error)
        running.answers.close()


def _why(status: int) -> Ended:
    """What the exit status of a process says."""
    if status == -signal.SIGPROF:
        return Ended("its process took too long for one mask", slow=True)
    return Ended(f"its process ended (status {status}): more memory than it is given, for one", slow=False)
