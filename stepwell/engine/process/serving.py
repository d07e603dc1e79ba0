"""The engine in a process of its own: one loop between two sockets.

    python -m stepwell.engine.process.serving      reads one Start line (JSON) from standard input and serves until told to stop

The sockets lie in a private directory; standard input stays open for as long as the front end lives, so the engine ends
with it whatever kills it. Terminal signals are the front end's business: it decides when the engine stops.
"""

from __future__ import annotations

import importlib
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias

import msgspec
import numpy as np
import zmq

from stepwell.base.clock import Clock, WallClock
from stepwell.base.errors import CapacityError, ConfigError, RankError, RequestError, StepwellError
from stepwell.base.geometry import Ints
from stepwell.cache.moves import Tier
from stepwell.cache.reuse.explain import Explanation, Ladder
from stepwell.engine.config import EngineConfig, EngineFacts, Report
from stepwell.engine.logs import set_up
from stepwell.engine.phases import Phases
from stepwell.engine.process import messages, private
from stepwell.engine.process.garbage import Garbage
from stepwell.engine.process.hints import Hint, HintedLoop, fetched, take_hint
from stepwell.engine.process.pulse import beating
from stepwell.engine.process.stats import stats_message
from stepwell.sched.outlook import Outlook
from stepwell.sched.request import Event, Request
from stepwell.sched.stats import EngineStats
from stepwell.store.mover import SWITCH_SECONDS

log = logging.getLogger("stepwell.engine")

COPY_WAIT = 0.01
"""Seconds at most that a step waits for copies that requests need, and so that a new command may have to wait; and seconds between two
looks at copies that nobody waits for, which a command ends. The next ones begin as these have landed."""
WRITE_WAIT = 0.05
"""Seconds between two looks at whether anything may be written to disk by now, where nothing is being copied; a command ends the wait."""
PREPARE_WAIT = 0.005
"""Seconds between two looks at whether a request that is being made ready can be taken, where nothing else is to be done."""
STATS_EVERY = 0.5
"""Seconds between two statistics of a busy engine; an engine that falls idle always sends its last ones."""


class ServedLoop(HintedLoop, Protocol):
    """What a process or `stepwell.LLM` needs of an engine loop."""

    @property
    def busy(self) -> bool: ...

    @property
    def serving(self) -> bool: ...

    @property
    def copying(self) -> bool: ...

    @property
    def rest(self) -> float | None:
        """Seconds at most after which to ask for `stats` while nothing is to be done; None: not at all."""

    def prepare(self, request: Request) -> bool: ...

    def submit(self, request: Request) -> None: ...

    def abort(self, request_id: str) -> None: ...

    def step(self, *, wait: float = 0.05) -> list[Event]: ...

    def stats(self) -> EngineStats: ...

    def explain(self, salt: str, prompt: Ints, read: bool) -> Explanation: ...

    def outlook(self, salt: str, prompt: Ints, read: bool) -> Outlook: ...

    def reset(self, salt: str | None) -> dict[Tier, int]: ...

    def ladders(self, count: int, owner: str) -> tuple[Ladder, ...]: ...

    def end(self, seconds: float) -> bool: ...


Factory: TypeAlias = Callable[[EngineConfig, Report], ServedLoop]


def commands_address(directory: str) -> str:
    """Where the engine listens."""
    return f"ipc://{directory}/commands"


def answers_address(directory: str) -> str:
    """Where the front end listens."""
    return f"ipc://{directory}/answers"


class EngineService:
    """Runs a loop: take messages, step, send events. Waits in `poll` when there is nothing to do."""

    def __init__(
        self,
        loop: ServedLoop,
        commands: zmq.Socket[bytes],
        answers: zmq.Socket[bytes],
        clock: Clock,
        garbage: Garbage | None = None,
    ) -> None:
        """`garbage`: of the process that this service has for itself, if it has."""
        self._loop = loop
        self._garbage = garbage
        self._commands = commands
        self._answers = answers
        self._clock = clock
        self._stats_due = clock.now()
        self._turn_began: float | None = None
        self._replies: list[messages.WireEvent] = []
        self._open: set[str] = set()
        self._preparing: dict[str, Request] = {}

    def turn_seconds(self) -> float:
        """Seconds that the loop has spent in its present turn, 0 while it waits. For any thread."""
        began = self._turn_began
        return 0.0 if began is None else self._clock.now() - began

    def run(self, facts: EngineFacts) -> float:
        """Serve until told to stop; returns how many seconds the end may take. Raises what the loop raises."""
        self._send(messages.Ready(facts))
        self._send(messages.Batch([], stats_message(self._loop.stats())))
        while (stop := self._take_commands()) is None:
            self._turn()
        for request_id in self._open:
            self._loop.abort(request_id)
        log.debug("%s", self._loop.stats().joint)
        return stop.seconds

    def _turn(self) -> None:
        events = self._replies
        self._replies = []
        if self._loop.busy:
            # While only copies are under way, it is in `_take_commands` that time passes: a request must not wait for them.
            events += map(messages.wire_event, self._loop.step(wait=COPY_WAIT if self._loop.serving else 0.0))
            self._open -= {event.id for event in events if isinstance(event, messages.Finished)}
            for answer in fetched(self._loop):
                self._send(answer)
        now = self._clock.now()
        stats = None
        if now >= self._stats_due or not (self._loop.busy or self._preparing):
            self._stats_due = now + STATS_EVERY
            stats = stats_message(self._loop.stats())
        if events or stats is not None:
            self._send(messages.Batch(events, stats))

    def _take_commands(self) -> messages.Stop | None:
        """Carry out what has arrived, waiting for it if there is nothing else to do; up to the word to stop."""
        self._turn_began = None
        self._wait()
        self._turn_began = self._clock.now()
        while self._commands.poll(0):
            try:
                command = messages.decode_command(self._commands.recv())
            except msgspec.DecodeError as error:
                log.error("a message could not be read and was dropped: %s", error)
                continue
            if isinstance(command, messages.Stop):
                return command
            self._carry_out(command)
        self._take_prepared()
        return None

    def _wait(self) -> None:
        """Wait for a command, for as long as nothing else is to be done."""
        if not self._loop.busy:
            if self._garbage is not None and not self._preparing and not self._commands.poll(0):
                self._garbage.idle()
            rest = PREPARE_WAIT if self._preparing else self._loop.rest
            self._commands.poll(None if rest is None else int(1000 * rest))
        elif not self._loop.serving:
            self._commands.poll(int(1000 * (COPY_WAIT if self._loop.copying else WRITE_WAIT)))

    def _carry_out(
        self,
        command: messages.Submit
        | messages.Abort
        | messages.Explain
        | messages.Expect
        | messages.Reset
        | messages.Watch
        | Hint,
    ) -> None:
        match command:
            case messages.Submit():
                self._preparing[command.id] = messages.request_of(command)
            case messages.Abort(ids):
                for request_id in ids:
                    self._loop.abort(request_id)
                    if self._preparing.pop(request_id, None) is not None:
                        self._replies.append(messages.Finished(request_id, "abort", ""))
            case messages.Explain(number, prompt, salt, read):
                told = self._loop.explain(salt, np.frombuffer(prompt, np.int32), read)
                self._send(messages.Explained(number, told))
            case messages.Expect(number, prompt, salt, read):
                outlook = self._loop.outlook(salt, np.frombuffer(prompt, np.int32), read)
                self._send(messages.Expected(number, outlook))
            case messages.Reset(number, salt):
                freed = self._loop.reset(salt)
                self._send(messages.WasReset(number, {tier.name.lower(): pages for tier, pages in freed.items()}))
            case messages.Watch(number, count, owner):
                self._send(messages.Watched(number, self._loop.ladders(count, owner)))
            case messages.Pin() | messages.Prefetch():
                for answer in take_hint(self._loop, command):
                    self._send(answer)

    def _take_prepared(self) -> None:
        """Submit the requests that are ready, in the order of their arrival. The others wait here and delay none of them."""
        for request in list(self._preparing.values()):
            if self._loop.prepare(request):
                del self._preparing[request.id]
                self._submit(request)

    def _submit(self, request: Request) -> None:
        try:
            self._loop.submit(request)
        except (RequestError, CapacityError) as error:
            self._replies.append(messages.rejection(request.id, error))
        else:
            self._open.add(request.id)
            self._replies.append(messages.Accepted(request.id))

    def _send(self, message: messages.Answer) -> None:
        self._answers.send(messages.encode(message))


def serve(
    factory: Factory,
    config: EngineConfig,
    commands: zmq.Socket[bytes],
    answers: zmq.Socket[bytes],
    clock: Clock,
    alone: bool = False,
    signs: Callable[[], zmq.Socket[bytes]] | None = None,
) -> None:
    """Build an engine and serve it until told to stop. The front end hears of any error before it is raised.

    alone  in a process of its own
    signs  opens a second socket for answers, on which signs of life are sent
    """
    try:
        loop, facts = build(factory, config, lambda phase: answers.send(messages.encode(messages.Starting(phase))))
        seconds = 0.0
        try:
            garbage = Garbage(clock) if alone else None
            service = EngineService(loop, commands, answers, clock, garbage)
            with beating(signs, service.turn_seconds):
                seconds = service.run(facts)
        finally:
            _end(loop, seconds)
    except Exception as error:
        reason = str(error) if isinstance(error, StepwellError) else f"{type(error).__name__}: {error}"
        answers.send(messages.encode(messages.Dead(reason)))
        raise


def _end(loop: ServedLoop, seconds: float) -> None:
    if not loop.end(seconds) and seconds:
        log.warning(
            "the end took longer than --shutdown-timeout: not everything that was worth it is in the disk cache"
        )


def build(
    factory: Factory, config: EngineConfig, tell: Callable[[str], object] = lambda phase: None
) -> tuple[ServedLoop, EngineFacts]:
    """Build a loop and collect what it reports of itself; `tell` hears what the start has come to."""
    reported: list[EngineFacts] = []

    def report(told: EngineFacts | str) -> None:
        if isinstance(told, str):
            tell(told)
        else:
            reported.append(told)

    loop = factory(config, report)
    assert len(reported) == 1, "a factory reports its facts exactly once"
    return loop, reported[0]


def _named(path: str) -> Factory:
    """The factory that "module:function" names; imported only when it is called."""

    def factory(config: EngineConfig, report: Report) -> ServedLoop:
        module, _, name = path.partition(":")
        phases = Phases(WallClock(), report)
        with phases("importing libraries"):
            build_named = getattr(importlib.import_module(module), name)

        def pass_on(told: EngineFacts | str) -> None:
            report(told if isinstance(told, str) else replace(told, phases=phases.taken() + told.phases))

        loop: ServedLoop = build_named(config, pass_on)
        return loop

    return factory


def main() -> int:
    """Entry of the engine process. Returns its exit status."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(SWITCH_SECONDS)
    start = msgspec.json.decode(sys.stdin.buffer.readline(), type=messages.Start)
    set_up(start.log_level, start.log_format)
    private.take(start.directory)
    threading.Thread(target=_end_with_front_end, args=(start.directory,), daemon=True).start()
    context = zmq.Context()

    def answering() -> zmq.Socket[bytes]:
        socket = context.socket(zmq.PUSH)
        socket.set_hwm(0)
        socket.connect(answers_address(start.directory))
        return socket

    commands, answers = context.socket(zmq.PULL), answering()
    commands.set_hwm(0)
    commands.bind(commands_address(start.directory))
    try:
        serve(_named(start.factory), start.config, commands, answers, WallClock(), alone=True, signs=answering)
    except ConfigError:
        return 2  # the front end tells it, without a traceback
    except RankError as error:
        # the sentence names the rank; where this process waited for it says nothing
        log.error("the engine has failed: %s", error)
        log.debug("where it has failed", exc_info=True)
        return 1
    except Exception:
        log.exception("the engine has failed")
        return 1
    finally:
        context.destroy(linger=1000)
    return 0


def _end_with_front_end(directory: str) -> None:
    """End this process as soon as standard input closes, which is when the front end has gone."""
    while os.read(0, 4096):
        pass
    shutil.rmtree(directory, ignore_errors=True)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # also ranks that are stopped, and cannot see that this process has gone
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
