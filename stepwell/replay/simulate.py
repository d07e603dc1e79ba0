"""A trace played through the real scheduler and cache on a virtual clock."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from stepwell.base.clock import VirtualClock
from stepwell.base.errors import CapacityError, RequestError, StepwellError
from stepwell.replay.lanes import Source, TraceRequest
from stepwell.replay.ledger import Ledger
from stepwell.replay.runner import Links
from stepwell.replay.text import Text
from stepwell.sched.request import Admitted, Event, Finished, Request, SamplingParams, Tokens

MOST_TURNS_AT_ONCE = 10_000
"""Turns of the simulation in a row that may let no time pass; more means that something is stuck."""


class RungStats(Protocol):
    """What a simulation asks of an engine's counters: rungs left so far, and those for which there was no room."""

    @property
    def rungs_left(self) -> int: ...

    @property
    def rungs_skipped(self) -> int: ...


class Loop(Protocol):
    """The part of the engine loop that a simulation drives."""

    @property
    def busy(self) -> bool:
        """Whether any request is unfinished, or any copy under way."""

    def submit(self, request: Request) -> None: ...

    def stats(self) -> RungStats: ...

    def step(self, most: int) -> Sequence[Event]:
        """One turn; its runner and mover let the virtual time pass. Takes up to `most` decode passes at once."""


class Served(Protocol):
    """A loop and the clock that its steps advance."""

    @property
    def loop(self) -> Loop: ...

    @property
    def clock(self) -> VirtualClock: ...

    def passes_until(self, when: float) -> int:
        """Decode passes that fit before `when` and before any copy ends; at least 1."""


class Imagined(Served, Protocol):
    """An engine of which nothing is real: what it copied and computed is told as well."""

    @property
    def links(self) -> Links: ...

    @property
    def steps(self) -> int:
        """Passes computed."""


@dataclass(frozen=True, slots=True)
class Phases:
    """s of virtual time: a warm-up that no figure counts, then the measured phase."""

    warmup: float = 900.0
    duration: float = 3600.0

    @property
    def end(self) -> float:
        return self.warmup + self.duration


@dataclass(slots=True)
class Simulation:
    """One replay in the making. `run` ends with the phases, or once the source has nothing left.

    at_start  what the loop said of itself when the measured phase began; None: it never did
    """

    source: Source
    machine: Served
    text: Text
    phases: Phases
    ledger: Ledger = field(init=False)
    at_start: RungStats | None = field(init=False, default=None)
    _open: dict[str, TraceRequest] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.ledger = Ledger(self.phases.warmup)

    def run(self, progress: ProgressBar | None = None) -> None:
        """Play it all. Raises StepwellError where no time passes any more."""
        self._play(progress)
        self.ledger.abandon(self.machine.clock.now())

    def _play(self, progress: ProgressBar | None) -> None:
        loop, clock = self.machine.loop, self.machine.clock
        turns, last = 0, -1.0
        while (now := clock.now()) < self.phases.end:
            turns, last = (0, now) if now > last else (turns + 1, now)
            if turns > MOST_TURNS_AT_ONCE:
                raise StepwellError(f"no progress at {now:.1f} s with {len(self._open)} requests open")
            for request in self.source.due(now):
                self._send(request, now)
            if not loop.busy:
                upcoming = self.source.next_time()
                if upcoming is None:
                    return
                clock.advance_to(min(upcoming, self.phases.end))
                continue
            if self.at_start is None and now >= self.phases.warmup:
                self.at_start = loop.stats()
            events = loop.step(self._passes())
            for event in events:
                self._hear(event)
            if progress is not None:
                progress.show(clock.now(), self.ledger.played)

    def _passes(self) -> int:
        """Decode passes that may be taken at once: up to the next arrival."""
        upcoming = self.source.next_time()
        return self.machine.passes_until(self.phases.end if upcoming is None else min(upcoming, self.phases.end))

    def _send(self, request: TraceRequest, now: float) -> None:
        prompt = self.text.prompt(request.conversation, request.stream, request.index, request.edition)
        params = SamplingParams(max_tokens=request.output, ignore_eos=True)
        self._open[request.id] = request
        self.ledger.send(request, min(request.time, now))  # it may have come while a step was computing
        try:
            self.machine.loop.submit(Request(request.id, prompt, params, session=request.session))
        except (RequestError, CapacityError):
            self._end(request.id, failed=True)

    def _hear(self, event: Event) -> None:
        now = self.machine.clock.now()
        match event:
            case Tokens(request_id=name, tokens=tokens):  # first: there are fifty of them to one of the others
                self.ledger.answer(name, len(tokens), now)
            case Admitted(outcome=outcome):
                self.ledger.admit(outcome, now)
            case Finished(request_id=name, reason=reason):
                self._end(name, failed=reason not in ("length", "stop"))

    def _end(self, name: str, failed: bool) -> None:
        now = self.machine.clock.now()
        self.ledger.finish(name, failed, now)
        self.source.finished(self._open.pop(name), now)


@dataclass(slots=True)
class ProgressBar:
    """A bar over virtual time, redrawn at most once per virtual second."""

    progress: Progress
    task: TaskID
    _shown: float = 0.0

    def show(self, now: float, played: int) -> None:
        if now >= self._shown + 1.0:
            self._shown = now
            self.progress.update(self.task, completed=now, played=played)


@contextmanager
def progress_bar(phases: Phases, console: Console) -> Iterator[ProgressBar]:
    """A bar with the time left, while the simulation runs; gone afterwards."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  {task.fields[played]:,} requests"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        yield ProgressBar(progress, progress.add_task("replaying", total=phases.end, played=0))


def timed_run(simulation: Simulation, console: Console | None) -> float:
    """Run it, behind a progress bar if there is a console; real seconds taken."""
    gc.freeze()  # trace and machine stay: collections need not walk them again and again
    began = time.perf_counter()
    if console is None:
        simulation.run()
    else:
        with progress_bar(simulation.phases, console) as progress:
            simulation.run(progress)
    return time.perf_counter() - began
