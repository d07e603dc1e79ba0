"""A server whose cache outlives it: every route over HTTP, a graceful end, a folder that another server has."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner, Result

torch = pytest.importorskip("torch")

from stepwell.cache.moves import Tier  # noqa: E402
from stepwell.cli import app  # noqa: E402
from stepwell.engine.build import build_engine  # noqa: E402
from stepwell.engine.owned import OwnedLoop  # noqa: E402
from stepwell.engine.text.tokenizer import Tokenizer  # noqa: E402
from tests.engine.disk import PROMPT, SMALL, forget, small_config, small_model  # noqa: E402
from tests.server.harness import eventually, running  # noqa: E402


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(autouse=True)
def steady_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepwell.engine.disk_tier.read_speed", lambda folder, budget: 1e9)


@contextmanager
def server(model: Path, disk: Path) -> Iterator[tuple[str, OwnedLoop]]:
    loop = build_engine(small_config(model, disk), lambda facts: None)
    with running(Tokenizer.load(str(model)), loop=loop) as served:
        yield served.url, loop


def ask(url: str) -> tuple[str, tuple[int, int, int]]:
    """The answer, and how many tokens came from device, host and disk."""
    body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    reply = httpx.post(url + "/v1/completions", json=body, timeout=90)
    assert reply.status_code == 200, reply.text
    details = reply.json()["usage"]["prompt_tokens_details"]
    return reply.json()["choices"][0]["text"], tuple(details[f"{t}_tokens"] for t in ("device", "host", "disk"))  # type: ignore[return-value]


def metric(url: str, name: str) -> float:
    """Its value; 0 while it is not there."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", httpx.get(url + "/metrics").text, re.MULTILINE)
    return float(found[1]) if found is not None else 0.0


def test_every_route_over_http_and_again_after_a_restart(model: Path, tmp_path: Path) -> None:
    said, came = [], []

    def note(url: str) -> None:
        text, sources = ask(url)
        said.append(text)
        came.append(sources)

    with server(model, tmp_path / "cache") as (url, loop):
        note(url)
        note(url)
        assert eventually(lambda: not loop.busy)  # it waits for commands now, and touches nothing
        forget(loop, Tier.DEVICE, Tier.HOST)
        note(url)
        assert eventually(lambda: metric(url, 'stepwell_prompt_tokens_total{source="disk"}') == 128)
        assert eventually(lambda: metric(url, "stepwell_disk_records_published_total") > 0)
        assert metric(url, 'stepwell_copied_bytes_total{source="disk",target="device"}') > 0
    with server(model, tmp_path / "cache") as (url, _):
        assert metric(url, "stepwell_disk_dormant_pages") > 0
        note(url)
        note(url)
    assert came == [(0, 0, 0), (128, 0, 0), (0, 0, 128), (0, 0, 128), (128, 0, 0)]
    assert len(set(said)) == 1


def serve(model: Path, disk: Path, port: int = 0) -> Result:
    """`stepwell serve` here, its engine in a process of its own."""
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items()]
    place = f"--disk-cache={disk}:64MiB"
    return CliRunner().invoke(app, ["serve", str(model), place, f"--port={port}", *flags], env={"COLUMNS": "300"})


def test_a_server_on_a_folder_that_another_has_is_turned_away(model: Path, tmp_path: Path) -> None:
    disk = tmp_path / "cache"
    loop = build_engine(small_config(model, disk), lambda facts: None)
    try:
        result = serve(model, disk)
    finally:
        loop.end(0.0)
    assert result.exit_code == 2
    assert f"--disk-cache {disk} is in use by another engine (pid {os.getpid()})" in result.output
    assert "Traceback" not in result.output


def test_a_server_told_to_end_writes_first(model: Path, tmp_path: Path) -> None:
    disk, said, ended = tmp_path / "cache", list[str](), list[Result]()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def call() -> None:
        url = f"http://127.0.0.1:{port}"
        try:
            assert eventually(lambda: bool(ended) or answers(url))
            said.append(ask(url)[0])
        finally:
            if not ended:
                os.kill(os.getpid(), signal.SIGTERM)

    caller = threading.Thread(target=call)
    caller.start()
    ended.append(result := serve(model, disk, port))
    caller.join()
    assert result.exit_code == 0, result.output
    assert re.search(rf"disk slots +[\d,]+ +within 64.0 MiB in {re.escape(str(disk))}", result.output), result.output
    with server(model, disk) as (url, _):
        assert ask(url) == (said[0], (0, 0, 128))


def answers(url: str) -> bool:
    try:
        return httpx.get(url + "/health").status_code == 200
    except httpx.HTTPError:
        return False


def test_health_does_not_hang_on_a_broken_disk(model: Path, tmp_path: Path) -> None:
    config = small_config(model, tmp_path / "cache", faults=("disk:eio-write",))
    loop = build_engine(config, lambda facts: None)
    with running(Tokenizer.load(str(model)), loop=loop) as served:
        ask(served.url)
        assert eventually(lambda: metric(served.url, 'stepwell_disk_problems_total{cause="EIO"}') >= 1)
        assert httpx.get(served.url + "/health").status_code == 200
        assert httpx.get(served.url + "/ready").status_code == 200
        assert ask(served.url)[1] == (128, 0, 0)
