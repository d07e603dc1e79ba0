"""The front end's hold on an engine process: start it, know when it ends, stop it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import tempfile

import msgspec
import zmq

from stepwell.base.children import command, environment
from stepwell.base.errors import ConfigError
from stepwell.engine.config import EngineConfig
from stepwell.engine.logs import LogFormat
from stepwell.engine.process import messages
from stepwell.engine.process.serving import answers_address, commands_address

log = logging.getLogger("stepwell.engine")

DEFAULT_FACTORY = "stepwell.engine.build:build_engine"
_LONGEST_SOCKET_PATH = 100
_SHARE = 0.8  # of the patience at the end, for writing to disk


class EngineLink:
    """The front end's two sockets. `commands` never blocks: it queues until the engine reads."""

    def __init__(self, directory: str) -> None:
        if len(directory) > _LONGEST_SOCKET_PATH - len("/commands"):
            raise ConfigError(
                f"the temporary directory {directory!r} is too long for a socket: set TMPDIR to a shorter one"
            )
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.answers = self._context.socket(zmq.PULL)
        self.commands = self._context.socket(zmq.PUSH)
        for socket in (self.answers, self.commands):
            socket.set_hwm(0)
            socket.linger = 0
        self.answers.bind(answers_address(directory))
        self.commands.connect(commands_address(directory))

    def send(self, command: messages.Command) -> None:
        if self._context.closed:
            return
        self.commands.send(messages.encode(command), zmq.NOBLOCK)

    def receive(self) -> messages.Answer | None:
        """The next answer, or None where none waits. Raises msgspec.DecodeError for what is none."""
        try:
            return messages.decode_answer(self.answers.recv(zmq.NOBLOCK))
        except zmq.Again:
            return None

    def close(self) -> None:
        self._context.destroy(linger=0)


class EngineProcess:
    """A running engine process and the link to it. Use `start`, then `stop` in every case."""

    def __init__(self, process: asyncio.subprocess.Process, link: EngineLink, directory: str) -> None:
        self._process = process
        self.directory = directory
        self.link = link

    @classmethod
    async def start(
        cls, config: EngineConfig, factory: str = DEFAULT_FACTORY, log_format: LogFormat = "text"
    ) -> EngineProcess:
        """Start the process; it builds the engine and sends Ready, or Dead with the reason."""
        directory = tempfile.mkdtemp(prefix="stepwell-")  # mode 0700
        try:
            link = EngineLink(directory)
            process = await asyncio.create_subprocess_exec(
                *command("stepwell.engine.process.serving"),
                stdin=asyncio.subprocess.PIPE,
                env=environment(),
                start_new_session=True,  # Ctrl-C is the front end's, also while this one is importing
            )
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            raise
        assert process.stdin is not None
        start = messages.Start(config, factory, directory, log.getEffectiveLevel(), log_format)
        process.stdin.write(msgspec.json.encode(start) + b"\n")
        return cls(process, link, directory)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ended(self) -> str:
        """Wait for the end of the process; returns how it ended."""
        status = await self._process.wait()
        return (
            f"the engine process {f'was killed by signal {-status}' if status < 0 else f'ended with status {status}'}"
        )

    async def stop(self, patience: float = 3.0, hurry: asyncio.Event | None = None) -> None:
        """Ask, wait `patience` seconds, or until `hurry`, then insist. Leaves nothing behind; may be called twice.

        The engine may write to disk for most of that time; the rest is for closing what it has open.
        """
        assert self._process.stdin is not None
        if self._process.returncode is None:
            self.link.send(messages.Stop(_SHARE * patience))
            if not await self._ends_within(patience, hurry or asyncio.Event()):
                self._process.stdin.close()  # the engine ends when this closes, even while it is being built
                if not await self._ends_within(1.0, asyncio.Event()):
                    self._process.kill()
                    await self._process.wait()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # compilers that it may have started
        self._process.stdin.close()
        self.link.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    async def _ends_within(self, seconds: float, hurry: asyncio.Event) -> bool:
        ended, hurried = asyncio.create_task(self._process.wait()), asyncio.create_task(hurry.wait())
        await asyncio.wait((ended, hurried), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for task in (ended, hurried):
            task.cancel()
        return self._process.returncode is not None
