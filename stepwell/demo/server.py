"""`stepwell serve` as a child process that never outlives its parent's interest."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from stepwell.base.children import command, environment
from stepwell.base.errors import StepwellError

_GRACE = 10.0
_PAUSE = 0.1
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class ServerFailed(StepwellError):
    """The server did not start, or has gone; `log` is the end of what it wrote."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(message)
        self.log = log


def free_port() -> int:
    """A loopback port that nobody listens on right now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A command that serves HTTP on `base_url`, in its own process group, writing to `log`.

    Used by `with`: leaving the block ends the whole group, politely first.
    """

    def __init__(self, command: Sequence[str], port: int, log: Path) -> None:
        self.base_url = f"http://127.0.0.1:{port}"
        self._log = log
        with log.open("wb") as out:
            # A group of its own: Ctrl-C reaches the demo alone, which then ends the server and the engine behind it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=environment(),
                start_new_session=True,
            )

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait_until_healthy(self, seconds: float) -> None:
        """Return once /health answers 200. Raises ServerFailed when the process ends first or time is up."""
        deadline = time.monotonic() + seconds
        while not self._healthy():
            if self._process.poll() is not None:
                raise self.failure(f"the server ended with status {self._process.returncode} before it was ready")
            if time.monotonic() > deadline:
                raise self.failure(f"the server was not ready after {seconds:.0f} s")
            time.sleep(_PAUSE)

    def failure(self, message: str) -> ServerFailed:
        """An error that carries the end of the log."""
        return ServerFailed(message, "\n".join(self.log_lines()[-30:]))

    def log_lines(self) -> list[str]:
        """Everything the server has written so far."""
        return self._log.read_text("utf-8", errors="replace").splitlines()

    def read(self, path: str) -> str:
        """The body of GET `path`."""
        with _DIRECT.open(self.base_url + path, timeout=5) as answer:
            return str(answer.read().decode("utf-8"))

    def stop(self) -> None:
        """End the process group: SIGTERM, then SIGKILL to whatever is left. Called twice, it does nothing."""
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_GRACE)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    def _healthy(self) -> bool:
        try:
            self.read("/health")
        except (urllib.error.URLError, OSError):
            return False
        return True


def serve_command(model: Path, port: int, flags: Sequence[str]) -> list[str]:
    """The command that serves `model` on `port` with this Python."""
    return command("stepwell", "serve", str(model), "--host", "127.0.0.1", "--port", str(port), *flags)
