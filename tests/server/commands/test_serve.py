"""`stepwell serve` as a process: what it prints, and how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import resource
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from rich.console import Console
from typer.testing import CliRunner

from stepwell.base.errors import ConfigError
from stepwell.cli import app
from stepwell.engine.config import EngineConfig, EngineFacts
from stepwell.server.commands.options import ServeOptions
from stepwell.server.commands.serve import print_addresses, raise_descriptors, serve, tracer
from stepwell.server.commands.settings import TraceTarget
from tests.base.test_shapes import NEXT_80B
from tests.engine.scripted import SLOW
from tests.server.harness import eventually, tokenizer_directory

PROGRAM = """
import logging, sys
from rich.console import Console
from stepwell.engine.config import EngineConfig
from stepwell.server.commands.options import Care, Endings, ServeOptions
from stepwell.server.commands.serve import serve, tracer
from stepwell.server.commands.settings import TraceTarget
logging.basicConfig(level="WARNING")
config = EngineConfig(sys.argv[1], served_model_name="tiny", max_num_seqs=7)
options = ServeOptions(
    config,
    port=0,
    given=frozenset({"max_num_seqs"}),
    factory="tests.engine.scripted:" + sys.argv[2],
    endings=Endings(float(sys.argv[3]), dead=float(sys.argv[4])),
    care=Care(silence=float(sys.argv[6]), restart=sys.argv[5] == "restart", restarts=1),
)
sys.exit(serve(options, Console(width=200)))
"""


class Served:
    """A front end with its engine, and everything it has printed."""

    def __init__(
        self, directory: Path, drain: float = 0, dead: float = 30, restart: bool = False, silence: float = 60
    ) -> None:
        numbers = [str(drain), str(dead), "restart" if restart else "once", str(silence)]
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", PROGRAM, str(directory), "build", *numbers],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.printed: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
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
        """Process id of the engine, which has other processes beside it: those that render templates, say."""
        found = children(self.process.pid)
        return next(pid for pid in found if "stepwell.engine.process" in Path(f"/proc/{pid}/cmdline").read_text())

    def end(self) -> int:
        """Wait for the end; returns the exit status."""
        status = self.process.wait(90)
        self._reader.join(20)
        return status

    def close(self) -> None:
        engines = children(self.process.pid) if self.process.poll() is None else []
        self.process.kill()
        for engine in engines:  # it ends by itself, but for one that is stopped
            with contextlib.suppress(ProcessLookupError):
                os.kill(engine, signal.SIGCONT)
        self.end()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.printed.extend(self.process.stdout)


def children(pid: int | None = None) -> list[int]:
    """Processes that the main thread of one has started; of this one by default."""
    of = pid or os.getpid()
    return [int(child) for child in Path(f"/proc/{of}/task/{of}/children").read_text().split()]


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
    with closing(Served(directory)) as served:
        yield served


def test_start_tells_the_plan_and_a_signal_ends_streams_and_both_processes_quietly(served: Served) -> None:
    body = {"prompt": [SLOW, 40], "stream": True}
    with httpx.stream("POST", served.url + "/v1/completions", json=body, timeout=90) as stream:
        lines = stream.iter_lines()
        next(lines)
        engine = served.engine()
        served.process.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line]
    assert '"code":"shutting_down"' in rest[-2] and rest[-1] == "data: [DONE]"
    assert served.end() == 0
    assert not alive(engine)
    assert "Traceback" not in served.text and "ERROR" not in served.text
    assert re.search(r"pages +7 +of 4 KiB", served.text)
    assert re.search(r"--max-num-seqs +7 +given", served.text)
    assert re.search(r"--block-size +16 +default", served.text)
    assert re.search(r"start +2\.\d s .*making weights 2\.0 *$", served.text, re.MULTILINE)


def test_killed_engine_ends_streams_and_makes_health_fail(served: Served) -> None:
    body = {"prompt": [SLOW, 40], "stream": True}
    with httpx.stream("POST", served.url + "/v1/completions", json=body, timeout=90) as stream:
        lines = stream.iter_lines()
        next(lines)
        os.kill(served.engine(), signal.SIGKILL)
        rest = [line for line in lines if line]
    assert "killed by signal 9" in rest[-2] and '"code":"engine_dead"' in rest[-2]
    health = httpx.get(served.url + "/health")
    assert health.status_code == 503 and "signal 9" in health.json()["error"]["message"]
    served.process.send_signal(signal.SIGINT)
    assert served.end() == 0
    assert "Traceback" not in served.text


def test_as_many_descriptors_may_be_open_as_the_system_allows() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        raise_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def code_of(answer: httpx.Response) -> str | None:
    """The code of an error; None where there is none."""
    error = answer.json().get("error")
    return None if error is None else error["code"]


def test_an_engine_that_hangs_is_not_well_and_ends_its_calls_and_may_go_on(directory: Path) -> None:
    with closing(Served(directory, silence=4)) as served, httpx.Client(base_url=served.url, timeout=60) as http:
        engine = served.engine()
        with http.stream("POST", "/v1/completions", json={"prompt": [SLOW, 40], "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(engine, signal.SIGSTOP)
            rest = [line for line in lines if line]
        assert (
            '"code":"engine_hung"' in rest[-2] and "no sign of life for 4 s" in rest[-2] and rest[-1] == "data: [DONE]"
        )
        health = http.get("/health")
        assert health.status_code == 503 and code_of(health) == "engine_hung"
        refused = http.post("/v1/completions", json={"prompt": [5]})
        assert (
            refused.status_code == 503 and code_of(refused) == "engine_hung" and refused.headers["retry-after"] == "5"
        )
        told = http.get("/metrics").text
        assert "stepwell_engine_up 0.0" in told and "stepwell_engine_hangs_total 1.0" in told
        os.kill(engine, signal.SIGCONT)
        assert eventually(lambda: http.get("/health").status_code == 200)
        assert http.post("/v1/completions", json={"prompt": [5], "max_tokens": 2}).status_code == 200


@pytest.mark.long
def test_an_engine_that_ends_is_started_again_and_no_more_often_than_allowed(directory: Path) -> None:
    with closing(Served(directory, restart=True)) as served, httpx.Client(base_url=served.url, timeout=60) as http:
        first = served.engine()
        with http.stream("POST", "/v1/completions", json={"prompt": [SLOW, 40], "stream": True}) as stream:
            lines = stream.iter_lines()
            next(lines)
            os.kill(first, signal.SIGKILL)
            rest = [line for line in lines if line]
        assert '"code":"engine_restarting"' in rest[-2] and "killed by signal 9; it is being started again" in rest[-2]
        assert code_of(http.get("/health")) in ("engine_restarting", None)  # 503 until the other one serves
        assert eventually(lambda: http.get("/health").status_code == 200)
        assert http.post("/v1/completions", json={"prompt": [5], "max_tokens": 2}).status_code == 200
        assert "stepwell_engine_restarts_total 1.0" in http.get("/metrics").text
        assert not alive(first)
        os.kill(served.engine(), signal.SIGKILL)
        assert eventually(lambda: code_of(http.get("/health")) == "engine_dead")
        assert "started again 1 times, never to serve for 10 minutes" in http.get("/health").json()["error"]["message"]
    assert "Traceback" not in served.text


@pytest.mark.long
def test_open_calls_may_end_while_new_ones_are_turned_away(directory: Path) -> None:
    with closing(Served(directory, drain=600)) as served, httpx.Client(base_url=served.url, timeout=90) as http:
        short = {"prompt": [SLOW, 40], "max_tokens": 60, "stream": True}
        endless = {"prompt": [SLOW, 40], "stream": True}  # keeps the server from ending before we have looked
        with (
            http.stream("POST", "/v1/completions", json=endless) as other,
            http.stream("POST", "/v1/completions", json=short) as stream,
        ):
            lines, others = stream.iter_lines(), other.iter_lines()
            next(lines)
            next(others)
            assert http.get("/ready").status_code == 200
            served.process.send_signal(signal.SIGTERM)
            assert eventually(lambda: http.get("/ready").status_code == 503)
            assert http.get("/health").status_code == 200
            refused = http.post("/v1/completions", json={"prompt": [5]})
            assert refused.status_code == 503 and int(refused.headers["retry-after"]) > 0
            assert refused.json()["error"]["code"] == "shutting_down"
            rest = [line for line in lines if line]
            assert '"finish_reason":"length"' in rest[-2] and rest[-1] == "data: [DONE]"
            others.close()
        assert served.end() == 0


@pytest.mark.long
def test_second_signal_ends_what_still_runs(directory: Path) -> None:
    with closing(Served(directory, drain=600)) as served:
        body = {"prompt": [SLOW, 40], "stream": True}
        with httpx.stream("POST", served.url + "/v1/completions", json=body, timeout=90) as stream:
            lines = stream.iter_lines()
            next(lines)
            served.process.send_signal(signal.SIGINT)
            assert eventually(lambda: "1 sequences have 600 s" in served.text)
            served.process.send_signal(signal.SIGINT)
            rest = [line for line in lines if line]
        assert '"code":"shutting_down"' in rest[-2] and rest[-1] == "data: [DONE]"
        assert served.end() == 0


@pytest.mark.long
def test_server_whose_engine_has_died_ends_with_a_status_that_has_it_restarted(directory: Path) -> None:
    with closing(Served(directory, dead=0.1)) as served:
        assert served.url
        os.kill(served.engine(), signal.SIGKILL)
        assert served.end() == 1
        assert "killed by signal 9" in served.text and "Traceback" not in served.text


def options(directory: Path, factory: str) -> ServeOptions:
    return ServeOptions(EngineConfig(str(directory)), port=0, factory=f"tests.engine.scripted:{factory}")


def test_the_start_ends_with_addresses_and_a_call_that_works(directory: Path) -> None:
    with closing(Served(directory)) as served:
        base = served.url
        assert (
            f"page       {base}/\n" in served.text
            and f"API        {base}/v1\n" in served.text
            and f"dashboard  {base}/dashboard\n" in served.text
        )
        line = next(line for line in served.text.splitlines() if line.startswith("try "))
        url, *_, body = shlex.split(line)[2:]
        assert (
            httpx.post(url, content=body, headers={"content-type": "application/json"}, timeout=60).status_code == 200
        )


def test_the_call_to_try_can_be_pasted_into_a_shell_and_names_the_key_where_one_is_needed() -> None:
    facts = EngineFacts("it's", 100, 10)
    for keys in (False, True):
        out = io.StringIO()
        print_addresses(Console(file=out), facts, "::1", 1, keys)
        words = shlex.split(next(line for line in out.getvalue().splitlines() if line.startswith("try ")))
        assert words[2] == "http://[::1]:1/v1/chat/completions" and json.loads(words[-1])["model"] == "it's"
        assert ("authorization: Bearer KEY" in words) == keys


def test_start_can_be_interrupted(directory: Path) -> None:
    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            if "Starting" in text:
                os.kill(os.getpid(), signal.SIGINT)
            return super().write(text)

    before = children()
    assert serve(options(directory, "build_slowly"), Console(file=Screen())) == 128 + signal.SIGINT
    assert children() == before


def test_a_starting_server_answers_and_has_its_port_alone(directory: Path) -> None:
    heard: list[httpx.Response] = []
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    listener.close()

    class Screen(io.StringIO):
        def write(self, text: str) -> int:
            if "Starting" in text:
                threading.Thread(target=ask).start()
            return super().write(text)

    def ask() -> None:
        try:
            heard.append(httpx.get(f"http://127.0.0.1:{port}/health", timeout=60))
            with pytest.raises(ConfigError, match="cannot listen"):
                serve(replace(options(directory, "build"), port=port), Console(file=io.StringIO()))
            heard.append(httpx.get(f"http://127.0.0.1:{port}/ready", timeout=60))
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    status = serve(replace(options(directory, "build_slowly"), port=port), Console(file=Screen()))
    assert status == 128 + signal.SIGINT
    assert [(answer.status_code, answer.json()["error"]["code"]) for answer in heard] == [(503, "starting")] * 2


STUCK = """
import threading
from stepwell.engine.text.tokenizer import Tokenizer
from stepwell.cli import app
Tokenizer.load = lambda *given: threading.Event().wait(600)
app()
"""


def test_an_interrupted_start_waits_for_nothing_that_is_under_way(directory: Path) -> None:
    (directory / "config.json").write_text(json.dumps(NEXT_80B))
    command = [sys.executable, "-u", "-c", STUCK, "serve", str(directory), "--port", "0", "--load-format", "dummy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        assert any("Starting" in line for line in process.stdout)
        [engine] = children(process.pid)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(60) == 128 + signal.SIGINT  # the tokenizer would take ten minutes
    assert not alive(engine) and "Traceback" not in rest


def test_engine_that_cannot_be_built_ends_the_start(directory: Path) -> None:
    with pytest.raises(ConfigError, match="no such machine"):
        serve(options(directory, "build_never"), Console(file=io.StringIO()))


def test_missing_tokenizer_ends_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        serve(options(tmp_path, "build"), Console(file=io.StringIO()))


def test_command_line_names_what_is_wrong(empty_model: str) -> None:
    runner = CliRunner()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = runner.invoke(app, ["serve", empty_model, "--port", port])
    assert result.exit_code == 2 and "--port" in result.output
    for arguments, named in (
        (["--rung-grid", "65"], "--rung-grid"),
        (["--device-memory", "lots"], "lots"),
        (["--max-queue", "0"], "--max-queue"),
        (["--port", "70000"], "--port"),
        (["--log-level", "loud"], "--log-level"),
        (["--max-body-size", "0"], "--max-body-size"),
        (["--log-format", "xml"], "--log-format"),
        (["--body-timeout", "0"], "--body-timeout"),
        (["--queue-timeout", "-1"], "--queue-timeout"),
        (["--request-timeout", "0"], "--request-timeout"),
        (["--drain-timeout", "-1"], "--drain-timeout"),
        (["--api-key", "short"], "--api-key"),
        (["--salt-per-key"], "--api-key"),
        (["--allowed-origins", "example.org"], "--allowed-origins"),
    ):
        result = runner.invoke(app, ["serve", empty_model, *arguments])
        assert result.exit_code == 2 and named in result.output, result.output


def without_opentelemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [name for name in sys.modules if name.startswith(("opentelemetry.", "stepwell.server.observe.otlp"))]:
        monkeypatch.delitem(sys.modules, name)


def test_traces_need_their_package_only_where_the_flag_asks_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    without_opentelemetry(monkeypatch)
    assert tracer(None) is None and tracer(TraceTarget("http://127.0.0.1:1/v1/traces", False)) is None
    with pytest.raises(ConfigError, match=r"--otlp-endpoint needs .*\[otel\]"):
        tracer(TraceTarget("http://127.0.0.1:1/v1/traces", True))
