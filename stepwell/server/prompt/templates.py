"""Who renders conversations for the server: a process of its own that can be ended, or, for tests and small tools, this one.

    event loop ── job ──▶ process for short ones ─┐
               └─ job ──▶ process for long ones  ─┴─▶ text, or why there is none

A template is a program. One that never ends, or that fills memory, costs its call an error and the process a restart; streams go on
meanwhile. Whatever else waited for that process is asked again of the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import subprocess
from collections import deque
from typing import Protocol, cast

from stepwell.base.children import ONE_THREAD, command, environment
from stepwell.base.errors import ConfigError, EngineDead, RequestError, StepwellError
from stepwell.engine.text.chat_template import ChatTemplate, TakesTooMuch
from stepwell.server.prompt import template_wire as wire
from stepwell.server.prompt.beside import Beside
from stepwell.server.prompt.dialect import PROBES
from stepwell.server.prompt.template_wire import Job

log = logging.getLogger("stepwell.server")

SECONDS = 5.0
"""Processor time that one conversation may take: a megabyte takes everyday templates some hundredths of one."""
_WALL = 60.0  # seconds after which a process that says nothing is ended, however little it computes
_SHORT = 64 * 1024  # bytes of a job that does not wait behind long ones
_MODULE = "stepwell.server.prompt.template_process"
_QUIET = {"TRANSFORMERS_VERBOSITY": "error", "TRANSFORMERS_NO_ADVISORY_WARNINGS": "1"}
"""Environment of a process that means to do without PyTorch: it need not be told what it lacks."""
_TURNS = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]


class Templates(Protocol):
    """Renders conversations."""

    @property
    def open(self) -> int:
        """Conversations that are being rendered, or wait for it."""

    async def render(self, job: Job, size: int) -> str:
        """The text of a conversation of about `size` bytes. Raises RequestError where there is none."""

    def close(self) -> None:
        """Render nothing any more."""


class InPlace:
    """Renders in this process: long conversations in a thread, all for as long as the template likes."""

    def __init__(self, template: ChatTemplate, beside: Beside) -> None:
        self._template = template
        self._beside = beside
        self.open = 0

    async def render(self, job: Job, size: int) -> str:
        self.open += 1
        try:
            return await self._beside.run(size, lambda: job.rendered(self._template))
        finally:
            self.open -= 1

    def close(self) -> None:
        """Nothing is to be ended."""


class TemplateProcesses:
    """Owns the processes. Lives in one event loop; `close` ends them."""

    def __init__(self, template: ChatTemplate, beside: Beside, seconds: float = SECONDS) -> None:
        """`seconds`: processor time that one conversation may take."""
        start = wire.framed(wire.Start(template.sources, template.special, seconds))
        self._beside = beside
        self._short, self._long = _Process(start, seconds), _Process(start, seconds)
        self.open = 0

    async def render(self, job: Job, size: int) -> str:
        self.open += 1
        try:
            frame = await self._beside.run(size, lambda: wire.framed(job))
            body = await (self._short if len(frame) <= _SHORT else self._long).render(frame)
            return await self._beside.run(len(body), lambda: wire.text(body))
        finally:
            self.open -= 1

    async def start(self) -> None:
        """Start both, and `greet`. Raises ConfigError."""
        await asyncio.gather(self._long.open(), self.greet())

    async def greet(self) -> None:
        """See that the template ends for the shortest of conversations, among them all that the server renders itself. Raises ConfigError
        where it does not."""
        greetings = [Job(probe) for probe in PROBES] + [
            Job(_TURNS, open_answer=False),
            Job(PROBES[-1], open_answer=False),
        ]
        for fault in await asyncio.gather(*(self.render(job, 0) for job in greetings), return_exceptions=True):
            if isinstance(fault, TakesTooMuch):
                raise ConfigError(f"{fault}: mend it, or name another with --chat-template") from fault
            if isinstance(fault, BaseException) and not isinstance(fault, RequestError):
                raise fault  # it may refuse any of these: whoever sends others hears why theirs are refused

    def close(self) -> None:
        for process in (self._short, self._long):
            process.close()


async def started(template: ChatTemplate) -> Templates:
    """Processes that have been seen to render; this process, with a warning, where none can be had. Raises ConfigError where the template
    takes too much for a greeting."""
    templates = TemplateProcesses(template, Beside())
    try:
        await templates.start()
    except ConfigError:
        templates.close()
        raise
    except StepwellError as error:
        templates.close()
        log.warning("%s: it is rendered by the server itself, and may take what it likes", error)
        return InPlace(template, Beside())
    except BaseException:
        templates.close()
        raise
    return templates


async def expect_end(template: ChatTemplate) -> None:
    """See that a template ends. Raises ConfigError where it does not."""
    with contextlib.closing(TemplateProcesses(template, Beside())) as templates:
        await templates.greet()


class Closing(EngineDead):
    """No conversation is rendered any more."""

    def __init__(self) -> None:
        super().__init__("the server is closing")


class _Ended(Exception):
    """The process ended before it answered, which nothing but this question can be the reason for."""


class _Again(Exception):
    """The process ended because of another question: ask the next one."""


class _Link(asyncio.Protocol):
    """What one process has been asked, in order; its answers come in that order. `over`: none comes any more."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[asyncio.Future[bytes]] = deque()
        self._unread = bytearray()
        self._patience: asyncio.TimerHandle | None = None
        self._too_slow = False
        self.over = False

    def ask(self, frame: bytes) -> asyncio.Future[bytes]:
        """The answer to come. Raises _Ended, or _Again where the process ended before it came to this."""
        assert self._transport is not None
        self._transport.write(frame)
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting.append(answer)
        if len(self._waiting) == 1:
            self._give_time()
        return answer

    @property
    def took_too_much(self) -> bool:
        """Once it is over: whether it took too much time, rather than being ended by somebody else."""
        return self._too_slow or self._process.returncode == -signal.SIGPROF

    def end(self) -> None:
        self._process.kill()

    def _give_up(self) -> None:
        self._too_slow = True
        self.end()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        while len(self._unread) >= wire.HEAD:
            end = wire.HEAD + int.from_bytes(self._unread[: wire.HEAD], "little")
            if len(self._unread) < end:
                break
            body = bytes(memoryview(self._unread)[wire.HEAD : end])
            del self._unread[:end]
            self._answered(body)

    def _answered(self, body: bytes) -> None:
        asked = self._waiting.popleft()
        self._give_time()
        if not asked.done():  # its caller may have gone
            asked.set_result(body)

    def _give_time(self) -> None:
        """Give the first of those that wait its time."""
        if self._patience is not None:
            self._patience.cancel()
        self._patience = self._loop.call_later(_WALL, self._give_up) if self._waiting else None

    def connection_lost(self, error: Exception | None) -> None:
        self.over = True
        if self._patience is not None:
            self._patience.cancel()
        self._process.kill()
        self._process.wait()
        first = True
        while self._waiting:
            asked = self._waiting.popleft()
            if not asked.done():
                asked.set_exception(_Ended() if first else _Again())
            first = False


class _Process:
    """One process after the other, started when it is first needed and again after its end."""

    def __init__(self, start: bytes, seconds: float) -> None:
        self._start = start
        self._seconds = seconds
        self._link: _Link | None = None
        self._opening = asyncio.Lock()
        self._closed = False

    async def render(self, frame: bytes) -> bytes:
        """The answer to a job. Raises TakesTooMuch, or StepwellError where no process can be started or `close` was called."""
        blamed = False
        while True:
            link = await self.open()
            try:
                return await link.ask(frame)
            except _Again:
                continue
            except _Ended as error:
                if self._closed:
                    raise Closing from error
                if not (blamed or link.took_too_much):
                    blamed = True  # it may have been ended while it had nothing to do: once more
                    continue
                raise TakesTooMuch.of(
                    f"takes more than {self._seconds:g} s, or more memory than it is given"
                ) from error

    async def open(self) -> _Link:
        """A process that has read the template."""
        if self._link is not None and not self._link.over:
            return self._link
        async with self._opening:
            if self._link is None or self._link.over:
                self._link = await self._begun()
            return self._link

    def close(self) -> None:
        self._closed = True
        if self._link is not None:
            self._link.end()

    async def _begun(self) -> _Link:
        if self._closed:
            raise Closing
        try:
            ours, theirs = socket.socketpair()
            with theirs:
                process = subprocess.Popen(
                    command(_MODULE),
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    env=environment(**ONE_THREAD, **_QUIET),
                    process_group=0,  # Ctrl-C is the server's business
                )
        except OSError as error:
            raise StepwellError(f"no process can be started for the chat template: {error.strerror}") from error
        _, link = await asyncio.get_running_loop().create_unix_connection(lambda: _Link(process), sock=ours)
        try:
            await link.ask(self._start)
            if self._closed:
                raise Closing
        except (_Ended, _Again) as error:
            raise StepwellError(f"no process can read the chat template (status {process.returncode})") from error
        except BaseException:  # its caller has gone, say: the next one starts another
            link.end()
            raise
        return link
