"""A worker at the other end of a wire, which is in this process: steps, results, moves and reports cross it as bytes.

    loop ── WiredRunner ── bytes ──▶ Endpoint ── the worker's own runner and mover
         ── WiredMover  ── bytes ──▶

A worker in a process of its own answers the same three calls of `Endpoint`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from stepwell.cache.moves import Report, Task, moves_of
from stepwell.engine.wire.moves import read_reports, read_tasks, write_reports, write_tasks
from stepwell.engine.wire.steps import StepReader, StepWriter, read_result, write_result
from stepwell.sched.step import Mover, Runner, Step, StepResult

Answer: TypeAlias = Callable[[], bytes]
"""Waits for a launched step's result, and gives it as bytes."""


class Endpoint:
    """The worker's side. Its mover is told of copies on the thread that calls."""

    def __init__(self, runner: Runner, mover: Mover) -> None:
        self._runner = runner
        self._mover = mover
        self._reader = StepReader()
        self.open = 0
        """Moves that have been started and not been reported."""

    def launch(self, data: bytes) -> Answer:
        computing = self._runner.launch(self._reader.read(data))
        return lambda: write_result(computing.result())

    def start(self, data: bytes) -> None:
        tasks = read_tasks(data)
        self.open += sum(1 for _ in moves_of(tasks))
        self._mover.start(tasks)

    def poll(self) -> bytes:
        reports = self._mover.poll()
        self.open -= len(reports)
        return write_reports(reports)

    def wait(self, seconds: float) -> None:
        """Wait until a copy has ended, at most this long."""
        self._mover.wait(seconds)


@dataclass(frozen=True, slots=True)
class _Asked:
    answer: Answer

    def result(self) -> StepResult:
        return read_result(self.answer())


class WiredRunner:
    """A `Runner` that has an endpoint compute."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self._writer = StepWriter()

    def launch(self, step: Step) -> _Asked:
        return _Asked(self._endpoint.launch(self._writer.write(step)))


class WiredMover:
    """A `Mover` that has an endpoint copy."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    def start(self, tasks: Sequence[Task]) -> None:
        self._endpoint.start(write_tasks(tasks))

    def poll(self) -> list[Report]:
        return read_reports(self._endpoint.poll()) if self._endpoint.open else []

    def wait(self, seconds: float) -> None:
        self._endpoint.wait(seconds)
