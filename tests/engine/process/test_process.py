"""An engine process: it serves, says why it ends, and never outlives its front end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest
import zmq

from stepwell.base.clock import WallClock
from stepwell.base.errors import ConfigError
from stepwell.engine.config import EngineConfig, Report
from stepwell.engine.process import messages
from stepwell.engine.process.serving import EngineService, serve
from stepwell.engine.process.spawn import EngineLink, EngineProcess
from stepwell.sched.request import Event, Finished, Request, SamplingParams
from tests.engine.scripted import RAISES, REFUSED, ScriptedLoop, facts

CONFIG = EngineConfig("tiny")
BUILD = "tests.engine.scripted:build"


async def answer(process: EngineProcess) -> messages.Answer:
    """The next answer of the engine but for its signs of life."""
    while isinstance(found := await said(process), messages.Alive):
        pass
    return found


async def said(process: EngineProcess) -> messages.Answer:
    """The next thing that the engine says."""
    while (found := process.link.receive()) is None:
        await asyncio.sleep(0.005)
    return found


async def started(process: EngineProcess) -> messages.Answer:
    """The first answer behind those that tell what the start has come to."""
    phases = []
    while isinstance(found := await answer(process), messages.Starting):
        phases.append(found.phase)
    assert phases == ["importing libraries"]
    return found


async def events_of(process: EngineProcess, until: type) -> list[messages.WireEvent]:
    """Events up to one of a kind."""
    events: list[messages.WireEvent] = []
    while not any(isinstance(event, until) for event in events):
        batch = await answer(process)
        assert isinstance(batch, messages.Batch), batch
        events += batch.events
    return events


def with_engine(work: Callable[[EngineProcess], Awaitable[None]], factory: str = BUILD) -> None:
    """Run `work` with an engine process, which must leave nothing behind."""

    async def run() -> None:
        process = await EngineProcess.start(CONFIG, factory)
        directory = Path(process.directory)
        try:
            assert directory.stat().st_mode & 0o777 == 0o700
            await asyncio.wait_for(work(process), 30)
        finally:
            await process.stop()
        assert not directory.exists()
        assert not alive(process.pid)

    asyncio.run(run())


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def submit(process: EngineProcess, request_id: str, prompt: list[int], tokens: int = 3) -> None:
    request = Request(request_id, np.array(prompt, np.int32), SamplingParams(max_tokens=tokens))
    process.link.send(messages.submit_of(request))


def test_process_serves_refuses_aborts_and_stops() -> None:
    async def work(process: EngineProcess) -> None:
        ready = await started(process)
        assert isinstance(ready, messages.Ready) and ready.facts.model == "tiny"
        process.link.commands.send(b"noise")  # is logged and dropped
        submit(process, "a", [5, 6])
        events = await events_of(process, messages.Finished)
        assert events[0] == messages.Accepted("a")
        assert [e.tokens for e in events if isinstance(e, messages.Tokens)] == [[5], [6], [5]]
        assert events[-1] == messages.Finished("a", "length", "")
        submit(process, "b", [REFUSED])
        assert (await events_of(process, messages.Rejected))[-1].id == "b"
        submit(process, "c", [5], tokens=10**9)
        process.link.send(messages.Abort(["c", "unknown"]))
        assert (await events_of(process, messages.Finished))[-1] == messages.Finished("c", "abort", "")

    with_engine(work)


def test_an_idle_engine_gives_signs_of_life_and_none_of_a_step() -> None:
    async def work(process: EngineProcess) -> None:
        for _ in range(2):
            while not isinstance(sign := await said(process), messages.Alive):
                pass
        assert sign.turn_s < 5

    with_engine(work)


def test_questions_and_resets_are_answered_by_number() -> None:
    async def replies(process: EngineProcess) -> messages.Answer:
        while isinstance(found := await answer(process), messages.Batch | messages.Starting | messages.Ready):
            pass
        return found

    async def work(process: EngineProcess) -> None:
        submit(process, "a", [5, 6, 7])
        await events_of_started(process)
        prompt = np.array([5, 6, 9], np.int32).tobytes()
        process.link.send(messages.Explain(3, prompt, "", True))
        told = await replies(process)
        assert isinstance(told, messages.Explained)
        assert (told.number, told.explanation.tokens, told.explanation.matched) == (3, 3, 2)
        process.link.send(messages.Reset(4, None))
        assert await replies(process) == messages.WasReset(4, {"device": 1, "host": 0})

    async def events_of_started(process: EngineProcess) -> None:
        while isinstance(await answer(process), messages.Starting):
            pass
        await events_of(process, messages.Finished)

    with_engine(work)


def test_engine_that_falls_idle_sends_its_last_statistics() -> None:
    async def work(process: EngineProcess) -> None:
        assert isinstance(await started(process), messages.Ready)
        submit(process, "a", [5], tokens=2)
        ended = False
        while not ended:
            batch = await answer(process)
            assert isinstance(batch, messages.Batch)
            ended = any(isinstance(event, messages.Finished) for event in batch.events)
        assert batch.stats is not None
        assert batch.stats.queues["running"] == 0 and batch.stats.pages["device"]["free"] == 7

    with_engine(work)


def test_loop_that_raises_says_why_and_ends() -> None:
    async def work(process: EngineProcess) -> None:
        submit(process, "a", [RAISES])
        while not isinstance(last := await answer(process), messages.Dead):
            pass
        assert "the script says so" in last.reason
        assert "status 1" in await process.ended()

    with_engine(work)


def test_engine_that_cannot_be_built_says_why() -> None:
    async def work(process: EngineProcess) -> None:
        last = await started(process)
        assert isinstance(last, messages.Dead) and "no such machine" in last.reason

    with_engine(work, "tests.engine.scripted:build_never")


def test_killed_engine_is_noticed() -> None:
    async def work(process: EngineProcess) -> None:
        await started(process)
        os.kill(process.pid, signal.SIGKILL)
        assert "signal 9" in await process.ended()

    with_engine(work)


def test_terminal_signals_are_the_front_ends_business() -> None:
    async def work(process: EngineProcess) -> None:
        await started(process)
        os.kill(process.pid, signal.SIGINT)
        os.kill(process.pid, signal.SIGTERM)
        submit(process, "a", [5])
        await events_of(process, messages.Finished)

    with_engine(work)


@pytest.mark.parametrize("factory", [BUILD, "tests.engine.scripted:build_slowly"])
def test_engine_ends_when_its_front_end_is_killed(factory: str) -> None:
    program = f"""
import asyncio
from stepwell.engine.config import EngineConfig
from stepwell.engine.process.spawn import EngineProcess
async def run():
    process = await EngineProcess.start(EngineConfig("tiny"), {factory!r})
    print(process.pid, process.directory, flush=True)
    await asyncio.sleep(60)
asyncio.run(run())
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as front:
        assert front.stdout is not None
        pid, directory = front.stdout.readline().split()
        time.sleep(0.3)  # let the engine read its first line; the outcome is the same without
        front.kill()
    deadline = time.monotonic() + 20
    while alive(int(pid)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(int(pid))
    assert not Path(directory).exists()


def test_socket_path_that_is_too_long_is_refused() -> None:
    with pytest.raises(ConfigError, match="TMPDIR"):
        EngineLink("/tmp/" + "x" * 100)


def test_an_end_that_lasts_can_be_cut_short() -> None:
    async def run() -> None:
        process = await EngineProcess.start(CONFIG, "tests.engine.scripted:build_lingering")
        assert isinstance(await started(process), messages.Ready)
        hurry = asyncio.Event()
        asyncio.get_running_loop().call_later(0.1, hurry.set)
        await asyncio.wait_for(process.stop(3600.0, hurry), 60)
        assert not alive(process.pid)

    asyncio.run(run())


class Copying(ScriptedLoop):
    """Nothing but copies are under way; after three turns it is told to stop."""

    def __init__(self, commands: zmq.Socket[bytes]) -> None:
        super().__init__()
        self._commands = commands

    @property
    def busy(self) -> bool:
        return True

    @property
    def serving(self) -> bool:
        return False

    def step(self, wait: float = 0.05) -> list[Event]:
        if len(self.waits) == 2:
            self._commands.send(messages.encode(messages.Stop(7.0)))
        return super().step(wait)


def test_commands_are_not_held_up_by_copies_and_the_end_has_its_time() -> None:
    with zmq.Context() as context:
        ours, theirs, told, tell = (context.socket(kind) for kind in (zmq.PULL, zmq.PUSH, zmq.PULL, zmq.PUSH))
        ours.bind("inproc://commands")
        theirs.connect("inproc://commands")
        told.bind("inproc://answers")
        tell.connect("inproc://answers")
        loop = Copying(theirs)
        loop.gate.clear()

        def factory(config: EngineConfig, report: Report) -> Copying:
            report(facts(config))
            return loop

        serve(factory, CONFIG, ours, tell, WallClock())
        for socket in (ours, theirs, told, tell):
            socket.close(0)
    assert loop.waits == [0.0, 0.0, 0.0]
    assert loop.ended == [7.0]


class Resting(ScriptedLoop):
    """Nobody waits; what is being copied has landed after two turns, and then the disk may be written to some time."""

    busy = True
    serving = False

    @property
    def rest(self) -> float | None:
        return None

    @property
    def copying(self) -> bool:
        return len(self.waits) < 2


class Commands:
    """A socket that gets the word to stop with the fifth wait."""

    def __init__(self) -> None:
        self.waits: list[int] = []

    def poll(self, milliseconds: int) -> bool:
        if milliseconds:
            self.waits.append(milliseconds)
        return len(self.waits) == 5

    def recv(self) -> bytes:
        return messages.encode(messages.Stop())


class Answers:
    def send(self, answer: bytes) -> None: ...


def test_copies_that_nobody_waits_for_are_looked_at_often_and_the_disk_less_so() -> None:
    loop, commands = Resting(), Commands()
    loop.gate.clear()
    EngineService(loop, commands, Answers(), WallClock()).run(facts(CONFIG))  # type: ignore[arg-type]
    assert commands.waits == [10, 10, 50, 50, 50]


class Reading(ScriptedLoop):
    """Reads grammars until the request "plain" has been answered; stops after three answers."""

    def __init__(self, commands: zmq.Socket[bytes]) -> None:
        super().__init__()
        self.ready.clear()
        self._commands = commands
        self.order: list[str] = []

    def step(self, wait: float = 0.05) -> list[Event]:
        events = super().step(wait)
        self.order += [event.request_id for event in events if isinstance(event, Finished)]
        if "plain" in self.order:
            self.ready.set()
        if len(self.order) == 3:
            self._commands.send(messages.encode(messages.Stop()))
        return events


def test_a_grammar_that_is_being_read_holds_up_its_own_request_alone() -> None:
    with zmq.Context() as context:
        ours, theirs, told, tell = (context.socket(kind) for kind in (zmq.PULL, zmq.PUSH, zmq.PULL, zmq.PUSH))
        ours.bind("inproc://commands")
        theirs.connect("inproc://commands")
        told.bind("inproc://answers")
        tell.connect("inproc://answers")
        loop = Reading(theirs)
        for name, grammar in (("held", "g"), ("gone", "g"), ("also", "g"), ("plain", "")):
            params = SamplingParams(max_tokens=1, grammar=grammar)
            theirs.send(messages.encode(messages.submit_of(Request(name, np.array([5], np.int32), params))))
        theirs.send(messages.encode(messages.Abort(["gone"])))

        def factory(config: EngineConfig, report: Report) -> Reading:
            report(facts(config))
            return loop

        serve(factory, CONFIG, ours, tell, WallClock())
        for socket in (ours, theirs, told, tell):
            socket.close(0)
    assert loop.order == ["plain", "held", "also"]
    assert [request.id for request in loop.seen] == ["plain", "held", "also"]
