"""`stepwell serve` as a process: what it prints, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from stepwell.cli import app
from tests.engine.scripted import SLOW
from tests.server.harness import tokenizer_directory

PROGRAM = """
import logging, sys
from rich.console import Console
from stepwell.engine.config import EngineConfig
from stepwell.server.serve import ServeOptions, serve
logging.basicConfig(level="WARNING")
config = EngineConfig(sys.argv[1], served_model_name="tiny", max_num_seqs=7)
options = ServeOptions(config, port=0, given=frozenset({"max_num_seqs"}), factory="tests.engine.scripted:" + sys.argv[2])
sys.exit(serve(options, Console(width=200)))
"""


class Served:
    """A front end with its engine, and everything it has printed."""

    def __init__(self, directory: Path, factory: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", PROGRAM, str(directory), factory],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.printed: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def text(self) -> str:
        return "".join(self.printed)

    @property
    def url(self) -> str:
        """Where it serves, once it does."""
        assert eventually(lambda: "Serving" in self.text), self.text
        found = re.search(r"http://[\d.:]+", self.text)
        assert found is not None
        return found[0]

    def engine(self) -> int:
        """Process id of the engine."""
        pid = self.process.pid
        return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])

    def end(self) -> int:
        """Wait for the end; returns the exit status."""
        status = self.process.wait(20)
        self._reader.join(20)
        return status

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.printed.extend(self.process.stdout)


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 20
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tokenizer_directory(tmp_path_factory.mktemp("model"))


@pytest.fixture
def served(directory: Path) -> Iterator[Served]:
    served = Served(directory, "build")
    try:
        yield served
    finally:
        served.process.kill()
        served.end()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_open_streams_and_both_processes_quietly(served: Served, number: signal.Signals) -> None:
    body = {"prompt": [SLOW, 40], "stream": True}
    with httpx.stream("POST", served.url + "/v1/completions", json=body, timeout=20) as stream:
        lines = stream.iter_lines()
        next(lines)
        engine = served.engine()
        served.process.send_signal(number)
        rest = [line for line in lines if line]
    assert "shutting down" in rest[-2] and rest[-1] == "data: [DONE]"
    assert served.end() == 0
    assert not alive(engine)
    assert "Traceback" not in served.text and "ERROR" not in served.text


def test_start_tells_the_memory_plan_and_where_each_flag_comes_from(served: Served) -> None:
    assert httpx.get(served.url + "/health").status_code == 200
    assert re.search(r"pages +7 +of 4 KiB", served.text)
    assert re.search(r"--max-num-seqs +7 +given", served.text)
    assert re.search(r"--block-size +16 +default", served.text)


def test_killed_engine_ends_streams_and_makes_health_fail(served: Served) -> None:
    body = {"prompt": [SLOW, 40], "stream": True}
    with httpx.stream("POST", served.url + "/v1/completions", json=body, timeout=20) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(served.engine(), signal.SIGKILL)
        rest = [line for line in lines if line]
    assert "killed by signal 9" in rest[-2]
    health = httpx.get(served.url + "/health")
    assert health.status_code == 503 and "signal 9" in health.json()["error"]["message"]
    served.process.send_signal(signal.SIGTERM)
    assert served.end() == 0


def test_engine_does_not_outlive_a_killed_front_end(served: Served) -> None:
    assert served.url
    engine = served.engine()
    served.process.kill()
    assert eventually(lambda: not alive(engine))


def test_start_can_be_interrupted(directory: Path) -> None:
    served = Served(directory, "build_slowly")
    assert eventually(lambda: "Starting" in served.text), served.text
    engine = served.engine()
    served.process.send_signal(signal.SIGINT)
    assert served.end() == 0
    assert not alive(engine)
    assert "Traceback" not in served.text


def test_engine_that_cannot_be_built_ends_the_start(directory: Path) -> None:
    served = Served(directory, "build_never")
    assert served.end() == 1
    assert "no such machine" in served.text


def test_command_line_names_what_is_wrong() -> None:
    runner = CliRunner()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = runner.invoke(app, ["serve", "/nowhere", "--port", port])
    assert result.exit_code == 2 and "--port" in result.output
    for arguments, named in (
        (["--rung-grid", "65"], "--rung-grid"),
        (["--device-memory", "lots"], "lots"),
        (["--max-queue", "0"], "--max-queue"),
        (["--port", "70000"], "--port"),
        (["--log-level", "loud"], "--log-level"),
        (["--max-body-bytes", "0"], "--max-body-bytes"),
    ):
        result = runner.invoke(app, ["serve", "/nowhere", *arguments])
        assert result.exit_code == 2 and named in result.output, result.output
